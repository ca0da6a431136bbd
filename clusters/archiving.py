"""Copying logs into the archive before they are gone, for clouds that do not keep them.

The watch marks the log of every task that has ended as due, in the transaction of that news. `copy_due` takes due logs by
claims that run out, copies them outside of any transaction and writes down what became of them; it is woken on commit, and
by the sweep as long as one is due, so it may die anywhere. Nodes throw logs of deleted pods away within a minute, and the
API forgets a pod as soon as nobody holds it: `Holding` lets go of the pods of ended tasks only when their logs are copied,
but never later than HOLD_SECONDS. Neither metering nor the controller ever waits for a log.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q
from django.utils import timezone

from clusters import wakeups
from clusters.archive import Archive, archive, folder_of, key_of
from clusters.clouds import registry
from clusters.clouds.base import Cloud, CloudError, RunRef, Seen, TaskSeen
from clusters.models import Run, Task
from clusters.observe import readable

log = logging.getLogger(__name__)

ENDED = ("Succeeded", "Failed")
DUE, KEPT, LOST = Task.LogState.DUE, Task.LogState.KEPT, Task.LogState.LOST
HOLD_SECONDS = 20.0
CLAIM = dt.timedelta(minutes=5)
# What failed is tried again after half the time that it has been due for, within these bounds.
SHORTEST, LONGEST = dt.timedelta(seconds=1), dt.timedelta(minutes=1)
# As long as it may fail for other reasons than that the log is gone.
PATIENCE = dt.timedelta(days=3)
# Loops in the whole installation, each with so many copies at a time and for so long, so that other work is not kept waiting.
LOOPS, COPIES, LOOP_SECONDS = 2, 8, 45.0
LOOP_LOCK = 6_117_100
# A log of a task that has ended comes to its end within so many seconds after its last piece.
SILENCE_SECONDS = 30.0
BROKEN_OFF = b"\n[The rest of this log was lost with its pod.]\n"
GONE = "Its pod was gone before the log could be copied."


def is_wanted(cloud: str) -> bool:
    """Whether logs of that cloud are copied."""
    return bool(settings.LOGS_S3["server"]) and not registry.keeps_logs(cloud)


def note(cloud: str, seen: Iterable[TaskSeen], known: Collection[str]) -> None:
    """Marks what has ended as due, in the transaction of that news; `known` are the pods of which there was news before."""
    if not is_wanted(cloud):
        return
    told = list(seen)
    # A pod may have taken the place of one whose log was kept: of a cloud that began to count anew.
    fresh = [item.uid for item in told if item.uid not in known]
    Task.objects.filter(uid__in=fresh).exclude(log_state="").update(log_state="", log_size=None, log_message="")
    ended = [item.uid for item in told if item.phase in ENDED and item.started_at]
    if ended and Task.objects.filter(uid__in=ended, log_state="").update(log_state=DUE, log_claimed_until=None):
        transaction.on_commit(wakeups.wake_logs)


class Holding:
    """For the thread that follows a cloud: what it may tell the cloud to be written down."""

    def __init__(self, cloud: Cloud) -> None:
        self._is_wanted = is_wanted(cloud.name)
        self._held: dict[str, tuple[TaskSeen, float]] = {}

    def settle(self, items: Sequence[Seen]) -> list[Seen]:
        """`items` and what was held before, without the ends of tasks whose logs are still being copied."""
        if not self._is_wanted:
            return list(items)
        settled: list[Seen] = []
        now = time.monotonic()
        for item in items:
            if isinstance(item, TaskSeen) and item.phase in ENDED:
                self._held[item.uid] = (item, self._held.get(item.uid, (item, now))[1])
            else:
                settled.append(item)
        if self._held:
            young = [uid for uid, (_, since) in self._held.items() if now - since < HOLD_SECONDS]
            due = set(Task.objects.filter(uid__in=young, log_state=DUE).values_list("uid", flat=True))
            settled += [self._held.pop(uid)[0] for uid in list(self._held) if uid not in due]
        return settled


# -- copying -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    state: str
    size: int | None = None
    message: str = ""


def is_due(at: dt.datetime) -> Q:
    return Q(log_state=DUE) & (Q(log_claimed_until=None) | Q(log_claimed_until__lt=at))


def copy_due() -> None:
    """Copies what is due until nothing is, or for LOOP_SECONDS. At once at an end when enough of these are at work."""
    end = time.monotonic() + LOOP_SECONDS
    while Task.objects.filter(is_due(timezone.now())).exists() and time.monotonic() < end:
        with _one_of_few() as is_ours:
            if not is_ours:
                return
            _copy_all(end)
    # What became due in the last moment found the others at work and went away, so it is looked for once more above.


@contextmanager
def _one_of_few() -> Iterator[bool]:
    with connection.cursor() as cursor:
        for number in range(LOOPS):
            cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOOP_LOCK, number])
            if cursor.fetchone()[0]:
                break
        else:
            yield False
            return
        try:
            yield True
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOOP_LOCK, number])


def _copy_all(end: float) -> None:
    store = archive()
    clouds: dict[str, Cloud] = {}
    at_work: dict[Future[Outcome], Task] = {}
    with ThreadPoolExecutor(COPIES, thread_name_prefix="archive") as threads:
        while True:
            for task in _claim(COPIES - len(at_work)) if time.monotonic() < end else []:
                outcome = _without_copying(task, store)
                if outcome is None and store is not None:
                    try:
                        cloud = clouds.setdefault(task.run.cloud, registry.cloud_of(task.run))
                    except CloudError as error:
                        outcome = Outcome(DUE, message=str(error))
                    else:
                        at_work[threads.submit(_copy, store, cloud, registry.run_ref(task.run), task)] = task
                if outcome is not None:
                    _write(task, outcome)
            if not at_work:
                return
            for done in wait(at_work, return_when=FIRST_COMPLETED).done:
                _write(at_work.pop(done), done.result())


def _claim(count: int) -> list[Task]:
    if count <= 0:
        return []
    at = timezone.now()
    longest_ago = F("log_claimed_until").asc(nulls_first=True)
    with transaction.atomic():
        rows = Task.objects.select_for_update(of=("self",), no_key=True, skip_locked=True).filter(is_due(at))
        found = list(rows.select_related("run__cluster__appcode").order_by(longest_ago, "pk")[:count])
        Task.objects.filter(pk__in=[task.pk for task in found]).update(log_claimed_until=at + CLAIM)
    return found


def _without_copying(task: Task, store: Archive | None) -> Outcome | None:
    if task.run.cluster.deleted_at is not None or store is None:
        return Outcome("")
    return None


def _copy(store: Archive, cloud: Cloud, ref: RunRef, task: Task) -> Outcome:
    """Runs in a thread without a database."""
    key = key_of(cloud.name, ref.id, task.role, task.index, task.attempt)
    try:
        return Outcome(KEPT, store.keep(key, _whole(cloud, ref, task)))
    except _Absent:
        return Outcome(LOST, message=GONE)
    except CloudError as error:
        return Outcome(DUE, message=str(error))
    except Exception:
        log.exception("the log of %s-%s of run %s cannot be copied", task.role, task.index, ref.id)
        return Outcome(DUE, message="The portal failed; its log says more.")


class _Absent(Exception):
    pass


def _whole(cloud: Cloud, ref: RunRef, task: Task) -> Iterator[bytes]:
    began, last = False, time.monotonic()
    for chunk in cloud.follow(ref, task.role, task.index, attempt=task.attempt):
        if chunk.absent:
            if not began:
                raise _Absent
            yield BROKEN_OFF
            return
        if chunk.data:
            began, last = True, time.monotonic()
            yield chunk.data
        elif not chunk.complete and time.monotonic() - last > SILENCE_SECONDS:
            raise CloudError("The cloud does not say that the log is at its end.")


def _write(task: Task, outcome: Outcome) -> None:
    """What became of it, unless another pod has taken its place meanwhile."""
    at = timezone.now()
    age = at - (task.finished_at or task.observed_at)
    state, message = outcome.state, outcome.message
    if state == LOST and task.log_message:
        message = f"{message} {task.log_message}"
    if state == DUE and age > PATIENCE:
        state, message = LOST, f"It could not be copied. {message}"
    pause = max(SHORTEST, min(age / 2, LONGEST)) if state == DUE else dt.timedelta()
    if message:
        log.warning("the log of %s-%s of run %s: %s", task.role, task.index, task.run_id, message)
    Task.objects.filter(pk=task.pk, uid=task.uid, log_state=DUE).update(
        log_state=state, log_size=outcome.size, log_message=readable(message), log_claimed_until=at + pause
    )


def forget(runs: Sequence[Run]) -> None:
    """Removes the copies of logs of runs that are gone. Raises CloudError while one is being made: it would stay."""
    if Task.objects.filter(run__in=runs, log_state=DUE, log_claimed_until__gt=timezone.now()).exists():
        raise CloudError("A log is being copied.")
    Task.objects.filter(run__in=runs).exclude(log_state="").update(log_state="", log_size=None, log_message="")
    if (store := archive()) is not None:
        for run in runs:
            if not registry.keeps_logs(run.cloud):
                store.forget(folder_of(run.cloud, run.pk))
