"""Writes each batch of news from a cloud into rows, in one transaction together with the watch position after it.

Because the position is saved with the news, a controller that dies resumes exactly where it stopped writing. Because every
write is keyed by pod uid and never goes backwards, repeated or reordered news changes nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import asdict, replace
from functools import partial

from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from billing.efficiency.capacity import record as record_gpus
from billing.metering import record
from billing.models import Quarantined
from clusters import wakeups
from clusters.clouds.drivers.base import (
    ActivitySeen,
    Batch,
    Capacity,
    EndpointSeen,
    Node,
    PlaceChanged,
    RunBlocked,
    RunChanged,
    RunDecided,
    RunFound,
    RunGone,
    Seen,
    StorageSeen,
    TaskSeen,
    Unreadable,
)
from clusters.clouds.drivers.base.observations import READ_OTHERS
from clusters.clouds.models import CloudState
from clusters.events import run_event
from clusters.gateway.changes import routes_changed
from clusters.logs import failure
from clusters.manifest.input import input_of
from clusters.runs import idle
from clusters.runs.models import Run, Task
from clusters.runs.placing import pools
from clusters.runs.placing.known import capacity_json
from clusters.runs.placing.places import FORGOTTEN, forget_tasks, start_anew, waits
from clusters.runs.status import task_status
from clusters.runs.status.phase import TERMINAL
from clusters.runs.status.phase_update import refresh
from clusters.runs.status.task_status import ENDED
from portal.db.bulk_update import update_rows
from portal.events import entry, record_all
from portal.models import Event
from portal.text.words import readable

log = logging.getLogger(__name__)

# A run id that exceeds our newest by this much was not written by a portal.
ID_GAP = 1_000_000
# Errors that one absurd item may raise. Other errors are not caused by reported data.
NOT_UNDERSTOOD = (DataError, IntegrityError, ValueError, OverflowError)
Write = Callable[[str, Sequence[Seen]], None]
# Columns of a run that `_note` and `_vanished` may change.
NOTED = [
    "storage_state", "storage_message", "data_warning", "read", "wrote", "refusal", "endpoints", "gone", "stored", "gone_message",
    "blocked_reason", "blocked_message", "applied_at", "not_before", "release_asked_at", "claim_token", "claimed_until",
    "activity", "activity_since", "activity_why", "look_at", "crashes", "deadline", *FORGOTTEN,
]  # fmt: skip
# Minimum interval between re-applying a run: something, such as an autoscaler, may change it every time.
PUT_RIGHT_AGAIN = dt.timedelta(seconds=30)


def apply_batch(cloud: str, batch: Batch) -> None:
    """Writes the news of `batch` and its position. The number of queries does not grow with the news."""

    def apply(write: Write) -> None:
        with transaction.atomic():
            write(cloud, batch.items)
            _quarantine(cloud, batch.unreadable)
            _tell_changes(cloud, batch.changes)
            _save_position(cloud, batch.position)

    _whatever_is_in_it(cloud, apply)


def apply_activity(cloud: str, items: Sequence[ActivitySeen]) -> None:
    """Writes activity that polling the runs of a cloud found. Does not touch the position: it belongs to the watch."""
    with transaction.atomic():
        _write(cloud, items)


def apply_listing(cloud: str, batch: Batch, asked_at: dt.datetime) -> None:
    """Writes a complete listing requested at `asked_at`. Listed items are news. What was applied to or reported by the cloud
    before `asked_at` but is not listed was lost without a report: whole runs, or single pods of runs that go on."""
    _whatever_is_in_it(cloud, lambda write: _apply_listing(cloud, batch, asked_at, write))


def _apply_listing(cloud: str, batch: Batch, asked_at: dt.datetime, write: Write) -> None:
    listed = {item.run_id for item in batch.items} | {each.run_id for each in batch.unreadable if each.run_id}
    uids = {item.uid for item in batch.items if isinstance(item, TaskSeen)}
    uids |= {each.uid for each in batch.unreadable if not each.over}
    with transaction.atomic():
        here = Run.objects.filter(cloud=cloud, gone=False)
        last_seen = _last_seen(cloud, asked_at)
        # Missing pods are written first, before new pods take their places. The watch reports blocks again.
        missing = _missing(here.filter(pk__in=listed), uids, asked_at, last_seen)
        blocked = here.filter(pk__in=listed).exclude(blocked_reason="").values_list("pk", flat=True)
        answered = {(item.run_id, item.name) for item in batch.items if isinstance(item, EndpointSeen)}
        served = here.filter(pk__in=listed).exclude(endpoints={}).values_list("pk", "endpoints")
        shut = [EndpointSeen(pk, name, False) for pk, names in served for name in names if (pk, name) not in answered]
        open_again = [RunBlocked(pk, "", "") for pk in blocked]
        write(cloud, [*missing, *open_again, *shut, *_not_over(batch.items)])
        _quarantine(cloud, batch.unreadable)
        vanished = here.filter(applied_at__lt=asked_at).exclude(pk__in=listed).order_by("pk")
        for run in vanished.select_for_update(of=("self",), no_key=True).select_related(
            "cluster__appcode", "created_by"
        ):
            _vanished(cloud, run, last_seen)
        _save_position(cloud, batch.position)


def _last_seen(cloud: str, asked_at: dt.datetime) -> dt.datetime:
    """The time until which the rows are known to match the cloud."""
    heard_at = CloudState.objects.filter(name=cloud).values_list("heard_at", flat=True).first()
    return min(heard_at or asked_at, asked_at)


def _missing(runs: QuerySet[Run], uids: set[str], asked_at: dt.datetime, last_seen: dt.datetime) -> list[TaskSeen]:
    """Pods that were alive when last reported and are not listed (`uids`) any more, as lost."""
    alive = Task.objects.filter(run__in=runs, phase__in=["Pending", "Running"], observed_at__lt=asked_at)
    gone = [pk for pk, uid in alive.values_list("pk", "uid") if uid not in uids]
    return [task_status.lost(task, last_seen) for task in Task.objects.filter(pk__in=gone).order_by("pk")]


def _not_over(items: Sequence[Seen]) -> list[Seen]:
    """The items without those of runs that are over and fully recorded, which are most of a long listing, and without what is
    left of runs that begin anew."""
    lives = {item.run_id: item.life for item in items if isinstance(item, RunGone)}
    anew = Run.objects.filter(pk__in=lives, gone=False).only("times_given_back", "given_back_at")
    former = {run.pk for run in anew if run.life > lives[run.pk]}
    items = [item for item in items if item.run_id not in former]
    ids = {item.run_id for item in items} - {item.run_id for item in items if isinstance(item, RunFound)}
    over = set(Run.objects.filter(pk__in=ids, gone=True, phase__in=TERMINAL).values_list("pk", flat=True))
    ended = set(Task.objects.filter(run__in=over, phase__in=ENDED).values_list("uid", flat=True))
    return [
        item
        for item in items
        if item.run_id not in over or (isinstance(item, TaskSeen) and not (item.phase in ENDED and item.uid in ended))
    ]


def save_capacity(cloud: str, reported: Capacity, asked: pools.Asked | None = None) -> None:
    """Stores the capacity, so that pages need not call the cloud, and records its GPUs for billing from now on. `asked`: what is
    asked of nodes now, if that was just read."""
    capacity = pools.kept(reported, asked or pools.asked())
    found = {
        "capacity": capacity_json(capacity),
        "simulated": sum(node.gpus for node in capacity.nodes if node.simulated),
        "notes": [readable(note, 500) for note in machine_notes(capacity.nodes)],
    }
    gpus: dict[str, tuple[int, int]] = {}
    for node in capacity.nodes:
        count, simulated = gpus.get(node.gpu_model, (0, 0))
        gpus[node.gpu_model] = count + node.gpus, simulated + (node.gpus if node.simulated else 0)
    CloudState.objects.update_or_create(name=cloud, defaults=found)
    record_gpus(cloud, gpus, timezone.now())
    if waits(cloud).exists():
        wakeups.wake_places(cloud)


def save_trouble(cloud: str, trouble: str) -> None:
    """Stores why the cloud cannot be followed now. The next news clears it."""
    CloudState.objects.update_or_create(name=cloud, defaults={"trouble": readable(trouble, 1000)})


def machine_notes(nodes: Sequence[Node]) -> list[str]:
    """Notes about the machines for users, each once: simulated GPUs, limits that are not enforced, unreachable machines."""
    simulated = sum(node.gpus for node in nodes if node.simulated)
    first = f"The {simulated} GPUs here are simulated: held and billed like real ones, but programs compute on the CPU."
    # Notes on machines without GPUs that take no tasks are left out: most clusters keep some machines for themselves.
    told = Counter(node.note for node in nodes if node.note and (node.gpus or node.takes_tasks))
    notes = [
        note if count == len(nodes) else f"{count} of {len(nodes)} machines: {note}" for note, count in told.items()
    ]
    return [first] * bool(simulated) + notes


def _save_position(cloud: str, position: str) -> None:
    told = {"position": position, "heard_at": timezone.now(), "trouble": ""}
    # UPDATE without a read before: this runs several times a second, and only one process writes for a cloud.
    if not CloudState.objects.filter(name=cloud).update(**told):
        CloudState.objects.update_or_create(name=cloud, defaults=told)


def _whatever_is_in_it(cloud: str, apply: Callable[[Write], None]) -> None:
    """Writes all items at once. If the database rejects any, writes the others and quarantines those."""
    try:
        apply(_write)
    except NOT_UNDERSTOOD:
        log.exception("%s: some of the news cannot be written; looking for them", cloud)
        apply(_write_what_can_be)


def _write_what_can_be(cloud: str, items: Sequence[Seen]) -> None:
    """Bisects the items, so that one bad item among thousands is found quickly."""
    try:
        with transaction.atomic():
            _write(cloud, items)
    except NOT_UNDERSTOOD as error:
        if len(items) > 1:
            _write_what_can_be(cloud, items[: len(items) // 2])
            _write_what_can_be(cloud, items[len(items) // 2 :])
        else:
            reason = f"It cannot be written down: {type(error).__name__}: {error}"
            _quarantine(cloud, [Unreadable(_raw(item), reason) for item in items])


def _raw(item: Seen) -> str:
    """The item as text, without the program's output."""
    facts = {name: value for name, value in asdict(item).items() if name != "log_tail"}
    return json.dumps({"kind": type(item).__name__, **facts}, sort_keys=True, default=str)


