"""Searching whole logs on the server, a piece after the other: what is looked for is found wherever it stands, and nothing is
held but a piece and the first hits. Case matters not for Latin letters."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import LogChunk
from clusters.logs.lines import Line

# What is read at once, and how long is searched.
PIECE, SECONDS = 4 * 1024 * 1024, 20.0
SHOWN = 300
# A line with one of the words, small, in it is an error when it also looks like one.
_WORDS = (b"error", b"exception", b"traceback", b"fatal", b"critical", b"panic")
_ERROR = re.compile(
    rb"\b(?:ERROR|FATAL|CRITICAL|Traceback \(most recent call last\)|panic:|[Ff]atal error|error:)|(?:Error|Exception)\b"
)

Read = Callable[[int, str], LogChunk]


@dataclass(frozen=True)
class Found:
    """The first hits, how many lines are hits in all, how many lines were searched, and whether these are all there are."""

    hits: tuple[Line, ...]
    total: int
    lines: int
    complete: bool


def search(read: Read, words: str, most: int, until: float) -> Found:
    """Lines with `words` in them, found before the clock says `until`. `read(offset, cursor)` gives the next chunk of about PIECE
    bytes. Raises CloudError."""
    # As the lines will be: other letters than Latin ones stay as they are.
    wanted = words.encode().lower()
    hits: list[Line] = []
    total, lines = 0, 0
    for piece in _pieces(read) if time.monotonic() <= until else ():
        small, at, line, counted = piece.data.lower(), 0, piece.line, 0
        while (found := small.find(wanted, at)) >= 0:
            total += 1
            if len(hits) < most:
                start = small.rfind(b"\n", 0, found) + 1
                line += small.count(b"\n", counted, start)
                counted = start
                hits.append(piece.at(start, line))
            at = small.find(b"\n", found) + 1
            if not at:
                break
        lines = piece.line + piece.data.count(b"\n") + (not piece.data.endswith(b"\n"))
        if time.monotonic() > until:
            return Found(tuple(hits), total, lines, complete=False)
    return Found(tuple(hits), total, lines, complete=time.monotonic() <= until)


def first_error(read: Read, until: float) -> Found:
    """The first line that looks like an error."""
    lines = 0
    for piece in _pieces(read) if time.monotonic() <= until else ():
        small = piece.data.lower()
        best = min((at for word in _WORDS if (at := _error(piece.data, small, word)) >= 0), default=-1)
        if best >= 0:
            line = piece.line + small.count(b"\n", 0, best)
            return Found((piece.at(best, line),), 1, line + 1, complete=True)
        lines = piece.line + small.count(b"\n")
        if time.monotonic() > until:
            return Found((), 0, lines, complete=False)
    return Found((), 0, lines, complete=time.monotonic() <= until)


def _error(data: bytes, small: bytes, word: bytes) -> int:
    """Where the first line begins that has `word` in it and looks like an error; -1: there is none."""
    at = 0
    while (found := small.find(word, at)) >= 0:
        start, end = small.rfind(b"\n", 0, found) + 1, small.find(b"\n", found)
        if _ERROR.search(data, start, end if end >= 0 else len(data)):
            return start
        if end < 0:
            return -1
        at = end + 1
    return -1


@dataclass(frozen=True)
class _Piece:
    """Whole lines: `line` is the number of the first and `offset` where it begins."""

    data: bytes
    offset: int
    line: int
    marks: bytes

    def at(self, start: int, number: int) -> Line:
        end = self.data.find(b"\n", start)
        text = self.data[start : end if end >= 0 else None]
        return Line(marks.at(self.marks, self.offset + start), self.offset + start, number, text[: 4 * SHOWN])


def _pieces(read: Read) -> Iterator[_Piece]:
    offset, cursor, rest, line, known = 0, "", b"", 0, b""
    while True:
        chunk = read(offset, cursor)
        if not chunk.data:
            break
        data, known = rest + chunk.data, known[-marks.SIZE :] + chunk.marks
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) > PIECE else 0)
        if whole:
            yield _Piece(data[:whole], chunk.offset - len(data), line, known)
            line += data.count(b"\n", 0, whole)
        rest = data[whole:]
        offset, cursor = chunk.offset, chunk.cursor
        if chunk.complete:
            break
    if rest:
        yield _Piece(rest, offset - len(rest), line, known)
