"""Rows of trials that share a run: how each copy ended, its value, and its usage."""

from __future__ import annotations

import datetime as dt
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal

from django.db.models import Case, CharField, DateTimeField, F, FloatField, OuterRef, Subquery, Sum, Value, When
from django.db.models.functions import Extract

from billing.sums.access import used_by_pods
from clusters.clouds.drivers.base import CloudError, restart_policy
from clusters.logs.read import RunLogs
from clusters.runs import budgets
from clusters.runs.models import Run, Task
from clusters.runs.status.phase import TaskState, failed_with
from clusters.runs.status.phase_update import FACTS
from clusters.sweeps.copies import ROLE
from clusters.sweeps.models import Trial
from clusters.sweeps.objective import Reading, reading_of, value_in_log

# Stop reason of a run whose trials are started anew when their sweep resumes.
PAUSED = "Paused"

_tasks = Task.objects.filter(run=OuterRef("cluster__current_run"), role=ROLE, index=OuterRef("index"))
_said = Case(When(phase="Pending", then=Value("Starting")), default=Value("Running"), output_field=CharField())
# For a trial in a live shared run: its task's phase (NULL before its turn), the seconds it held resources, and its start.
PHASE = Subquery(_tasks.order_by("-attempt").annotate(said=_said).values("said")[:1])
SECONDS = Subquery(
    _tasks.order_by()
    .values("index")
    .annotate(sum=Sum(Extract(F("finished_at") - F("began_at"), "epoch")))
    .values("sum"),
    output_field=FloatField(),
)
STARTED = Subquery(_tasks.order_by("attempt").values("started_at")[:1], output_field=DateTimeField())


def ends_of(run: Run, indexes: Collection[int]) -> dict[int, Task]:
    """The final task of each copy that has ended for good, by index."""
    rows = run.tasks.filter(role=ROLE, index__in=indexes, phase__in=("Succeeded", "Failed")).order_by(
        "index", "attempt"
    )
    found: dict[int, Task] = {}
    failures: defaultdict[int, list[bool]] = defaultdict(list)
    for task in rows:
        if task.phase == "Failed" and not task.disrupted and task.reason != "Stopped":
            failures[task.index].append(restart_policy.ended_itself(task))
        if task.phase == "Succeeded" or restart_policy.exhausted(failures[task.index], run.spec["retries"]):
            found[task.index] = task
    return found


def readings(trials: Iterable[Trial], metric: str, most: int, until: float) -> dict[tuple[int, int], Reading]:
    """Values of at most `most` succeeded copies, by trial and run, read until time.monotonic() reaches `until`."""
    found: dict[tuple[int, int], Reading] = {}
    for run, those in by_run(trials):
        logs, ends = RunLogs(run), ends_of(run, those)
        for index, trial in those.items():
            task = ends.get(index)
            if task is None or task.phase != "Succeeded" or len(found) >= most or time.monotonic() > until:
                continue
            try:
                found[trial.pk, run.pk] = reading_of(
                    metric, *value_in_log(logs, (ROLE, task.index, task.attempt), metric)
                )
            except CloudError as error:
                found[trial.pk, run.pk] = Reading(None, f"Its numbers cannot be read now: {error}", again=True)
    return found


def by_run(trials: Iterable[Trial]) -> list[tuple[Run, dict[int, Trial]]]:
    """Each run that is shared, once, with its trials by index."""
    found: dict[int, tuple[Run, dict[int, Trial]]] = {}
    for trial in trials:
        if trial.index is not None and trial.cluster is not None and trial.cluster.current_run is not None:
            run = trial.cluster.current_run
            run.cluster = trial.cluster
            found.setdefault(run.pk, (run, {}))[1][trial.index] = trial
    return list(found.values())


def outcome(trial: Trial, run: Run, task: Task | None) -> bool:
    """Sets phase and message of a trial that is over without a value to read, and returns whether it is. A trial whose run was
    ended by its sweep's pause or by a budget is detached instead, to wait for another run."""
    if task is not None and task.phase == "Failed":
        facts = TaskState(*(getattr(task, name) for name in FACTS))
        trial.phase, trial.message = Trial.Phase.FAILED, failed_with(facts)
    elif task is not None or not run.is_terminal:
        return False
    elif run.phase == Run.Phase.STOPPED and run.stop_reason in (PAUSED, budgets.REASON):
        trial.cluster, trial.index = None, None
        return False
    elif run.phase == Run.Phase.STOPPED:
        trial.phase, trial.message = Trial.Phase.STOPPED, run.message
    else:
        trial.phase, trial.message = Trial.Phase.FAILED, run.message
    return True


def used_by(trials: Iterable[Trial], now: dt.datetime) -> Mapping[int, tuple[int, Decimal]]:
    """GPU-seconds and cost of copies until `now`, by the primary keys of their trials. Four queries."""
    which = {(trial.cluster_id, trial.index): trial.pk for trial in trials if trial.index is not None}
    if not which:
        return {}
    clusters, indexes = {cluster for cluster, _ in which}, {index for _, index in which}
    tasks = Task.objects.filter(run__cluster__in=clusters, role=ROLE, index__in=indexes)
    rows = tasks.values_list("run__cluster", "index", "uid")
    pods = {uid: which[cluster, index] for cluster, index, uid in rows if (cluster, index) in which}
    sums: dict[int, tuple[int, Decimal]] = {}
    for uid, (seconds, cost) in used_by_pods(pods, now).items():
        before = sums.get(pods[uid], (0, Decimal(0)))
        sums[pods[uid]] = (before[0] + seconds, before[1] + cost)
    return sums
