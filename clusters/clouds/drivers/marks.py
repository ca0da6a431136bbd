"""When the lines of a log were written: a list of marks beside it.

A mark means: from this byte on, which is in (or starts) this line, everything was written at this time. Writes within a
millisecond share a mark. The number of marks is bounded: beyond FREE marks plus one per 64 bytes, short lines share one mark per
second, so that marks take less than half the size of the log. Marks are fixed-size records, sorted by byte, line and time alike:
each can be found by binary search in a file of any size.

The process that owns a task imports this, so the import must not cost it milliseconds.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Byte and line (from 0), and time in µs since 1970.
RECORD = struct.Struct("<QQQ")
SIZE = RECORD.size
OFFSET, LINE, TIME = 0, 1, 2
# Records read at once.
BLOCK = 1024
CLOSE_US, EVERY_US, EVERY_BYTES, FREE = 1_000, 1_000_000, 64, 40_000


class Marker:
    """Creates the marks of a log while it is written, or read from the beginning."""

    def __init__(self, offset: int = 0, line: int = 0) -> None:
        self.offset, self.line = offset, line
        self._last: int | None = None
        self._made, self._begin = 0, offset

    def add(self, data: bytes, time: int) -> bytes:
        """Returns the mark, or b"", for `data` written at `time`. If the clock was set back, time stands still."""
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
    """Yields (byte, line, time) of each mark."""
    return RECORD.iter_unpack(marks[: len(marks) // SIZE * SIZE])


def at(marks: bytes, offset: int) -> int:
    """Returns the time of byte `offset` in µs; 0 if unknown."""
    found = last(lambda start, count: marks[start * SIZE : (start + count) * SIZE], len(marks) // SIZE, OFFSET, offset)
    return found[1][TIME] if found else 0


def last(
    read: Callable[[int, int], bytes], count: int, column: int, most: int
) -> tuple[int, tuple[int, int, int]] | None:
    """Returns number and values of the last of `count` marks whose `column` is at most `most`, or None. `read(start, n)` returns
    n marks from number `start` on."""
    low, high, found = 0, count, None
    while low < high:
        # A block from the middle: the mark is in it, before it or after it.
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
    """Returns the marks for the bytes from `start` to `end`: the one that covers `start`, and those up to `end`."""
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
