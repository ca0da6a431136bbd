"""When the lines of a log were written: a list of marks beside it.

A mark says: from this byte on, which is in (or the start of) this line, everything was written at this time. There is not one for
each line: what came within a millisecond shares one. And they are bounded: where there are more than FREE, and one for each 64
bytes, short lines share one for a second, so that marks take less than half of what they are about. Marks are records of a fixed
size in the order of bytes, lines and times alike: each of the three is found in a file of any size by halving it.

The process that owns a task imports this; nothing here may cost it milliseconds.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The byte, the line (both from 0), and the time in µs since 1970.
RECORD = struct.Struct("<QQQ")
SIZE = RECORD.size
OFFSET, LINE, TIME = 0, 1, 2
# Records are looked at in blocks of so many.
BLOCK = 1024
CLOSE_US, EVERY_US, EVERY_BYTES, FREE = 1_000, 1_000_000, 64, 40_000


class Marker:
    """Makes the marks of a log while it is written, or read from its beginning."""

    def __init__(self, offset: int = 0, line: int = 0) -> None:
        self.offset, self.line = offset, line
        self._last: int | None = None
        self._made, self._begin = 0, offset

    def add(self, data: bytes, time: int) -> bytes:
        """The marks that `data`, written at `time`, adds: at most one. A clock that was set back stands still."""
        mark = b""
        last = self._last
        time = time if last is None else max(time, last)
        few = self._made < FREE + (self.offset - self._begin) // EVERY_BYTES
        if data and (last is None or time - last >= (CLOSE_US if few else EVERY_US)):
            self._last = time
            self._made += 1
            mark = RECORD.pack(self.offset, self.line, time)
        self.offset += len(data)
        self.line += data.count(b"\n")
        return mark


def each(marks: bytes) -> Iterator[tuple[int, int, int]]:
    """(byte, line, time) of each."""
    return RECORD.iter_unpack(marks[: len(marks) // SIZE * SIZE])


def at(marks: bytes, offset: int) -> int:
    """The time of what lies at byte `offset`, in µs; 0 when it is not known."""
    found = last(lambda start, count: marks[start * SIZE : (start + count) * SIZE], len(marks) // SIZE, OFFSET, offset)
    return found[1][TIME] if found else 0


def last(
    read: Callable[[int, int], bytes], count: int, column: int, most: int
) -> tuple[int, tuple[int, int, int]] | None:
    """The last of `count` marks whose `column` is at most `most`, with its number; `read(start, n)` gives n of them from number
    `start` on. None when all are beyond."""
    low, high, found = 0, count, None
    while low < high:
        # A block in the middle: the mark is in it, or before, or behind it.
        start = max(low, min((low + high) // 2, high - BLOCK))
        block = list(each(read(start, min(BLOCK, high - start))))
        if not block or block[0][column] > most:
            high = start
        else:
            inside = _before(block, column, most)
            found = start + inside, block[inside]
            if inside < len(block) - 1:
                return found
            low = start + len(block)
    return found


def _before(block: list[tuple[int, int, int]], column: int, most: int) -> int:
    low, high = 0, len(block)
    while high - low > 1:
        middle = (low + high) // 2
        if block[middle][column] <= most:
            low = middle
        else:
            high = middle
    return low


def between(read: Callable[[int, int], bytes], count: int, start: int, end: int) -> bytes:
    """The marks of the bytes from `start` to `end`: that of `start`, and all that follow before `end`."""
    found = last(read, count, OFFSET, start)
    number = found[0] if found else 0
    kept = b""
    while number < count:
        block = read(number, BLOCK)
        beyond = next((n for n, mark in enumerate(each(block)) if mark[OFFSET] >= end), None)
        if beyond is not None:
            return kept + block[: beyond * SIZE]
        if not block:
            break
        kept += block
        number += len(block) // SIZE
    return kept