def _quarantine(cloud: str, told: Sequence[Unreadable]) -> None:
    """Stores each object once per reason. Every listing repeats it with slightly different text, so texts cannot be compared."""
    if not told:
        return
    at = timezone.now()
    rows = [(each, record.quarantined(cloud, each.raw, readable(each.reason, 300), at)) for each in told]
    reasons = [row.reason for each, row in rows if each.uid]
    known = set(Quarantined.objects.filter(cloud=cloud, reason__in=reasons).values_list("reason", flat=True))
    record.quarantine([row for each, row in rows if not (each.uid and row.reason in known)])


def _write(cloud: str, items: Sequence[Seen]) -> None:
    if not items:
        return
    at = timezone.now()
    ids = {item.run_id for item in items}
    # Locks are taken in pk order everywhere, so that a user's action and the watch cannot deadlock.
    rows = Run.objects.filter(pk__in=ids, cloud=cloud).order_by("pk").select_for_update(of=("self",), no_key=True)
    runs = {run.pk: run for run in rows.select_related("cluster__appcode", "created_by")}
    _tell_unknown(cloud, [item for item in items if item.run_id not in runs])
    known = [_clean(item) for item in items if _expected(cloud, runs, item)]
    written = task_status.write(cloud, runs, (item for item in known if isinstance(item, TaskSeen)), at)
    _tell_failures([(runs[item.run_id], item) for item in written.failed])
    metered = set(written.metered)
    noted = [item for item in known if not isinstance(item, TaskSeen)]
    if gone := [item.run_id for item in noted if isinstance(item, RunGone) and item.life >= runs[item.run_id].life]:
        metered |= _close(cloud, runs, gone, at)
        _crashed(runs, gone)
        _ended(runs, gone)
    for item in noted:
        _note(runs[item.run_id], item)
    update_rows({item.run_id: runs[item.run_id] for item in noted}.values(), NOTED)
    refresh(list(runs.values()), at, metered)


