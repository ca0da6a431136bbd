"""Reads the log of one task, wherever it is: in the cloud while its pod exists, then (for clouds that lose it) in the archive.

Every stream ends after FOLLOW_SECONDS and can be resumed, so that a forgotten window does not hold a web server thread forever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from clusters.clouds import registry
from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import Cloud, CloudError, LogChunk, RunRef
from clusters.clouds.drivers.lines import Wanted
from clusters.logs.archive import archive, key_of
from clusters.logs.collect import is_wanted
from clusters.runs.models import Run, Task
from portal.web.limits import Place

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 900
CHUNK = 262_144
# The last lines are searched for in this many bytes at the log's end.
TAIL_BYTES = 1024 * 1024
SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
NO_ARCHIVE = (
    "This log went with its pod: on Kubernetes, logs last as long as their pods where the portal has no archive for them. "
    "An administrator can set one up (PORTAL_STORAGE_URL or PORTAL_LOGS_S3_URL)."
)

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Copy:
    """Progress of a log's copy: `Task.log_*`."""

    state: str = ""
    size: int = 0
    message: str = ""

    @property
    def is_coming(self) -> bool:
        return self.state in (Task.LogState.DUE, Task.LogState.OPEN)


class RunLogs:
    """The logs of all tasks of a run. It reads outside of any transaction; every call may raise CloudError.

    Call `load` before reading in threads, because they have no database.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.keeps = registry.keeps_logs(run.cloud)

    @cached_property
    def _cloud(self) -> Cloud | CloudError:
        """An error is kept until it is needed: archived logs can be read even if their cloud no longer exists."""
        try:
            return registry.cloud_of(self.run)
        except CloudError as error:
            return error

    @property
    def cloud(self) -> Cloud:
        if isinstance(self._cloud, CloudError):
            raise CloudError(str(self._cloud)) from self._cloud
        return self._cloud

    @cached_property
    def ref(self) -> RunRef:
        return registry.run_ref(self.run)

    @cached_property
    def copies(self) -> dict[Key, Copy]:
        """Logs that were or should be copied. One query, none for a cloud that keeps logs."""
        if self.keeps:
            return {}
        rows = Task.objects.filter(run=self.run).exclude(log_state="")
        found = rows.values_list("role", "index", "attempt", "log_state", "log_size", "log_message")
        return {
            (role, index, attempt): Copy(state, size or 0, message)
            for role, index, attempt, state, size, message in found
        }

    def load(self) -> None:
        """Reads everything that `read` needs from the database."""
        _ = self.ref, self.copies, self._cloud

    def read(
        self,
        role: str,
        index: int,
        attempt: int,
        *,
        offset: int = 0,
        limit: int = CHUNK,
        tail: int | None = None,
        cursor: str = "",
        since: int | None = None,
        line: int | None = None,
        before: str = "",
    ) -> LogChunk:
        """Like `Cloud.log`, except that a log that is still to be copied is not complete. Positions that are not placed do not
        exist in a copy: check `is_kept` first and start over if it is true."""
        copy = self.copies.get((role, index, attempt), Copy())
        if copy.state == Task.LogState.KEPT:
            return self._copied((role, index, attempt), copy, Wanted(offset, limit, tail, since, line))
        if copy.state == Task.LogState.LOST:
            return LogChunk(b"", offset, True, absent=True)
        chunk = self.cloud.log(
            self.ref, role, index, attempt=attempt, offset=offset, limit=limit, tail=tail, cursor=cursor, since=since,
            line=line, before=before,
        )  # fmt: skip
        return replace(chunk, complete=False) if chunk.absent and copy.is_coming else chunk

    def follow(
        self, role: str, index: int, attempt: int, *, offset: int, cursor: str, placed: bool = True
    ) -> Iterator[LogChunk]:
        """Like `Cloud.follow`. A position that is not placed is found in the archive by its time, which may repeat up to one
        second of lines."""
        key = (role, index, attempt)
        copy, time_ = self.copies.get(key, Copy()), 0
        while copy.state != Task.LogState.KEPT:
            for chunk in self.cloud.follow(self.ref, role, index, attempt=attempt, offset=offset, cursor=cursor):
                offset, cursor = chunk.offset, chunk.cursor
                time_ = marks.at(chunk.marks, chunk.offset) if chunk.data else time_
                if not chunk.absent or self.keeps:
                    yield chunk
            if not chunk.absent or self.keeps:
                return
            # The pod is gone: the rest is in the archive, or will be soon.
            copy = self.again(key)
            if copy.state != Task.LogState.KEPT:
                yield replace(chunk, complete=not copy.is_coming)
                if not copy.is_coming:
                    return
                time.sleep(LONGEST_PAUSE)
        since = None if placed else time_
        while True:
            chunk = self._copied(key, copy, Wanted(offset, CHUNK, None, since, None))
            yield chunk
            if chunk.complete:
                return
            offset, since = chunk.offset, None

    def is_kept(self, role: str, index: int, attempt: int) -> bool:
        """Whether the log is read from the archive."""
        return self.copies.get((role, index, attempt), Copy()).state == Task.LogState.KEPT

    def again(self, key: Key) -> Copy:
        """The current progress of the copy."""
        self.__dict__.pop("copies", None)
        return self.copies.get(key, Copy())

    def note(self, role: str, index: int, attempt: int, chunk: LogChunk) -> str:
        """A note for users about this log; "" if it is simply the program's output."""
        copy = self.copies.get((role, index, attempt), Copy())
        if copy.state == Task.LogState.LOST:
            lost = sum(each.state == Task.LogState.LOST for each in self.copies.values())
            return copy.message if lost == 1 else f"{copy.message} {lost} logs of this run are missing like that."
        if copy.state == Task.LogState.KEPT and chunk.absent:
            return "Somebody has removed this log from the archive."
        if copy.state == Task.LogState.KEPT and copy.message:
            return copy.message
        if copy.is_coming and copy.message:
            return f"This log is not in the archive yet: {copy.message} It is tried again."
        if chunk.absent and chunk.complete and not self.keeps and not is_wanted(self.run.cloud):
            return NO_ARCHIVE
        return ""

    def _copied(self, key: Key, copy: Copy, wanted: Wanted) -> LogChunk:
        store = archive()
        if store is None:
            raise CloudError("This log was copied into an archive that the installation does not know any more.")
        where = key_of(self.run.cloud, self.run.pk, *key)
        return store.read(where, copy.size, wanted)


