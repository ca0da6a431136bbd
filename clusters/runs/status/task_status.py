"""Task rows: what was seen of pods, written once and never backwards, and what billing may know of it.

Called by `observe` in its transaction. An item's pod is identified by its uid; (run, role, index, attempt) is its place.

A run that the portal places is billed from the moment at which it is whole (`whole.py`). Until then billing learns no start of
its pods, then that of all at once; so a bill follows from what happened, not from the order in which it was told.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from django.db import transaction

from billing.metering import record
from billing.metering.segments import PodState
from clusters import wakeups
from clusters.admission.demand import demand_of
from clusters.clouds.drivers.base import TaskSeen
from clusters.frameworks import FRAMEWORKS
from clusters.logs import collect
from clusters.runs.models import Run, Task
from clusters.runs.status.phase_update import consumer
from clusters.runs.status.whole import layout_of, span_of, whole_since
from portal.db.bulk_update import update_rows

ENDED = ("Succeeded", "Failed")
RANK = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
TASK_FIELDS = [
    "uid", "phase", "reason", "message", "node", "gpus", "gpu_model", "scheduled_at", "began_at", "started_at", "finished_at",
    "exit_code", "disrupted", "log_tail", "observed_at",
]  # fmt: skip
# What billing gets of a task that has not ended, besides its place.
METERED = ("phase", "gpu_model", "scheduled_at", "began_at", "started_at", "finished_at")
# Columns in which a repeated sighting equals the row, besides its place.
COMPARED = [name for name in TASK_FIELDS if name not in ("uid", "gpus", "observed_at")]


@dataclass(frozen=True)
class Written:
    """`failed`: tasks whose failure is news. `metered`: billing keys of the runs whose usage or cost changed."""

    failed: Sequence[TaskSeen]
    metered: Set[str]


def write(cloud: str, runs: Mapping[int, Run], told: Iterable[TaskSeen], at: dt.datetime) -> Written:
    """Writes all items in one upsert, and records for billing what it has to know of them. The latest news of a pod wins unless
    it would move the pod backwards. When a cloud starts counting anew, its pod replaces the earlier one at the same place."""
    told = list(told)
    stored = {row.uid: row for row in Task.objects.filter(uid__in={item.uid for item in told})}
    told = _with_beginnings(runs, stored, _with_models(runs, stored, told))
    # A long listing repeats known items, which were recorded when they were written.
    seen = [item for item in told if not _is_known(stored.get(item.uid), item)]
    metered = record.record(
        [pod_state(cloud, runs[item.run_id], item) for item in seen if not _is_metered(stored.get(item.uid), item)]
    )
    newest: dict[tuple[int, str, int, int], TaskSeen] = {}
    for each in seen:
        # A cloud that counts a service's pods itself may start anew; a pod keeps the number that it got first.
        row = stored.get(each.uid)
        item = replace(each, attempt=row.attempt) if row else each
        key = (item.run_id, item.role, item.index, item.attempt)
        before = newest.get(key)
        if before is None or (
            RANK[item.phase] >= RANK[before.phase] if before.uid == item.uid else _succeeds(item, before)
        ):
            newest[key] = item
    phases = {uid: row.phase for uid, row in stored.items()}
    fresh = [item for item in newest.values() if RANK[item.phase] >= RANK.get(phases.get(item.uid, "Pending"), 0)]
    fresh = _without_predecessors(fresh, stored)
    rows = [
        Task(
            run_id=item.run_id, role=item.role, index=item.index, attempt=item.attempt, uid=item.uid, phase=item.phase,
            reason=item.reason, message=item.message, node=item.node, gpus=list(item.gpus), gpu_model=item.gpu_model,
            scheduled_at=item.scheduled_at, began_at=item.began_at, started_at=item.started_at, finished_at=item.finished_at,
            exit_code=item.exit_code, disrupted=item.disrupted, log_tail=item.log_tail, observed_at=at,
        )
        for item in fresh
    ]  # fmt: skip
    Task.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["run", "role", "index", "attempt"], update_fields=TASK_FIELDS
    )
    news = [item for item in fresh if _may_make_whole(runs[item.run_id], item, stored.get(item.uid))]
    metered |= _make_whole(cloud, runs, news, at)
    collect.note(cloud, fresh, stored.keys())
    failed = [i for i in fresh if i.phase == "Failed" and i.reason != "Stopped" and phases.get(i.uid) != "Failed"]
    return Written(failed, metered)


def _succeeds(item: TaskSeen, other: TaskSeen | Task) -> bool:
    """Whether `item` replaces another pod at its place. The earlier pod may end, and be reported, after the later one starts."""
    if item.scheduled_at and other.scheduled_at and item.scheduled_at != other.scheduled_at:
        return item.scheduled_at > other.scheduled_at
    if other.phase in ENDED:
        return True
    return item.phase not in ENDED and (item.scheduled_at is None or other.scheduled_at is not None)


def _without_predecessors(items: list[TaskSeen], stored: Mapping[str, Task]) -> list[TaskSeen]:
    """The items without pods that others have replaced by now. Billing has them already."""
    new = [item for item in items if item.uid not in stored]
    if not new:
        return items
    places = {name: {getattr(item, name) for item in new} for name in ("run_id", "role", "index", "attempt")}
    rows = Task.objects.filter(**{f"{name}__in": values for name, values in places.items()})
    holders = {(row.run_id, row.role, row.index, row.attempt): row for row in rows}

    def stays(item: TaskSeen) -> bool:
        holder = holders.get((item.run_id, item.role, item.index, item.attempt))
        return holder is None or holder.uid == item.uid or _succeeds(item, holder)

    return [item for item in items if stays(item)]


def _with_models(runs: Mapping[int, Run], stored: Mapping[str, Task], told: list[TaskSeen]) -> list[TaskSeen]:
    """Fills in missing GPU models. The node reports the model; a pod whose node is gone keeps its model, and so its price. Where
    the GPUs are slices, or not NVIDIA's, their flavor says what they are."""
    told = [_named(runs[item.run_id], item) for item in told]
    models = {uid: row.gpu_model for uid, row in stored.items() if row.gpu_model}
    models |= {item.uid: item.gpu_model for item in told if item.gpu_model}
    if not models:
        return told
    return [
        item if item.gpu_model or item.uid not in models else replace(item, gpu_model=models[item.uid]) for item in told
    ]