def _close(cloud: str, runs: dict[int, Run], gone: Sequence[int], at: dt.datetime) -> Set[str]:
    """Closes the live pods of runs that are gone: they hold nothing any more, and no further news of them will come. Returns
    the billing keys of the runs whose usage changes."""
    alive = list(Task.objects.filter(run__in=gone, phase__in=["Pending", "Running"]).order_by("pk"))
    if not alive:
        return set()
    last_seen = _last_seen(cloud, at)
    return task_status.write(cloud, runs, [task_status.lost(task, last_seen) for task in alive], at).metered


def _crashed(runs: dict[int, Run], gone: Sequence[int]) -> None:
    """Marks runs that are now gone and had restarted tasks, so that the cost of their crashes is counted next."""
    again = Task.objects.filter(run__in=gone, attempt__gt=0).values_list("run_id", flat=True).distinct()
    for run in (runs[pk] for pk in again):
        if not run.gone and run.crashes is not None:
            run.crashes = None
            transaction.on_commit(partial(wakeups.wake_crashes, run.pk))


def _ended(runs: dict[int, Run], gone: Sequence[int]) -> None:
    """Asks for the last numbers of runs that are now gone: their output and logs are complete."""
    for appcode_id in {runs[pk].cluster.appcode_id for pk in gone if not runs[pk].gone}:
        transaction.on_commit(partial(wakeups.wake_numbers, appcode_id))


