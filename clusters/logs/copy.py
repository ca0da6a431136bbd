"""Copies one log from its cloud into the archive, in a thread without a database.

The log is collected in a local file and stored as a whole, so that an unavailable object store does not hold up reading. The
files of one process may take LOGS_SPOOL_BYTES together. A log without room is cut, and says so.
"""

from __future__ import annotations

import functools
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO

from django.conf import settings

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import Cloud, CloudError, LogChunk, RunRef
from clusters.logs.archive import Archive, key_of
from clusters.runs.models import Task

log = logging.getLogger(__name__)

# Seconds without output after which a log is given up: of a task that is being ended, and of one that has ended.
ENDING_SECONDS, SILENCE_SECONDS = 3900.0, 30.0
# Seconds that a log that was read waits for the object store; shortest and longest pause between two tries.
STORE_SECONDS, SHORTEST_PAUSE, LONGEST_PAUSE = 900.0, 1.0, 30.0
# Logs that a process gives to the object store at a time. The end of a large run brings a hundred at once, whose threads would
# leave those that start and end runs a hundredth of the processor.
STORED_AT_ONCE = 4
IN_MEMORY = 256 * 1024
PIECE = 1024 * 1024
# Seconds that a log waits for others to free room.
ROOM_SECONDS = 10.0
CUT = "The log is longer than {} MiB; only its beginning was kept."
NO_ROOM = "The portal had no room for more of it; only its beginning was kept."
BROKEN_OFF = b"\n[The rest of this log was lost with its pod.]\n"
GONE = "Its pod was gone before the log could be copied."


@dataclass(frozen=True)
class Outcome:
    """The result, as it is stored in the task's row."""

    state: str
    size: int | None = None
    message: str = ""


@dataclass
class Job:
    """One log being copied, shared by the thread that copies it and the loop that stores its progress. `early` is the final
    note of a log that is copied as it is now; "" for one that is followed to its end."""

    task: Task
    is_ending: bool
    early: str = ""
    opened: threading.Event = field(default_factory=threading.Event)
    trouble: str = ""
    written: str = ""


def copy(job: Job, store: Archive, cloud: Cloud, ref: RunRef) -> Outcome:
    """Copies a log. Failures are part of the outcome, never raised."""
    task = job.task
    try:
        with ExitStack() as held:
            room = held.enter_context(_room.use())
            file, times = (held.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY)) for _ in range(2))
            size, message = _collect(job, cloud, ref, file, times, room)
            key = key_of(cloud.name, ref.id, task.role, task.index, task.attempt)

            def keep() -> None:
                length = times.seek(0, 2)
                times.seek(0)
                store.keep(key, file, size, times, length)

            return _store(job, keep, file, size, message)
    except _Absent:
        return Outcome(Task.LogState.LOST, message=GONE)
    except (CloudError, OSError) as error:
        return Outcome(Task.LogState.DUE, message=str(error))
    except Exception:
        log.exception("the log of %s-%s of run %s cannot be copied", task.role, task.index, ref.id)
        return Outcome(Task.LogState.DUE, message="The portal failed; its log says more.")
    finally:
        job.opened.set()


class _Absent(Exception):
    pass


def _collect(job: Job, cloud: Cloud, ref: RunRef, file: IO[bytes], times: IO[bytes], room: Share) -> tuple[int, str]:
    """Writes the whole log and the times of its lines to files. Returns its size and a note for users."""
    task = job.task
    left, said, marked = settings.LOGS_MAX_BYTES, "", -1
    follow: Callable[..., Iterator[LogChunk]] = functools.partial(_as_it_is, cloud) if job.early else cloud.follow
    for chunk in _patiently(job, follow(ref, task.role, task.index, attempt=task.attempt)):
        if chunk.absent and not file.tell():
            raise _Absent
        # Chunks repeat the last mark before them, and text that is cut off gets no marks.
        end = file.tell() + min(len(chunk.data), max(left, 0))
        new = b"".join(
            marks.RECORD.pack(*mark) for mark in marks.each(chunk.marks) if marked < mark[marks.OFFSET] < end
        )
        if file.tell() + len(chunk.data) > IN_MEMORY and not room.take(len(chunk.data) + len(new)):
            said = NO_ROOM
            break
        file.write(chunk.data[:left])
        if new:
            times.write(new)
            marked = marks.RECORD.unpack(new[-marks.SIZE :])[marks.OFFSET]
        left -= len(chunk.data)
        if chunk.absent:
            file.write(BROKEN_OFF)
        if left < 0:
            said = CUT.format(settings.LOGS_MAX_BYTES // 2**20)
            break
        if job.early and not (chunk.complete or chunk.data):
            said = job.early
            break
    if said:
        file.write(f"\n[{said}]\n".encode())
    return file.tell(), said


def _as_it_is(cloud: Cloud, ref: RunRef, role: str, index: int, *, attempt: int) -> Iterator[LogChunk]:
    """The log up to now. The last piece is empty unless the log is complete."""
    offset, cursor = 0, ""
    while True:
        chunk = cloud.log(ref, role, index, attempt=attempt, offset=offset, limit=PIECE, cursor=cursor)
        yield chunk
        if chunk.complete or not chunk.data:
            return
        offset, cursor = chunk.offset, chunk.cursor


class Room:
    """Limit for the files of all logs that this process is copying."""

    def __init__(self) -> None:
        self._used = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> bool:
        with self._changed:
            has = bool(self._changed.wait_for(lambda: self._used + size <= settings.LOGS_SPOOL_BYTES, ROOM_SECONDS))
            if has:
                self._used += size
            return has

    def give(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    @contextmanager
    def use(self) -> Iterator[Share]:
        share = Share(self)
        try:
            yield share
        finally:
            self.give(share.taken)


@dataclass
class Share:
    """The part of Room that one log uses."""

    room: Room
    taken: int = 0

    def take(self, size: int) -> bool:
        has = self.room.take(size)
        self.taken += size if has else 0
        return has


_room = Room()
_storing = threading.Semaphore(STORED_AT_ONCE)


def _patiently(job: Job, chunks: Iterator[LogChunk]) -> Iterator[LogChunk]:
    """Yields the chunks. Raises CloudError if the log does not end."""
    most = ENDING_SECONDS if job.is_ending else SILENCE_SECONDS
    last = time.monotonic()
    for chunk in chunks:
        # The first chunk arrives when the log is open, even if it is empty.
        job.opened.set()
        if chunk.data:
            last = time.monotonic()
        elif not chunk.complete and time.monotonic() - last > most:
            raise CloudError("The cloud does not say that the log is at its end.")
        yield chunk


def _store(job: Job, keep: Callable[[], None], file: IO[bytes], size: int, message: str) -> Outcome:
    """Retries while the object store is unavailable: this may be the only copy left."""
    end, pause = time.monotonic() + STORE_SECONDS, SHORTEST_PAUSE
    while True:
        try:
            with _storing:
                file.seek(0)
                keep()
        except CloudError as error:
            job.trouble = str(error)
            if time.monotonic() > end:
                raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return Outcome(Task.LogState.KEPT, size, message)