def _named(run: Run, item: TaskSeen) -> TaskSeen:
    held = run.resources.get(item.role) or {}
    if not held.get("gpus") or demand_of(held).chooses_model:
        return item
    return item if item.gpu_model == held["gpu_model"] else replace(item, gpu_model=held["gpu_model"])


def _with_beginnings(runs: Mapping[int, Run], stored: Mapping[str, Task], told: list[TaskSeen]) -> list[TaskSeen]:
    """The news of placed runs with the node and times that earlier news had. Billing gets the beginnings of their pods from rows,
    which otherwise have what the latest news says."""
    placed = [item for item in told if runs[item.run_id].placed_at]
    if not placed:
        return told
    known: dict[str, list[TaskSeen | Task]] = {item.uid: [] for item in placed}
    for uid in known.keys() & stored.keys():
        known[uid].append(stored[uid])
    for item in placed:
        known[item.uid].append(item)

    def filled(item: TaskSeen) -> TaskSeen:
        if item.uid not in known:
            return item
        news = known[item.uid]
        began = min((time for each in news if (time := each.began_at or each.started_at)), default=None)
        node = item.node or next((each.node for each in news if each.node), "")
        scheduled = item.scheduled_at or next((each.scheduled_at for each in news if each.scheduled_at), None)
        if (node, scheduled, began) == (item.node, item.scheduled_at, item.began_at):
            return item
        return replace(item, node=node, scheduled_at=scheduled, began_at=began)

    return [filled(item) for item in told]


def _may_make_whole(run: Run, item: TaskSeen, row: Task | None) -> bool:
    """Whether the news may make a placed run whole, or tell that it was so earlier than was known: of a pod that was not known to
    have its node before that moment. No news of a run that is not placed does, and of one that is whole hardly any."""
    if run.placed_at is None or not (item.node or item.phase == "Succeeded"):
        return False
    if run.whole_at is None:
        # A run that gives its places back is about to end, whatever gets a node meanwhile.
        return run.given_back_at is None or run.given_back_at < run.placed_at
    is_new = row is None or (row.scheduled_at is None and item.scheduled_at is not None)
    return is_new and (span := span_of(item, run.whole_at)) is not None and span.since < run.whole_at