def _expected(cloud: str, runs: dict[int, Run], item: Seen) -> bool:
    run = runs.get(item.run_id)
    if run is not None and isinstance(item, TaskSeen) and item.role not in run.resources:
        log.error("%s reports a %s of run %s, which has none; nothing is recorded for it", cloud, item.role, run.pk)
        return False
    return run is not None


def _clean(item: Seen) -> Seen:
    """The item with texts that fit their columns: programs and machines may report anything, of any length."""
    if isinstance(item, TaskSeen):
        said = item.message or (failure.why(item.log_tail) if item.phase == "Failed" else "")
        texts = {
            "reason": readable(item.reason, 40),
            "message": readable(said),
            "node": readable(item.node, 253),
            "gpus": tuple(readable(gpu) for gpu in item.gpus),
            "gpu_model": readable(item.gpu_model, 60),
            "log_tail": readable(item.log_tail),
        }
        is_clean = all(getattr(item, name) == text for name, text in texts.items())
        return item if is_clean else replace(item, **texts)  # type: ignore[arg-type]
    if isinstance(item, StorageSeen):
        return replace(item, message=readable(item.message), warning=readable(item.warning))
    return (
        item
        if isinstance(item, RunFound | RunDecided | EndpointSeen | ActivitySeen)
        else replace(item, message=readable(item.message))
    )


def _note_storage(run: Run, item: StorageSeen) -> None:
    if item.state == "failed" and run.storage_state != "failed":
        record_all([run_event("run.storage_failed", run, item.message)])
    run.storage_state, run.storage_message = item.state, item.message
    if item.state == "refused" and not run.verdict:
        run.refusal = item.message
    if run.started_at is None and (limit := run.spec.get("timeLimit")):
        # The time limit runs while input is fetched, but not while the run waits for GPUs. It restarts when the run starts.
        moves = item.state in ("fetching", "failed")
        run.deadline = (run.deadline or timezone.now() + dt.timedelta(seconds=limit)) if moves else None
    if item.warning and item.warning != run.data_warning:
        record_all([run_event("run.data_warning", run, item.warning)])
        run.data_warning = item.warning
    if item.digest:
        _note_read(run, item)


