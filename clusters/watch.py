"""What happened: every batch of news from a cloud becomes rows in one transaction, together with the position after it.

Because the position is saved with the news, a controller that dies resumes exactly where it had written; because every
write is keyed by pod uid and never goes backwards, news that comes twice or out of order changes nothing.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from django.db import transaction

from billing import metering
from billing.usage import PodState
from clusters import tasks
from clusters.clouds.base import Batch, Capacity, RunGone, Seen, StorageSeen, TaskSeen
from clusters.models import CloudState, Run, Task
from clusters.observe import consumer, refresh
from portal.events import record

log = logging.getLogger(__name__)

RANK = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
TASK_FIELDS = [
    "phase", "reason", "message", "node", "gpus", "gpu_model", "scheduled_at", "started_at", "finished_at", "exit_code",
    "disrupted", "log_tail", "observed_at",
]  # fmt: skip


def apply_batch(cloud: str, batch: Batch) -> None:
    """Writes the news of `batch` and its position, in a number of queries that does not grow with the news."""
    with transaction.atomic():
        _write(cloud, batch.items)
        _save_position(cloud, batch.position)


def apply_listing(cloud: str, batch: Batch) -> None:
    """Takes a complete listing: what it has is news, and a run it should have but has not was lost behind our back."""
    listed = {item.run_id for item in batch.items}
    with transaction.atomic():
        _write(cloud, batch.items)
        vanished = Run.objects.filter(gone=False, applied_at__isnull=False).exclude(pk__in=listed)
        for run in vanished.select_for_update(of=("self",), no_key=True).select_related(
            "cluster__appcode", "created_by"
        ):
            _vanished(cloud, run)
        _save_position(cloud, batch.position)


def save_capacity(cloud: str, capacity: Capacity) -> None:
    """Keeps what the cloud has, so that no page has to ask it."""
    CloudState.objects.update_or_create(name=cloud, defaults={"capacity": asdict(capacity)})


def _save_position(cloud: str, position: str) -> None:
    CloudState.objects.update_or_create(name=cloud, defaults={"position": position, "heard_at": tasks.now()})


def _write(cloud: str, items: Sequence[Seen]) -> None:
    if not items:
        return
    at = tasks.now()
    ids = {item.run_id for item in items}
    # Locked in one order everywhere, so that a person's action and the watch cannot wait for each other.
    rows = Run.objects.filter(pk__in=ids).order_by("pk").select_for_update(of=("self",), no_key=True)
    runs = {run.pk: run for run in rows.select_related("cluster__appcode", "created_by")}
    for unknown in ids - runs.keys():
        log.error("%s reports run %s, which is not in the database; nothing is recorded for it", cloud, unknown)
    known = [item for item in items if item.run_id in runs]
    _write_tasks([item for item in known if isinstance(item, TaskSeen)], at)
    metering.record([pod_state(cloud, runs[item.run_id], item) for item in known if isinstance(item, TaskSeen)])
    for item in known:
        _note(runs[item.run_id], item)
    Run.objects.bulk_update(runs.values(), ["storage_state", "storage_message", "gone", "stored", "gone_message"])
    refresh(list(runs.values()), at)


def _note(run: Run, item: Seen) -> None:
    if isinstance(item, StorageSeen):
        if item.state == "failed" and run.storage_state != "failed":
            _cloud_event(run, "run.storage_failed", item.message)
        run.storage_state, run.storage_message = item.state, item.message
    elif isinstance(item, RunGone):
        run.gone, run.stored, run.gone_message = True, item.stored, item.message
    elif item.phase == "Failed":
        exit_code = "" if item.exit_code is None else f" with exit code {item.exit_code}"
        _cloud_event(
            run, "task.failed", f"{item.role}-{item.index} ended{exit_code} ({item.reason}). {item.message}".strip()
        )


def _write_tasks(seen: Iterable[TaskSeen], at: dt.datetime) -> None:
    """One upsert for all; the latest news of a pod wins unless it would take the pod backwards."""
    newest: dict[str, TaskSeen] = {}
    for item in seen:
        before = newest.get(item.uid)
        if before is None or RANK[item.phase] >= RANK[before.phase]:
            newest[item.uid] = item
    stored = dict(Task.objects.filter(uid__in=newest).values_list("uid", "phase"))
    rows = [
        Task(
            run_id=item.run_id, role=item.role, index=item.index, attempt=item.attempt, uid=item.uid, phase=item.phase,
            reason=item.reason, message=item.message, node=item.node, gpus=list(item.gpus), gpu_model=item.gpu_model,
            scheduled_at=item.scheduled_at, started_at=item.started_at, finished_at=item.finished_at,
            exit_code=item.exit_code, disrupted=item.disrupted, log_tail=item.log_tail.replace("\0", "\N{REPLACEMENT CHARACTER}"),
            observed_at=at,
        )
        for item in newest.values()
        if RANK[item.phase] >= RANK.get(stored.get(item.uid, "Pending"), 0)
    ]  # fmt: skip
    Task.objects.bulk_create(rows, update_conflicts=True, unique_fields=["uid"], update_fields=TASK_FIELDS)


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
        },
        phase=item.phase,
        gpus=held["gpus"],
        gpu_model=item.gpu_model,
        cpu_milli=held["cpu_milli"],
        memory_mb=held["memory_mb"],
        scheduled_at=item.scheduled_at,
        started_at=item.started_at,
        finished_at=item.finished_at,
        estimated=item.estimated,
    )


def _vanished(cloud: str, run: Run) -> None:
    """The cloud has forgotten a run: close its pods with an estimated end, then start it again or call it gone."""
    at = tasks.now()
    lost = [
        TaskSeen(
            run_id=run.pk, role=task.role, index=task.index, attempt=task.attempt, uid=task.uid, phase="Failed", reason="Lost",
            message="It disappeared without a trace of its end.", node=task.node, gpus=tuple(task.gpus), gpu_model=task.gpu_model,
            scheduled_at=task.scheduled_at, started_at=task.started_at, finished_at=at, disrupted=True, estimated=True,
        )
        for task in run.tasks.filter(phase__in=["Pending", "Running"])
    ]  # fmt: skip
    _write_tasks(lost, at)
    metering.record([pod_state(cloud, run, item) for item in lost])
    if run.verdict or run.desired == Run.Desired.ENDED:
        run.gone = True
    run.applied_at = None
    run.save(update_fields=["gone", "applied_at"])
    _cloud_event(run, "run.vanished", "The cloud no longer knew this run.")
    refresh([run], at)
    transaction.on_commit(lambda: tasks.wake(run.pk))


def _cloud_event(run: Run, verb: str, message: str) -> None:
    record(
        verb,
        actor=None,
        appcode=run.cluster.appcode.code,
        object=f"cluster {run.cluster}",
        message=message,
        run=run.number,
    )