def _make_whole(cloud: str, runs: Mapping[int, Run], news: Sequence[TaskSeen], at: dt.datetime) -> set[str]:
    """Marks the runs of `news` that turn out to be whole, and tells billing when their pods began. Returns billing keys as
    `Written.metered` does. No query without news, two or three more with it."""
    if not news:
        return set()
    by_run: dict[int, list[Task]] = {item.run_id: [] for item in news}
    for row in Task.objects.filter(run__in=by_run).defer("message", "log_tail", "log_message").order_by("pk"):
        # What has ended before this placement belongs to an earlier one. By the portal's own clock, as `placed_at`.
        placed_at = runs[row.run_id].placed_at
        if row.phase not in ENDED or placed_at is None or row.observed_at > placed_at:
            by_run[row.run_id].append(row)
    changed, is_first = [], False
    for pk, tasks in by_run.items():
        run, spans = runs[pk], [span for task in tasks if (span := span_of(task, at))]
        independent = FRAMEWORKS[run.spec["framework"]].is_independent
        since = whole_since({role: facts["count"] for role, facts in run.roles.items()}, spans, independent=independent)
        if since is None or (run.whole_at is not None and since >= run.whole_at):
            continue
        if run.whole_at is None:
            is_first = True
            # Independent tasks still come, so all their places are kept.
            run.layout = run.layout if independent else layout_of(tasks)
        run.whole_at = since
        changed.append(run)
    if not changed:
        return set()
    update_rows(changed, ["whole_at", "layout"])
    if is_first:
        transaction.on_commit(partial(wakeups.wake_places, cloud))
    begun = [(run, task) for run in changed for task in by_run[run.pk] if billed_from(run, task)]
    return record.record([pod_state(cloud, run, _beginning(task)) for run, task in begun])


def billed_from(run: Run, task: TaskSeen | Task) -> dt.datetime | None:
    """When billing of a pod begins, as far as is known: with its program, but not before a placed run is whole. None also for a
    pod that had ended by then."""
    began = task.began_at or task.started_at
    if began is None or run.placed_at is None:
        return began
    if run.whole_at is None:
        return None
    is_over = task.phase in ENDED and task.finished_at is not None and task.finished_at <= run.whole_at
    return None if is_over else max(began, run.whole_at)


def _beginning(task: Task) -> TaskSeen:
    """The sighting that tells billing when a pod began. It tells no end: billing has that of the sighting in which it came, which
    also said whether it was estimated."""
    return TaskSeen(
        run_id=task.run_id, role=task.role, index=task.index, attempt=task.attempt, uid=task.uid,
        phase="Running" if task.phase in ENDED else task.phase, gpu_model=task.gpu_model,  # type: ignore[arg-type]
        scheduled_at=task.scheduled_at, began_at=task.began_at, started_at=task.started_at,
    )  # fmt: skip


def _is_known(row: Task | None, item: TaskSeen) -> bool:
    return row is not None and (row.run_id, row.role, row.index, list(row.gpus)) == (
        item.run_id, item.role, item.index, list(item.gpus)
    ) and all(getattr(row, name) == getattr(item, name) for name in COMPARED)  # fmt: skip


def _is_metered(row: Task | None, item: TaskSeen) -> bool:
    """Whether billing got the same when the row was written, so that only texts have changed. An end always counts as new."""
    return (
        row is not None
        and item.phase not in ENDED
        and (row.run_id, row.role, row.index, row.attempt) == (item.run_id, item.role, item.index, item.attempt)
        and all(getattr(row, name) == getattr(item, name) for name in METERED)
    )


def lost(task: Task, last_seen: dt.datetime) -> TaskSeen:
    """The unseen end of a pod that was last known at `last_seen`. Unseen time is not billed."""
    times = [each for each in (task.scheduled_at, task.began_at, task.started_at, last_seen) if each is not None]
    return TaskSeen(
        run_id=task.run_id, role=task.role, index=task.index, attempt=task.attempt, uid=task.uid, phase="Failed", reason="Lost",
        message="It disappeared without a trace of its end.", node=task.node, gpus=tuple(task.gpus), gpu_model=task.gpu_model,
        scheduled_at=task.scheduled_at, began_at=task.began_at, started_at=task.started_at, finished_at=max(times),
        disrupted=True, estimated=True,
    )  # fmt: skip


def pod_state(cloud: str, run: Run, item: TaskSeen) -> PodState:
    """What billing may know of a pod: amounts, times and copied names."""
    held = run.resources[item.role]
    return PodState(
        uid=item.uid,
        cloud=cloud,
        appcode_id=run.cluster.appcode_id,
        consumer=consumer(run),
        labels={
            "cluster": run.cluster.name,
            "run": str(run.number),
            "role": item.role,
            "index": str(item.index),
            "attempt": str(item.attempt),
            "flavor": held["flavor"],
            "framework": run.spec["framework"],
            "user": run.created_by.username if run.created_by else "",
            **({"serves": "yes"} if FRAMEWORKS[run.spec["framework"]].role(item.role).kept_alive else {}),
            **({"class": run.priority_class} if run.priority_class != "normal" else {}),
        },
        phase=item.phase,
        gpus=held["gpus"],
        gpu_model=item.gpu_model,
        cpu_milli=held["cpu_milli"],
        memory_mb=held["memory_mb"],
        scheduled_at=item.scheduled_at,
        started_at=billed_from(run, item),
        finished_at=item.finished_at,
        estimated=item.estimated,
    )