@dataclass(frozen=True)
class LogSource:
    logs: RunLogs
    role: str
    index: int
    attempt: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    def read(self, offset: int, cursor: str = "", *, limit: int = CHUNK, since: int | None = None) -> LogChunk:
        where = {"offset": offset, "cursor": cursor, "limit": limit, "since": since}
        return self.logs.read(self.role, self.index, self.attempt, **where)  # type: ignore[arg-type]

    def follow(self, last: LogChunk) -> Iterator[LogChunk]:
        """The chunks after `last`."""
        place = {"offset": last.offset, "cursor": last.cursor, "placed": last.placed}
        return self.logs.follow(self.role, self.index, self.attempt, **place)  # type: ignore[arg-type]

    def note(self, chunk: LogChunk) -> str:
        return self.logs.note(self.role, self.index, self.attempt, chunk)

    def last_lines(self, lines: int) -> LogChunk:
        """The last `lines` lines, at most about TAIL_BYTES together."""
        chunk = self.logs.read(self.role, self.index, self.attempt, limit=TAIL_BYTES, tail=TAIL_BYTES)
        kept = b"".join(chunk.data.splitlines(keepends=True)[-lines:]) if lines else b""
        return without_start(chunk, len(chunk.data) - len(kept))

    def everything(self, first: LogChunk, limit: int = CHUNK) -> Iterator[LogChunk]:
        """The rest of the log as of now, from a chunk that was read already. Ends early if reading fails."""
        chunk = first
        while chunk.data:
            yield chunk
            try:
                chunk = self.read(chunk.offset, chunk.cursor, limit=limit)
            except CloudError as error:
                # The status has been sent, so ending early is the only option; the reader resumes at its offset.
                log.warning("A log ends early: %s", error)
                return


def without_start(chunk: LogChunk, size: int) -> LogChunk:
    """The chunk without its first `size` bytes."""
    return replace(chunk, data=chunk.data[size:], line=chunk.line + chunk.data.count(b"\n", 0, size)) if size else chunk


class LogStream:
    """An iterable of bytes for a streaming response, which always calls `close`.

    `first` was read before, so that a cloud's error is still an error of the request. `is_over` returns whether nothing more
    can come although the cloud has no log yet, `is_gone` whether the reader left. `show` renders a chunk; with None, its rest.
    """

    def __init__(
        self,
        source: LogSource,
        first: LogChunk,
        *,
        follow: bool,
        is_over: Callable[[], bool],
        is_gone: Callable[[], bool],
        place: Place,
        show: Callable[[LogChunk | None], bytes] = lambda chunk: chunk.data if chunk else b"",
    ) -> None:
        self.source, self.first, self.is_over, self.is_gone, self.place = source, first, is_over, is_gone, place
        self.wants_more, self._show = follow, show

    def __iter__(self) -> Iterator[bytes]:
        yield from (self._followed() if self.wants_more else map(self._show, self.source.everything(self.first)))
        if rest := self._show(None):
            yield rest

    def _followed(self) -> Iterator[bytes]:
        end = time.monotonic() + FOLLOW_SECONDS
        if self.first.data:
            yield self._show(self.first)
        try:
            for chunk in self._all(end):
                if chunk.data:
                    yield self._show(chunk)
                elif self.is_gone():
                    return
                if time.monotonic() > end:
                    return
        except CloudError as error:
            log.warning("A log stream ends early: %s", error)

    def _all(self, end: float) -> Iterator[LogChunk]:
        """Yields chunks as they come. Polls for the log of a task that has not started yet."""
        chunk, pause, over = self.first, SHORTEST_PAUSE, False
        while not (chunk.complete and over):
            # Checked before the log is read: a task that starts in between has a log that was not there yet.
            offset, over = chunk.offset, self.is_over()
            for news in self.source.follow(chunk):
                chunk = replace(news, placed=chunk.placed)
                yield chunk
            pause = SHORTEST_PAUSE if chunk.offset > offset else min(2 * pause, LONGEST_PAUSE)
            if not chunk.complete or time.monotonic() > end:
                return
            if not over:
                time.sleep(pause)
                yield replace(chunk, data=b"")

    def close(self) -> None:
        self.place.release()
