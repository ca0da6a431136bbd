"""Lines of logs of pods: positions in a stream that the API can only start at a whole second. Pure.

Every line has the time at which the node wrote it. A `Place` is a line's time and the number of bytes before it; with the number
of lines it is the cursor of a `LogChunk`. So a reader that continues reads the new lines and at most a second more, even if the
node has rotated the file (kubelets start a new one at 10 MiB, and the API reads only the newest) or the program was restarted in
its pod. If two threads write lines in the same microsecond and a reader stops between them, one line may be missed.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.marks import Marker

# Suffix of the cursor of a log that was not read from its beginning.
LATE = ".late"
# 2026-01-02T03:04:05.123456789+02:00
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
# Maximum bytes of a line's time.
STAMP = 40


@dataclass(frozen=True)
class Place:
    """The position after a line. `stamp`: its time in ns. `same`: the number of lines with that time so far. `offset` bytes and
    `line` lines precede it, counted from the beginning of the log or, if not `placed`, from where reading began near its end."""

    stamp: int = 0
    same: int = 0
    offset: int = 0
    line: int = 0
    placed: bool = True

    @classmethod
    def read(cls, cursor: str) -> Place:
        """Parses a cursor. Returns the beginning for an invalid one, because cursors come from users."""
        words = cursor.removesuffix(LATE).split(".")
        if len(words) != 4 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            return cls()
        stamp, same, offset, line = map(int, words)
        return cls(stamp, same, offset, line, placed=not cursor.endswith(LATE))

    def __str__(self) -> str:
        return f"{self.stamp}.{self.same}.{self.offset}.{self.line}{'' if self.placed else LATE}"

    @property
    def since(self) -> str:
        return dt.datetime.fromtimestamp(self.stamp // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Text:
    """Strips timestamps from a body, turns them into marks, and skips what lies before a place.

    `feed` yields text in pieces; `place` moves after a line with its last piece. With `until`, a time in ns, it is `over` at the
    first line that is not older.
    """

    def __init__(self, place: Place, until: int | None = None) -> None:
        self.begin = place
        # The fields of `place`, kept apart because creating one per line is too slow for millions of lines.
        self._last, self._same, self._begins, self._line = place.stamp, place.same, place.offset, place.line
        self.until, self.over = until, False
        self.marker, self.marks = Marker(place.offset, place.line), b""
        # The time of the first line read.
        self.first = 0
        self._passed = not place.stamp
        self._seen = 0
        self._rest = b""
        self._stamp: int | None = None
        self._length = 0

    @property
    def place(self) -> Place:
        """The position after the last complete line."""
        return Place(self._last, self._same, self._begins, self._line, self.begin.placed)

    @property
    def cursor(self) -> str:
        return str(self.place) if self._last else ""

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, at = self._rest + data, 0
        while at < len(data) and not self.over:
            if self._stamp is None:
                space = data.find(b" ", at, at + STAMP)
                if space < 0 and len(data) - at < STAMP:
                    break
                stamp = nanoseconds(data[at : max(space, at)])
                if self.until is not None and stamp >= self.until:
                    self.over = True
                    break
                self._stamp = stamp
                self._passed = self._passed or self._is_new(stamp)
                at, self._length = space + 1, 0
            end = data.find(b"\n", at) + 1
            piece = data[at : end or None]
            at += len(piece)
            self._length += len(piece)
            if self._passed:
                self.first = self.first or self._stamp
                self.marks += self.marker.add(piece, self._stamp // 1000)
            if end:
                self._end_line()
            if self._passed:
                yield piece
        self._rest = data[at:]

    def end(self) -> None:
        """Treats the unfinished line as complete."""
        if self._stamp is not None:
            self._end_line()

    def _is_new(self, stamp: int) -> bool:
        if stamp == self.begin.stamp:
            self._seen += 1
        return stamp > self.begin.stamp or self._seen > self.begin.same

    def _end_line(self) -> None:
        stamp, self._stamp = self._stamp or 0, None
        if self._passed:
            # Lines of a program's two streams may be stored out of order.
            if stamp <= self._last:
                self._same += stamp == self._last
            else:
                self._last, self._same = stamp, 1
            self._begins += self._length
            self._line = self.marker.line


class NoLog(CloudError):
    """The node answered with a message instead of the log, for example because it has removed the container."""


def nanoseconds(stamp: bytes) -> int:
    """Parses RFC 3339 with up to nine digits of a second. Raises NoLog for anything else."""
    if len(stamp) == 30 and stamp[19:20] == b"." and stamp[29:] == b"Z" and stamp[20:29].isdigit():
        return _second(stamp[:19] + b"Z") + int(stamp[20:29])
    found = _STAMP.fullmatch(stamp.decode("ascii", "replace"))
    if not found:
        raise NoLog("The node does not give the log.")
    return _second((found[1] + found[3]).encode()) + int((found[2] or "").ljust(9, "0"))


@lru_cache(maxsize=64)
def _second(stamp: bytes) -> int:
    """Returns ns. Cached, because consecutive lines share seconds."""
    try:
        return int(dt.datetime.fromisoformat(stamp.decode()).timestamp()) * 10**9
    except ValueError as error:
        raise NoLog("The node does not give the log.") from error
