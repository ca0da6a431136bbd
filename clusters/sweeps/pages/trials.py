"""The trials of a sweep: one page of points, sorted and filtered by phase, in few queries."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import (
    Avg,
    BooleanField,
    Case,
    Count,
    Exists,
    F,
    FloatField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils import timezone

from clusters.runs.models import Run
from clusters.sweeps import shared
from clusters.sweeps.copies import ROLE
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.models import Sweep, Trial
from clusters.sweeps.pages.labels import in_words, short
from clusters.sweeps.pages.list import TRIAL_PHASES, Row
from clusters.sweeps.parameters import in_order
from clusters.sweeps.points import is_maximized, valued
from clusters.sweeps.totals import PHASE, USAGE, Sums
from portal.pages.charts import number
from portal.pages.layout import sorted_page_of, words

ROWS = 50
# GPU-seconds and cost of a trial that has not started.
NOTHING = (0, Decimal(0))
# More parameters than this share one column.
COLUMNS = 6


@dataclass(frozen=True)
class TrialRow:
    """A point. `trainings` are (fold, phase, cluster, task); `task` is empty for a training with its own cluster.
    `value` and `sd` are over all trainings."""

    number: int
    parameters: Sequence[str]
    phase: str
    message: str
    value: str
    sd: str
    trainings: Sequence[tuple[int, str, str, str]]
    started: dt.datetime | None
    finished: dt.datetime | None
    gpu_seconds: int
    cost: Decimal
    is_best: bool


def table_of(request: HttpRequest, row: Row) -> dict[str, Any]:
    """One page of the sweep's trials, sorted and filtered by the query string."""
    found, spec = row.sweep, row.spec
    sort = chosen if (chosen := words(request, "sort")) in _orders(spec) else ""
    trials = _sortable(found, spec)
    phase, one = words(request, "phase"), words(request, "trial")
    if phase in TRIAL_PHASES:
        of = Trial.objects.filter(sweep=found, phase=TRIAL_PHASES[phase]).order_by()
        trials = trials.filter(number__in=of.values("number"))
    if one.isascii() and one.isdecimal() and len(one) < 6:
        trials = trials.filter(number=int(one))
    page, following = sorted_page_of(request, trials, _orders(spec)[sort], ROWS)
    names = [name for name, _ in in_order(spec.parameters)]
    return {
        "names": names if len(names) <= COLUMNS else [],
        "trials": _trial_rows(found, spec, names, [trial.number for trial in page], timezone.now()),
        "next_cursor": following,
        "phases": [(word, _count(row.sums, word)) for word in TRIAL_PHASES],
        "filtered": phase in TRIAL_PHASES or bool(one),
    }


def _count(sums: Sums, word: str) -> int:
    if TRIAL_PHASES[word]:
        return sums.trials.get(word, 0)
    return sum(count for phase, count in sums.trials.items() if phase not in TRIAL_PHASES.values())


def _orders(spec: SweepSpec) -> dict[str, tuple[str, ...]]:
    """Sort orders by name. Default: live trials first, then the best."""
    worst_last = "-sort_value" if is_maximized(spec) else "sort_value"
    return {
        "": ("-sort_living", worst_last, "number"),
        "number": ("number",),
        "-number": ("-number",),
        "value": ("sort_value", "number"),
        "-value": ("-sort_value", "number"),
    }


def _sortable(found: Sweep, spec: SweepSpec) -> QuerySet[Trial]:
    """One row per point: its first training. A point without a value sorts as the worst."""
    of = Trial.objects.filter(sweep=found, number=OuterRef("number")).order_by()
    value: Combinable = F("value")
    lives: Q | Exists = Q(phase="")
    if spec.folds:
        done = of.filter(phase=Trial.Phase.SUCCEEDED).values("number").annotate(mean=Avg("value"), done=Count("pk"))
        value, lives = Subquery(done.filter(done=spec.folds).values("mean")), Exists(of.filter(phase=""))
    worst = Value(float("-inf") if is_maximized(spec) else float("inf"))
    return Trial.objects.filter(sweep=found, fold__lte=1).annotate(
        sort_value=Coalesce(value, worst, output_field=FloatField()),
        sort_living=Case(When(lives, then=True), default=False, output_field=BooleanField()),
    )


def _trial_rows(
    found: Sweep, spec: SweepSpec, names: Sequence[str], numbers: Sequence[int], now: dt.datetime
) -> list[TrialRow]:
    """Three queries, and five where trials share runs."""
    of: dict[int, list[Trial]] = {which: [] for which in numbers}
    trials = found.trials.filter(number__in=numbers).order_by("number", "fold").select_related("cluster")
    begun_at = shared.STARTED if spec.one_run else F("cluster__current_run__started_at")
    for trial in trials.annotate(now=PHASE, begun_at=begun_at).defer("cluster__spec"):
        of[trial.number].append(trial)
    used: dict[int, tuple[int, Decimal]] = {}
    if spec.one_run:
        copies = {trial.pk: which for which, those in of.items() for trial in those}
        sums = shared.used_by((trial for those in of.values() for trial in those), now)
        used = {copies[pk]: each for pk, each in sums.items()}
    else:
        runs = Run.objects.filter(cluster__trials__sweep=found, cluster__trials__number__in=numbers)
        for run in runs.annotate(point=F("cluster__trials__number")).only(*USAGE):
            seconds, cost = used.get(run.point, NOTHING)
            used[run.point] = (seconds + run.gpu_seconds_at(now), cost + run.cost_at(now))
    best = found.best["number"] if found.best else None
    of_points = {which: (mean, sd) for which, mean, sd in valued(found, spec).filter(number__in=numbers)}
    return [
        _trial_row(names, of[which], of_points.get(which, (None, None)), used.get(which, NOTHING), which == best)
        for which in numbers
    ]


def _trial_row(
    names: Sequence[str],
    trials: Sequence[Trial],
    value: tuple[float | None, float | None],
    used: tuple[int, Decimal],
    is_best: bool,
) -> TrialRow:
    phases = [trial.now for trial in trials]  # type: ignore[attr-defined]
    mean, sd = value
    said = trials[0].parameters
    started = [trial.begun_at for trial in trials]  # type: ignore[attr-defined]
    return TrialRow(
        number=trials[0].number,
        parameters=[short(said[name]) if name in said else "" for name in names]
        if len(names) <= COLUMNS
        else [in_words(said)],
        phase=_together(phases),
        message=next((trial.message.partition("\n")[0] for trial in trials if trial.message), ""),
        value="" if mean is None else number(mean),
        sd="" if sd is None else number(sd),
        trainings=[
            (trial.fold, phase, trial.cluster.name, "" if trial.index is None else f"{ROLE}-{trial.index}")
            for trial, phase in zip(trials, phases, strict=True)
            if trial.cluster
        ],
        started=min((each for each in started if each), default=None),
        finished=max((trial.finished_at for trial in trials if trial.finished_at), default=None)
        if all(trial.phase for trial in trials)
        else None,
        gpu_seconds=used[0],
        cost=used[1],
        is_best=is_best,
    )


def _together(phases: Sequence[str]) -> str:
    """The phase of a point with several trainings: live ones first, then failed ones, then the others."""
    order = ("Running", "Starting", "Queued", "Failed", "Stopped", "Pruned", "Succeeded")
    return min(phases, key=order.index)