def _note_read(run: Run, item: StorageSeen) -> None:
    """Stores what the run reads, as its first task reports it. Warns if another task read something else, and records an event
    if the previous run with the same input did."""
    if run.read:
        if run.read["digest"] != item.digest and not run.data_warning:
            run.data_warning = READ_OTHERS
            record_all([run_event("run.data_warning", run, run.data_warning)])
        return
    run.read = {"digest": item.digest, "files": item.files, "bytes": item.bytes, "changed_since": None}
    said = input_of(run.spec)
    if said and not said.path and run.source and (run.source.wrote or {}).get("digest") not in (None, item.digest):
        run.data_warning = f"What run {said.from_} wrote has been changed since it ended."
        record_all([run_event("run.data_warning", run, run.data_warning)])
    runs = Run.objects.filter(cluster=run.cluster_id, number__lt=run.number, spec__input=run.spec["input"])
    before = runs.exclude(read={}).order_by("-number").only("number", "read").first()
    if before and before.read["digest"] != item.digest:
        run.read["changed_since"] = before.number
        was, now = (f"{read['files']:,} files with {read['bytes']:,} bytes" for read in (before.read, run.read))
        now = f"now {now}" if was != now else "now others of the same size"
        message = f"The input has changed since run {before.number}: it had {was}, {now}."
        record_all([run_event("run.input_changed", run, message, since=before.number)])


def _note(run: Run, item: Seen) -> None:
    if isinstance(item, RunFound):
        if run.gone:
            _found_again(run)
    elif isinstance(item, RunChanged | RunDecided):
        if run.desired == Run.Desired.RUNNING and not run.verdict and not run.given_back_at:
            _put_right(run, item)
    elif isinstance(item, RunBlocked):
        run.blocked_reason, run.blocked_message = readable(item.reason, 40), item.message
    elif isinstance(item, StorageSeen):
        _note_storage(run, item)
    elif isinstance(item, EndpointSeen):
        _note_endpoint(run, item)
    elif isinstance(item, ActivitySeen):
        idle.note(run, item, timezone.now())
    elif isinstance(item, RunGone) and item.life >= run.life:
        if run.given_back_at and run.desired == Run.Desired.RUNNING and not run.verdict and not run.refusal:
            start_anew(run, timezone.now())
            return
        run.endpoints = {}
        if item.stored and not run.gone and run.spec.get("output"):
            run.wrote = None
            transaction.on_commit(lambda: wakeups.wake_output(run.pk))
        run.gone, run.stored, run.gone_message = True, item.stored, item.message


def _note_endpoint(run: Run, item: EndpointSeen) -> None:
    """Stores an endpoint that answers, for the gateway to route next, or removes one that has stopped answering."""
    known = run.endpoints.get(item.name)
    if item.ready and (known is None or known["address"] != item.address):
        since = timezone.now().isoformat()
        run.endpoints = run.endpoints | {item.name: {"address": item.address, "since": since, "routed": False}}
    elif not item.ready and known is not None:
        run.endpoints = {name: facts for name, facts in run.endpoints.items() if name != item.name}
    else:
        return
    transaction.on_commit(routes_changed)


def _put_right(run: Run, item: RunChanged | RunDecided) -> None:
    """Has the run applied again: now, but after a change by others not sooner than PUT_RIGHT_AGAIN after the last time."""
    at = not_before = timezone.now()
    if isinstance(item, RunChanged):
        not_before = max(at, run.not_before + PUT_RIGHT_AGAIN) if run.not_before else at
        record_all([run_event("run.changed_by_hand", run, f"{item.message} The run is applied again.")])
    if run.applied_at is not None or run.claim_token is not None:
        run.applied_at, run.not_before = None, not_before
    if run.claim_token is not None:
        # A worker that is applying it now may have done so before the change, so its claim is revoked.
        run.claim_token = run.claimed_until = None
    transaction.on_commit(lambda: wakeups.wake(run.pk))


