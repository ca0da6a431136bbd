"""Copies logs into the archive before they are gone, for clouds that do not keep them.

A node discards a container's log within a second after its pod has been deleted and has ended. So before a run is ended, all its
logs are opened: `prepare` marks them as due, `copy_due` opens and follows them to their end, and only then is the cloud asked to
end the run (or after PREPARE, if no worker opens them). When a task ends by itself, the watch marks its log (`note`) with that
news, and `Holding` makes the controller keep the pod until the log is open, for at most HOLD_SECONDS.

`copy_due` uses claims that expire, outside of any transaction. It is woken on commit, and by the sweep while logs are due, so
it may die anywhere. Each log is copied by a thread (`copy`). Neither metering nor the controller ever waits for a log.

If a run has more tasks than can be followed at a time (FOLLOWED in each loop), the other logs are copied as they are, one batch
after the other, before it is ended. What they write after that is missing, and they say so.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import lru_cache

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from clusters import wakeups
from clusters.clouds import registry
from clusters.clouds.drivers.base import Cloud, CloudError, Seen, TaskSeen
from clusters.logs.archive import archive, folder_of, is_there
from clusters.logs.copy import Job, Outcome, copy
from clusters.runs.models import Run, Task
from portal.db.advisory_lock import Lock, advisory_lock
from portal.text.words import readable

log = logging.getLogger(__name__)

ENDED = ("Succeeded", "Failed")
DUE, OPEN, KEPT, LOST = Task.LogState.DUE, Task.LogState.OPEN, Task.LogState.KEPT, Task.LogState.LOST
# How long a run's end, and the release of an ended task's pod (in seconds), wait for logs to be opened.
PREPARE = dt.timedelta(seconds=3)
HOLD_SECONDS = 20.0
CLAIM = dt.timedelta(seconds=60)
# A failed copy is retried after half the time for which it has been due, within these bounds,
SHORTEST, LONGEST = dt.timedelta(seconds=1), dt.timedelta(minutes=1)
# and for this long, unless it failed because the log is gone.
PATIENCE = dt.timedelta(days=3)
# Maximum delay of a run's end while its logs are being opened.
LONGEST_PREPARE = dt.timedelta(seconds=60)
# Loops in the whole installation, logs that each copies at a time, and how many of these may be of tasks that are still running.
LOOPS, AT_ONCE, FOLLOWED = 2, 160, 128
TICK = 0.5
EARLY = "What it wrote after its run was to end is missing: more than {} logs were to be kept at that moment."


def is_wanted(cloud: str) -> bool:
    """Whether logs of that cloud are copied."""
    return is_there() and not registry.keeps_logs(cloud)


def note(cloud: str, seen: Iterable[TaskSeen], known: Collection[str]) -> None:
    """Marks logs of ended tasks as due, in the transaction of that news. `known` are uids of pods with earlier news."""
    if not is_wanted(cloud):
        return
    told = list(seen)
    # A pod may have replaced one whose log was kept, in a cloud that began to count anew.
    fresh = [item.uid for item in told if item.uid not in known]
    Task.objects.filter(uid__in=fresh).exclude(log_state="").update(log_state="", log_size=None, log_message="")
    ended = [item.uid for item in told if item.phase in ENDED and item.started_at]
    if ended and Task.objects.filter(uid__in=ended, log_state="").update(log_state=DUE, log_claimed_until=None):
        transaction.on_commit(wakeups.wake_logs)


def prepare(run: Run) -> bool:
    """Whether the logs of a run's running tasks must be opened before it is ended; the worker that opens them wakes it. Called
    in the transaction that locks the run and gives its claim back."""
    if run.release_asked_at is not None or run.cluster.deleted_at is not None or not is_wanted(run.cloud):
        return False
    if run.tasks.filter(phase="Running", log_state="").update(log_state=DUE, log_claimed_until=None):
        transaction.on_commit(wakeups.wake_logs)
        Run.objects.filter(pk=run.pk, logs_asked_at=None).update(logs_asked_at=timezone.now())
        return True
    if run.logs_asked_at is None or run.logs_asked_at < timezone.now() - LONGEST_PREPARE:
        return False
    # There are more logs than can be opened at once: wait while a worker makes progress. A log that failed to open has a
    # message and does not hold up the run, because an unreachable node would keep its GPUs for that long.
    untried = Q(log_state=DUE, log_message="")
    waiting = run.tasks.filter(untried, phase="Running")
    at_work = run.tasks.filter(Q(log_state__in=[OPEN, KEPT]) | untried & Q(log_claimed_until__gt=timezone.now()))
    return waiting.exists() and at_work.exists()


class Holding:
    """Decides for a follower thread which news it may acknowledge to its cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self._is_wanted = is_wanted(cloud.name)
        self._held: dict[str, tuple[TaskSeen, float]] = {}

    def settle(self, items: Sequence[Seen]) -> list[Seen]:
        """`items` plus those held before, without the ends of tasks whose logs are not open yet."""
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


def is_due(at: dt.datetime) -> Q:
    return Q(log_state__in=[DUE, OPEN]) & (Q(log_claimed_until=None) | Q(log_claimed_until__lt=at))


