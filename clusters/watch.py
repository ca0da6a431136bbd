"""What happened: every batch of news from a cloud becomes rows in one transaction, together with the position after it.

Because the position is saved with the news, a controller that dies resumes exactly where it had written; because every
write is keyed by pod uid and never goes backwards, news that comes twice or out of order changes nothing.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from django.db import transaction
from django.utils import timezone

from billing import metering
from billing.usage import PodState
from clusters import wakeups
from clusters.clouds.base import Batch, Capacity, Node, RunGone, Seen, StorageSeen, TaskSeen
from clusters.lifecycle import TERMINAL
from clusters.models import CloudState, Run, Task
from clusters.observe import consumer, readable, refresh
from portal.events import entry, record_all
from portal.models import Event

log = logging.getLogger(__name__)

ENDED = ("Succeeded", "Failed")
RANK = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
TASK_FIELDS = [
    "uid", "phase", "reason", "message", "node", "gpus", "gpu_model", "scheduled_at", "started_at", "finished_at", "exit_code",
    "disrupted", "log_tail", "observed_at",
]  # fmt: skip


def apply_batch(cloud: str, batch: Batch) -> None:
    """Writes the news of `batch` and its position, in a number of queries that does not grow with the news."""
    with transaction.atomic():
        _write(cloud, batch.items)
        _save_position(cloud, batch.position)


def apply_listing(cloud: str, batch: Batch, asked_at: dt.datetime) -> None:
    """Takes a complete listing, asked for at `asked_at`: what it has is news, and a run that the cloud had been told of by
    then but that is not listed was lost behind our back."""
    listed = {item.run_id for item in batch.items}
    with transaction.atomic():
        _write(cloud, _not_over(batch.items))
        here = Run.objects.filter(cloud=cloud, gone=False, applied_at__lt=asked_at)
        vanished = here.exclude(pk__in=listed).order_by("pk")
        for run in vanished.select_for_update(of=("self",), no_key=True).select_related(
            "cluster__appcode", "created_by"
        ):
            _vanished(cloud, run)
        _save_position(cloud, batch.position)


def _not_over(items: Sequence[Seen]) -> list[Seen]:
    """The items without those of runs that are over, of which everything is known: nearly all of a long listing."""
    ids = {item.run_id for item in items}
    over = set(Run.objects.filter(pk__in=ids, gone=True, phase__in=TERMINAL).values_list("pk", flat=True))
    ended = set(Task.objects.filter(run__in=over, phase__in=ENDED).values_list("uid", flat=True))
    return [
        item
        for item in items
        if item.run_id not in over or (isinstance(item, TaskSeen) and not (item.phase in ENDED and item.uid in ended))
    ]


def save_capacity(cloud: str, capacity: Capacity) -> None:
    """Keeps what the cloud has, so that no page has to ask it."""
    found = {
        "capacity": asdict(capacity),
        "simulated": sum(node.gpus for node in capacity.nodes if node.simulated),
        "notes": [readable(note, 500) for note in machine_notes(capacity.nodes)],
    }
    CloudState.objects.update_or_create(name=cloud, defaults=found)


def save_trouble(cloud: str, trouble: str) -> None:
    """Keeps why the cloud cannot be followed at the moment; the next news takes it away."""
    CloudState.objects.update_or_create(name=cloud, defaults={"trouble": readable(trouble, 1000)})


def machine_notes(nodes: Sequence[Node]) -> list[str]:
    """What a user must know of the machines, each sentence once: simulated GPUs, limits that are not enforced, machines that
    are away."""
    simulated = sum(node.gpus for node in nodes if node.simulated)
    first = f"The {simulated} GPUs here are simulated: held and billed like real ones, but programs compute on the CPU."
    told = Counter(node.note for node in nodes if node.note)
    notes = [
        note if count == len(nodes) else f"{count} of {len(nodes)} machines: {note}" for note, count in told.items()
    ]
    return [first] * bool(simulated) + notes


def _save_position(cloud: str, position: str) -> None:
    told = {"position": position, "heard_at": timezone.now(), "trouble": ""}
    CloudState.objects.update_or_create(name=cloud, defaults=told)


def _write(cloud: str, items: Sequence[Seen]) -> None:
    if not items:
        return
    at = timezone.now()
    ids = {item.run_id for item in items}
    # Locked in one order everywhere, so that a person's action and the watch cannot wait for each other.
    rows = Run.objects.filter(pk__in=ids, cloud=cloud).order_by("pk").select_for_update(of=("self",), no_key=True)
    runs = {run.pk: run for run in rows.select_related("cluster__appcode", "created_by")}
    for unknown in ids - runs.keys():
        log.error("%s reports run %s, which was never made there; nothing is recorded for it", cloud, unknown)
    known = [_clean(item) for item in items if _expected(cloud, runs, item)]
    failed = _write_tasks([item for item in known if isinstance(item, TaskSeen)], at)
    metering.record([pod_state(cloud, runs[item.run_id], item) for item in known if isinstance(item, TaskSeen)])
    _tell_failures([(runs[item.run_id], item) for item in failed])
    for item in known:
        _note(runs[item.run_id], item)
    Run.objects.bulk_update(runs.values(), ["storage_state", "storage_message", "gone", "stored", "gone_message"])
    refresh(list(runs.values()), at)


def _expected(cloud: str, runs: dict[int, Run], item: Seen) -> bool:
    run = runs.get(item.run_id)
    if run is not None and isinstance(item, TaskSeen) and item.role not in run.resources:
        log.error("%s reports a %s of run %s, which has none; nothing is recorded for it", cloud, item.role, run.pk)
        return False
    return run is not None


def _clean(item: Seen) -> Seen:
    """The item with texts that its columns take: programs and machines may say anything, of any length."""
    if isinstance(item, TaskSeen):
        return replace(
            item,
            reason=readable(item.reason, 40),
            message=readable(item.message),
            node=readable(item.node, 253),
            gpus=tuple(readable(gpu) for gpu in item.gpus),
            gpu_model=readable(item.gpu_model, 60),
            log_tail=readable(item.log_tail),
        )
    return replace(item, message=readable(item.message))


def _note(run: Run, item: Seen) -> None:
    if isinstance(item, StorageSeen):
        if item.state == "failed" and run.storage_state != "failed":
            record_all([_cloud_event(run, "run.storage_failed", item.message)])
        run.storage_state, run.storage_message = item.state, item.message
    elif isinstance(item, RunGone):
        run.gone, run.stored, run.gone_message = True, item.stored, item.message


def _tell_failures(failed: Iterable[tuple[Run, TaskSeen]]) -> None:
    """One event for each task that failed by itself; those that were stopped were meant to end."""
    events = []
    for run, item in failed:
        exit_code = "" if item.exit_code is None else f" with exit code {item.exit_code}"
        message = f"{item.role}-{item.index} ended{exit_code} ({item.reason}). {item.message}".strip()
        events.append(_cloud_event(run, "task.failed", message))
    record_all(events)


def _write_tasks(seen: Iterable[TaskSeen], at: dt.datetime) -> list[TaskSeen]:
    """One upsert for all; the latest news of a pod wins unless it would take the pod backwards. A pod of a cloud that began
    anew takes the place of the one that had its role, index and attempt before.

    Returns those of which it is news that they failed.
    """
    seen = list(seen)
    # A cloud that counts the pods of a service by itself may begin anew; a pod keeps the number that it was first told with.
    attempts = dict(Task.objects.filter(uid__in={item.uid for item in seen}).values_list("uid", "attempt"))
    newest: dict[tuple[int, str, int, int], TaskSeen] = {}
    for told in seen:
        item = replace(told, attempt=attempts.get(told.uid, told.attempt))
        key = (item.run_id, item.role, item.index, item.attempt)
        before = newest.get(key)
        if before is None or before.uid != item.uid or RANK[item.phase] >= RANK[before.phase]:
            newest[key] = item
    uids = [item.uid for item in newest.values()]
    stored = dict(Task.objects.filter(uid__in=uids).values_list("uid", "phase"))
    fresh = [item for item in newest.values() if RANK[item.phase] >= RANK.get(stored.get(item.uid, "Pending"), 0)]
    rows = [
        Task(
            run_id=item.run_id, role=item.role, index=item.index, attempt=item.attempt, uid=item.uid, phase=item.phase,
            reason=item.reason, message=item.message, node=item.node, gpus=list(item.gpus), gpu_model=item.gpu_model,
            scheduled_at=item.scheduled_at, started_at=item.started_at, finished_at=item.finished_at,
            exit_code=item.exit_code, disrupted=item.disrupted, log_tail=item.log_tail, observed_at=at,
        )
        for item in fresh
    ]  # fmt: skip
    Task.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["run", "role", "index", "attempt"], update_fields=TASK_FIELDS
    )
    return [i for i in fresh if i.phase == "Failed" and i.reason != "Stopped" and stored.get(i.uid) != "Failed"]


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
    at = timezone.now()
    lost = [
        TaskSeen(
            run_id=run.pk, role=task.role, index=task.index, attempt=task.attempt, uid=task.uid, phase="Failed", reason="Lost",
            message="It disappeared without a trace of its end.", node=task.node, gpus=tuple(task.gpus), gpu_model=task.gpu_model,
            scheduled_at=task.scheduled_at, started_at=task.started_at, finished_at=at, disrupted=True, estimated=True,
        )
        for task in run.tasks.filter(phase__in=["Pending", "Running"])
    ]  # fmt: skip
    metering.record([pod_state(cloud, run, item) for item in lost])
    if run.verdict or run.desired == Run.Desired.ENDED:
        _write_tasks(lost, at)
        run.gone = True
        if run.spec.get("output") and run.storage_state != "stored":
            run.stored, run.gone_message = (
                False,
                "The cloud no longer knew this run, so nobody can tell what was stored.",
            )
    else:
        # It begins anew with first attempts; what the forgotten pods held stays in the usage.
        run.tasks.all().delete()
        run.storage_state = run.storage_message = ""
    run.applied_at = None
    run.save(update_fields=["gone", "stored", "gone_message", "applied_at", "storage_state", "storage_message"])
    record_all([_cloud_event(run, "run.vanished", "The cloud no longer knew this run.")])
    refresh([run], at)
    transaction.on_commit(lambda: wakeups.wake(run.pk))


def _cloud_event(run: Run, verb: str, message: str) -> Event:
    return entry(
        verb,
        actor=None,
        appcode=run.cluster.appcode.code,
        object=f"cluster {run.cluster}",
        message=message,
        run=run.number,
    )
