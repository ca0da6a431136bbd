"""Finds pieces of a seekable log by bytes, lines or times, with the marks beside it (marks.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import LogChunk

# Bytes read at once to count lines.
PIECE = 1024 * 1024


@dataclass(frozen=True)
class Wanted:
    """Which piece of a log to read, as in `Cloud.log`."""

    offset: int
    limit: int
    tail: int | None
    since: int | None
    line: int | None


@dataclass(frozen=True)
class Lines:
    """A log of `size` bytes with `count` marks. `read(offset, n)` returns n bytes, fewer at its end; `read_marks(number, n)`
    returns n marks from that number on."""

    size: int
    count: int
    read: Callable[[int, int], bytes]
    read_marks: Callable[[int, int], bytes]

    def piece(self, wanted: Wanted, *, complete: bool) -> LogChunk:
        """Returns the piece. `complete`: nothing will be written after `size`."""
        start = min(self._start(wanted), self.size)
        length = min(wanted.limit, self.size - start)
        data = self.read(start, length) if length else b""
        end = start + len(data)
        found = marks.between(self.read_marks, self.count, start, end)
        return LogChunk(data, end, complete and end >= self.size, line=self._line(start), marks=found)

    def _start(self, wanted: Wanted) -> int:
        if wanted.tail is not None:
            return max(0, self.size - wanted.tail)
        if wanted.since is not None:
            before = marks.last(self.read_marks, self.count, marks.TIME, wanted.since - 1)
            if before is None:
                return 0
            following = self.read_marks(before[0] + 1, 1) if before[0] + 1 < self.count else b""
            # The time may lie within a line: then the next line is the first new one.
            return self._behind(next(marks.each(following))[marks.OFFSET] - 1, 1) if following else self.size
        if wanted.line is not None:
            found = marks.last(self.read_marks, self.count, marks.LINE, wanted.line - 1)
            begin, line, _ = found[1] if found else (0, 0, 0)
            return self._behind(begin, wanted.line - line)
        return wanted.offset

    def _line(self, offset: int) -> int:
        """Returns how many lines end before `offset`."""
        found = marks.last(self.read_marks, self.count, marks.OFFSET, offset)
        begin, line, _ = found[1] if found else (0, 0, 0)
        return line + sum(data.count(b"\n") for data in self._pieces(begin, offset))

    def _behind(self, offset: int, lines: int) -> int:
        """Returns the offset of the line that begins `lines` lines after the one at `offset`."""
        for data in self._pieces(offset, self.size if lines else offset):
            if (count := data.count(b"\n")) >= lines:
                return offset + len(data) - len(data.split(b"\n", lines)[-1])
            lines, offset = lines - count, offset + len(data)
        return offset

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        while start < end and (data := self.read(start, min(PIECE, end - start))):
            yield data
            start += len(data)