def copy_due() -> None:
    """Copies logs until none is due. Returns at once if enough other loops are at work."""
    while Task.objects.filter(is_due(timezone.now())).exists():
        with ExitStack() as held:
            if not any(held.enter_context(advisory_lock(Lock.LOG_COPIES, str(loop))) for loop in range(LOOPS)):
                return
            Copying().run()
    # A log that became due at the last moment may have found all loops busy, so check once more above.


class Copying:
    """One loop. Only its own thread uses the database; each log has another thread."""

    def __init__(self) -> None:
        self._store = archive()
        self._jobs: dict[Future[Outcome], Job] = {}
        self._renewed = time.monotonic()

    def run(self) -> None:
        """Takes new logs while old ones are being copied: a log that does not end must not hold up others."""
        done: set[Future[Outcome]] = set()
        looked_at = float("-inf")
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="archive") as threads:
            while True:
                if done or time.monotonic() - looked_at > TICK:
                    looked_at = time.monotonic()
                    # Looks each cloud up once for all logs claimed together.
                    clouds = lru_cache(registry.cloud)
                    for task in _claim(AT_ONCE - len(self._jobs)):
                        self._begin(threads, task, clouds)
                if not self._jobs:
                    return
                done = wait(self._jobs, TICK if self._all_open() else 0.02, return_when=FIRST_COMPLETED).done
                self._note_opened()
                for each in done:
                    _finish(self._jobs.pop(each).task, each.result())
                self._note_trouble()

    def _begin(self, threads: ThreadPoolExecutor, task: Task, cloud_of: Callable[[str], Cloud]) -> None:
        if task.run.cluster.deleted_at is not None or self._store is None:
            _finish(task, Outcome(""))
            return
        try:
            cloud = cloud_of(task.run.cloud)
        except CloudError as error:
            _finish(task, Outcome(DUE, message=str(error)))
            return
        is_ending = task.phase not in ENDED
        followed = sum(job.is_ending and not job.early for job in self._jobs.values())
        early = EARLY.format(LOOPS * FOLLOWED) if is_ending and followed >= FOLLOWED else ""
        job = Job(task, is_ending, early)
        self._jobs[threads.submit(copy, job, self._store, cloud, registry.run_ref(task.run))] = job

    def _all_open(self) -> bool:
        return all(job.opened.is_set() for job in self._jobs.values())

    def _note_opened(self) -> None:
        """Stores which logs are open now, and wakes the runs that waited for that."""
        opened = [job.task for job in self._jobs.values() if job.opened.is_set() and job.task.log_state == DUE]
        if not opened:
            return
        for task in opened:
            task.log_state = OPEN
        Task.objects.filter(pk__in=[task.pk for task in opened], log_state=DUE).update(log_state=OPEN)
        runs = {task.run_id for task in opened}
        waiting = set(Task.objects.filter(run__in=runs, log_state=DUE).values_list("run", flat=True))
        for run_id in runs - waiting:
            paused = Run.objects.filter(pk=run_id, claim_token=None, release_asked_at=None)
            if paused.update(claimed_until=None):
                wakeups.wake(run_id)

    def _note_trouble(self) -> None:
        """Stores what copies wait for, and renews their claims."""
        for job in self._jobs.values():
            if job.trouble != job.written:
                job.written = job.trouble
                Task.objects.filter(pk=job.task.pk).update(log_message=readable(job.trouble))
        if time.monotonic() - self._renewed > CLAIM.total_seconds() / 3:
            self._renewed = time.monotonic()
            ours = Task.objects.filter(pk__in=[job.task.pk for job in self._jobs.values()])
            ours.update(log_claimed_until=timezone.now() + CLAIM)


def _claim(count: int) -> list[Task]:
    if count <= 0:
        return []
    at = timezone.now()
    longest_ago = F("log_claimed_until").asc(nulls_first=True)
    with transaction.atomic():
        rows = Task.objects.select_for_update(of=("self",), no_key=True, skip_locked=True).filter(is_due(at))
        found = list(rows.select_related("run__cluster__appcode").order_by(longest_ago, "pk")[:count])
        if found:
            # A log whose claim has expired is not open in any worker.
            ours = Task.objects.filter(pk__in=[task.pk for task in found])
            ours.update(log_claimed_until=at + CLAIM, log_state=DUE)
    for task in found:
        task.log_state = DUE
    return found


def _finish(task: Task, outcome: Outcome) -> None:
    """Stores the outcome, unless another pod has replaced the task's pod."""
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
    Task.objects.filter(pk=task.pk, uid=task.uid, log_state__in=[DUE, OPEN]).update(
        log_state=state, log_size=outcome.size, log_message=readable(message), log_claimed_until=at + pause
    )


def forget(runs: Sequence[Run]) -> None:
    """Deletes archived logs of runs that are gone. Raises CloudError while one is being copied, as that copy would stay."""
    at_work = Task.objects.filter(run__in=runs, log_state__in=[DUE, OPEN], log_claimed_until__gt=timezone.now())
    if at_work.exists():
        raise CloudError("A log is being copied.")
    Task.objects.filter(run__in=runs).exclude(log_state="").update(log_state="", log_size=None, log_message="")
    if (store := archive()) is not None:
        for run in runs:
            if not registry.keeps_logs(run.cloud):
                store.forget(folder_of(run.cloud, run.pk))