def _found_again(run: Run) -> None:
    """The cloud has a run that was gone: an order to start it arrived after the order to end it. The run is ended again, and
    its resources count until then."""
    record_all([run_event("run.found", run, "The cloud has this run again although it is over; it is ended.")])
    run.gone, run.release_asked_at = False, None
    transaction.on_commit(lambda: wakeups.wake(run.pk))


def _tell_unknown(cloud: str, items: Sequence[Seen]) -> None:
    """Reports runs that this portal never started there: the database may come from a backup, or another portal may use the
    same name. Administrators get one event for each; otherwise they are ignored. `manage.py unknown_runs` lists and ends
    them."""
    for unknown in {item.run_id for item in items}:
        log.error("%s reports run %s, which was never made there; nothing is recorded for it", cloud, unknown)
    verb, about = "cloud.unknown_run", f"cloud {cloud}"
    found = {item.run_id: item.run for item in items if isinstance(item, RunFound)}
    if found:
        _keep_ids_apart(max(found))
        told = Event.objects.filter(verb=verb, object=about, appcode="", data__run__in=list(found))
        for known in told.values_list("data__run", flat=True):
            found.pop(known, None)
    record_all(
        [
            entry(
                verb, actor=None, object=about, run=run_id,
                message=f"Run {ref.number} of {ref.appcode}/{ref.cluster} is in namespace {ref.namespace}, and this portal has "
                "never started it. If nobody else has, end it with: manage.py unknown_runs --end",
            )
            for run_id, ref in found.items()
        ]
    )  # fmt: skip


def _tell_changes(cloud: str, changes: Sequence[PlaceChanged]) -> None:
    about = f"cloud {cloud}"
    record_all([entry("cloud.changed_by_hand", actor=None, object=about, message=each.message) for each in changes])


def _keep_ids_apart(known: int) -> None:
    """Keeps new runs from getting the id of an unknown run in the cloud, whose pods would then count as theirs."""
    with connection.cursor() as cursor:
        table = Run._meta.db_table
        cursor.execute(f"SELECT coalesce(max(id), 0) FROM {table}")  # noqa: S608 — a name of our own
        newest = cursor.fetchone()[0]
        if newest < known < newest + ID_GAP:
            cursor.execute(
                "SELECT setval(sequence, greatest(%s, nextval(sequence))) FROM (SELECT pg_get_serial_sequence(%s, 'id')) "
                "AS found (sequence)",
                [known, table],
            )


def _tell_failures(failed: Iterable[tuple[Run, TaskSeen]]) -> None:
    """Records an event for each task that failed by itself; stopped tasks were meant to end."""
    events = []
    for run, item in failed:
        exit_code = "" if item.exit_code is None else f" with exit code {item.exit_code}"
        message = f"{item.role}-{item.index} ended{exit_code} ({item.reason}). {item.message}".strip()
        events.append(run_event("task.failed", run, message))
    record_all(events)


def _vanished(cloud: str, run: Run, last_seen: dt.datetime) -> None:
    """Handles a run that the cloud lost: closes its pods with an estimated end, then restarts the run or marks it gone."""
    at = timezone.now()
    lost = [task_status.lost(task, last_seen) for task in run.tasks.filter(phase__in=["Pending", "Running"])]
    task_status.write(cloud, {run.pk: run}, lost, at)
    if run.verdict or run.desired == Run.Desired.ENDED:
        run.gone = True
        if run.spec.get("output") and run.storage_state != "stored":
            run.stored, run.gone_message = (
                False,
                "The cloud no longer knew this run, so nobody can tell what was stored.",
            )
    else:
        forget_tasks(run)
    run.endpoints = {}
    run.applied_at = run.whole_at = None
    run.blocked_reason = run.blocked_message = ""
    run.save(update_fields=NOTED)
    record_all([run_event("run.vanished", run, "The cloud no longer knew this run.")])
    refresh([run], at)
    transaction.on_commit(lambda: wakeups.wake(run.pk))
