"""The log of one task as plain text: what is there now, or what comes until it ends.

A follower asks the cloud again and again, because the contract of a cloud (`Cloud.log`) is a read from an offset; it waits
longer while nothing comes. Every stream ends by itself after FOLLOW_SECONDS and can be taken up again at its offset, so
that a forgotten window does not hold a thread of the web server for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from clusters.clouds.base import Cloud, CloudError, LogChunk, RunRef
from portal.limits import Slot

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 900
CHUNK = 262_144
# The last lines are looked for in this much of the log's end.
TAIL_BYTES = 1024 * 1024
SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 2.0


@dataclass(frozen=True)
class LogSource:
    """Which log. It reads outside of any transaction; every call may raise CloudError."""

    cloud: Cloud
    run: RunRef
    role: str
    index: int
    attempt: int

    def read(self, offset: int) -> LogChunk:
        return self.cloud.log(self.run, self.role, self.index, attempt=self.attempt, offset=offset, limit=CHUNK)

    def last_lines(self, lines: int) -> LogChunk:
        """The last `lines` lines, of at most TAIL_BYTES together."""
        chunk = self.cloud.log(self.run, self.role, self.index, attempt=self.attempt, limit=TAIL_BYTES, tail=TAIL_BYTES)
        kept = chunk.data.splitlines(keepends=True)[-lines:] if lines else []
        return LogChunk(b"".join(kept), chunk.offset, chunk.complete)


class LogStream:
    """An iterable of bytes for a streaming response, which calls `close` whatever happens.

    `first` was read already, so that an error of the cloud is still an error of the request. `is_over` says whether nothing
    more can come although the cloud has no log yet.
    """

    def __init__(
        self, source: LogSource, first: LogChunk, *, follow: bool, is_over: Callable[[], bool], slots: Sequence[Slot]
    ) -> None:
        self.source, self.first, self.follow, self.is_over, self.slots = source, first, follow, is_over, slots

    def __iter__(self) -> Iterator[bytes]:
        chunk, pause, end = self.first, SHORTEST_PAUSE, time.monotonic() + FOLLOW_SECONDS
        while True:
            if chunk.data:
                pause = SHORTEST_PAUSE
                yield chunk.data
            elif not self.follow or (chunk.complete and self.is_over()):
                return
            else:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            if time.monotonic() > end:
                return
            try:
                chunk = self.source.read(chunk.offset)
            except CloudError as error:
                # The status has been sent already. Ending early is all that is left; the reader goes on at its offset.
                log.warning("A log stream ends early: %s", error)
                return

    def close(self) -> None:
        for slot in self.slots:
            slot.release()
