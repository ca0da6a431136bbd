"""Chunks of logs as lines with their times: for answers with timestamps, for several logs merged, or for search.

Pure. A line is bytes, as the program wrote them. One longer than LONGEST bytes counts as several.
"""

from __future__ import annotations

import datetime as dt
import heapq
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import LogChunk

LONGEST = 1024 * 1024
# Colours and cursor movements of terminals.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


@dataclass(frozen=True)
class Line:
    """`time` in µs since 1970 (0 if unknown), `offset` and `number` from 0. `text` is without the newline."""

    time: int
    offset: int
    number: int
    text: bytes


class Splitter:
    """Cuts consecutive chunks into lines and yields those that contain `wanted` (in lower case)."""

    def __init__(self, wanted: bytes = b"") -> None:
        self._wanted = wanted
        self._rest, self._offset, self._number = b"", 0, 0
        self._marks: deque[tuple[int, int, int]] = deque()
        self._time, self._marked = 0, -1

    def feed(self, chunk: LogChunk) -> Iterator[Line]:
        if not self._rest:
            self._offset, self._number = chunk.start, chunk.line
        for mark in marks.each(chunk.marks):
            # Chunks repeat the last mark before them.
            if mark[marks.OFFSET] > self._marked:
                self._marks.append(mark)
                self._marked = mark[marks.OFFSET]
        *lines, self._rest = (self._rest + chunk.data).split(b"\n")
        # The reason why a log cannot be read is always shown.
        wanted = b"" if chunk.absent else self._wanted
        for text in lines:
            if not wanted or wanted in text.lower():
                yield self._line(text)
            self._offset += len(text) + 1
            self._number += 1
        if len(self._rest) > LONGEST:
            yield from self.end()

    def end(self) -> Iterator[Line]:
        """Yields the last line if it has no newline."""
        text, self._rest = self._rest, b""
        if text and self._wanted in text.lower():
            yield self._line(text)
        self._offset += len(text)

    def _line(self, text: bytes) -> Line:
        while self._marks and self._marks[0][marks.OFFSET] <= self._offset:
            self._time = self._marks.popleft()[marks.TIME]
        return Line(self._time, self._offset, self._number, text)


def lines_of(chunks: Iterable[LogChunk], wanted: bytes = b"") -> Iterator[Line]:
    splitter = Splitter(wanted)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.end()


def merged(logs: Iterable[tuple[str, Iterable[LogChunk]]], wanted: bytes = b"") -> Iterator[tuple[str, Line]]:
    """The lines of several logs by time, holding one line of each. Lines of the same log keep their order."""

    def named(name: str, chunks: Iterable[LogChunk]) -> Iterator[tuple[str, Line]]:
        return ((name, line) for line in lines_of(chunks, wanted))

    return heapq.merge(*(named(*each) for each in logs), key=lambda item: item[1].time)


@dataclass(frozen=True)
class Style:
    """How lines are shown: with times, only those with `search` (ignoring the case of Latin letters), without terminal
    escapes."""

    timestamps: bool = False
    search: str = ""
    clean: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether lines are shown as the program wrote them."""
        return not (self.timestamps or self.search or self.clean)

    @property
    def wanted(self) -> bytes:
        """The text that a Splitter searches for."""
        return self.search.encode().lower()

    def show(self, line: Line, name: str = "") -> bytes:
        """A line with its newline, prefixed by `name`."""
        text = _ESCAPES.sub(b"", line.text) if self.clean else line.text
        begin = f"{name}  " if name else ""
        return (f"{stamp(line.time)} {begin}" if self.timestamps else begin).encode() + text + b"\n"


class Shown:
    """For `LogStream.show`: renders chunks in a style."""

    def __init__(self, style: Style) -> None:
        self._style, self._splitter = style, Splitter(style.wanted)

    def __call__(self, chunk: LogChunk | None) -> bytes:
        lines = self._splitter.end() if chunk is None else self._splitter.feed(chunk)
        return b"".join(map(self._style.show, lines))


def stamp(time: int) -> str:
    """µs since 1970 as RFC 3339; "-" if unknown."""
    if not time:
        return "-"
    at = dt.datetime.fromtimestamp(time // 1_000_000, dt.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{time % 1_000_000:06d}Z"
