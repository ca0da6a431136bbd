"""Searches whole logs on the server, piece by piece: finds every hit, and holds only one piece and the first hits in memory.
The case of Latin letters does not matter."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import LogChunk
from clusters.logs import levels
from clusters.logs.lines import Line

# Bytes read at once, and maximum seconds of a search.
PIECE, SECONDS = 4 * 1024 * 1024, 20.0
SHOWN = 300
# A line is an error if it contains one of these words in lower case and matches _ERROR.
_WORDS = (b"error", b"exception", b"traceback", b"fatal", b"critical", b"panic")
_ERROR, _HARMLESS = re.compile(levels.ERROR.encode()), re.compile(levels.HARMLESS.encode())

Read = Callable[[int, str], LogChunk]


@dataclass(frozen=True)
class Found:
    """The first hits, the number of all hits, the number of lines searched, and whether the search is complete."""

    hits: tuple[Line, ...]
    total: int
    lines: int
    complete: bool


def search(read: Read, words: str, most: int, until: float) -> Found:
    """Lines that contain `words`, found before time.monotonic() reaches `until`. `read(offset, cursor)` returns the next chunk
    of about PIECE bytes. Raises CloudError."""
    # Lower-cased as bytes, like the lines: only Latin letters change.
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
    """Start of the first line that has `word` in it and looks like an error; -1 if there is none."""
    at = 0
    while (found := small.find(word, at)) >= 0:
        start, end = small.rfind(b"\n", 0, found) + 1, small.find(b"\n", found)
        line = start, end if end >= 0 else len(data)
        if _ERROR.search(data, *line) and not _HARMLESS.search(data, *line):
            return start
        if end < 0:
            return -1
        at = end + 1
    return -1


@dataclass(frozen=True)
class _Piece:
    """Whole lines. `line` is the number of the first, `offset` its position in the log."""

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
