"""The contract between pages and wherever data lies. One driver a kind; a driver knows no rows, no people and no requests.

Paths are relative to the datastore, divided by '/', without a slash at either end and without '.' and '..' ("" is the
datastore itself); callers have passed them through `specs.relative_path`. A folder exists by what is in it, so listing one that
does not exist gives an empty page, and storing a file makes the folders above it. All calls may block on the network for
seconds: no caller holds a transaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

# Bytes of one piece of a download.
CHUNK = 256 * 1024
# Seconds that a connection may take to be made; how long an answer may take says patience.py.
CONNECT_SECONDS = 3
# What is entered while a file comes to be under its name, where nobody wants to know when that is.
ANY_TIME: AbstractContextManager[object] = nullcontext()


class DriverError(Exception):
    """It did not work. The text is a sentence for people; `field` names the part of the spec to mend ("" for none)."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotThere(DriverError):
    """No such file."""


class NotPossible(DriverError):
    """This kind of datastore, or this one, can never do that."""


@dataclass(frozen=True)
class Entry:
    """A file or a folder. `name` is the last part of `path`; folders have neither size nor time.

    `etag` changes whenever the bytes of a file do. `modified` may be any time that a program gave to a file; `since` is when it
    came to be as it is, where that is known apart from it.
    """

    name: str
    path: str
    is_folder: bool = False
    size: int = 0
    modified: dt.datetime | None = None
    etag: str = ""
    since: dt.datetime | None = None


@dataclass(frozen=True)
class Listing:
    """Some entries of one folder, in the order of their names, and the opaque position of the next ones ("" at the end)."""

    entries: tuple[Entry, ...]
    cursor: str = ""


class NoSuchPart(DriverError):
    """The file has none of the bytes that were asked for."""


@dataclass(frozen=True)
class Part:
    """Bytes of a file that are wanted, as HTTP counts them (RFC 9110, 14.1.2): from `first` to `last`, both included; without
    `last` to the end; without `first` the `last` last ones."""

    first: int | None
    last: int | None

    def __str__(self) -> str:
        return f"bytes={'' if self.first is None else self.first}-{'' if self.last is None else self.last}"

    def of(self, total: int) -> tuple[int, int]:
        """Where it starts in a file of `total` bytes, and how many bytes it has. Raises NoSuchPart."""
        if self.first is None:
            start, end = max(0, total - (self.last or 0)), total
        else:
            start, end = self.first, total if self.last is None else min(total, self.last + 1)
        if start >= end:
            raise NoSuchPart("The file ends before the part that was asked for.")
        return start, end - start


@dataclass(frozen=True)
class Content:
    """A file of `total` bytes being read: exactly `size` of them, from `start` on, come out of `chunks`, or DriverError. Iterate
    it to the end or close it."""

    size: int
    chunks: Iterator[bytes]
    total: int
    start: int = 0
    etag: str = ""


@dataclass(frozen=True)
class Carried:
    """How moving went: `is_over` unless time ran out; of what stays, `kept` files do because something else lies there."""

    is_over: bool = True
    kept: int = 0


class Stream(Protocol):
    """What an upload is read from: `read(n)` gives at most n bytes, and none at the end."""

    def read(self, size: int = -1, /) -> bytes: ...


class Unseen:
    """The files of a kind that only tasks see; `why` says so. A kind says for itself what can be tried."""

    why = ""

    def list(self, folder: str, *, search: str = "", cursor: str = "", limit: int = 200) -> Listing:
        raise NotPossible(self.why)

    def walk(self, folder: str) -> Iterator[Entry]:
        raise NotPossible(self.why)

    def look(self, path: str) -> Entry:
        raise NotPossible(self.why)

    def open(self, path: str, part: Part | None = None) -> Content:
        raise NotPossible(self.why)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        raise NotPossible(self.why)

    def upload(
        self, path: str, stream: Stream, size: int, *, appears: AbstractContextManager[object] = ANY_TIME
    ) -> None:
        raise NotPossible(self.why)

    def begin(self, path: str) -> str:
        raise NotPossible(self.why)

    def write_part(self, path: str, upload: str, number: int, start: int, data: bytes) -> str:
        raise NotPossible(self.why)

    def part_url(self, path: str, upload: str, number: int, size: int, seconds: int) -> str:
        raise NotPossible(self.why)

    def parts(self, path: str, upload: str, after: int = 0) -> Mapping[int, tuple[int, str]]:
        raise NotPossible(self.why)

    def finish(self, path: str, upload: str, etags: Sequence[str]) -> None:
        raise NotPossible(self.why)

    def abort(self, path: str, upload: str) -> None:
        raise NotPossible(self.why)

    def copy(self, path: str, to: str) -> None:
        raise NotPossible(self.why)

    def move(self, path: str, to: str) -> None:
        raise NotPossible(self.why)

    def carry(self, path: str, to: str, *, is_folder: bool, before: dt.datetime | None, seconds: float) -> Carried:
        raise NotPossible(self.why)

    def delete(self, path: str) -> None:
        raise NotPossible(self.why)

    def delete_folder(self, folder: str) -> int:
        raise NotPossible(self.why)


class Driver(Protocol):
    def test(self) -> str:
        """A sentence about what was reached. Raises DriverError naming the field to mend. Changes nothing there."""

    def list(self, folder: str, *, search: str = "", cursor: str = "", limit: int = 200) -> Listing:
        """One level of `folder`, only names that start with `search`. A cursor of another listing gives DriverError."""

    def walk(self, folder: str) -> Iterator[Entry]:
        """All files in `folder` and below, in no promised order, asked for as they are consumed."""

    def look(self, path: str) -> Entry:
        """One file. Raises NotThere."""

    def open(self, path: str, part: Part | None = None) -> Content:
        """Raises NotThere, NoSuchPart. A server that knows no parts gives the whole file."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`, fewer at the end, none behind it. Raises NotThere."""

    def upload(
        self, path: str, stream: Stream, size: int, *, appears: AbstractContextManager[object] = ANY_TIME
    ) -> None:
        """Stores `size` bytes of `stream`, replacing a file of that name; all of it or nothing. When all have come `appears` is
        entered, and left when the file lies there: what it raises lets nothing be stored."""

    def begin(self, path: str) -> str:
        """Begins to store a file in parts; what to call that by."""

    def write_part(self, path: str, upload: str, number: int, start: int, data: bytes) -> str:
        """Stores part `number`, from 1, whose first byte is byte `start` of the file, or replaces it; the part's ETag. Raises
        NotThere for an upload that was finished or aborted."""

    def part_url(self, path: str, upload: str, number: int, size: int, seconds: int) -> str:
        """An address at which part `number`, of exactly `size` bytes, can be PUT by whoever has it, for so long. Asks nobody.
        Raises NotPossible where there is none."""

    def parts(self, path: str, upload: str, after: int = 0) -> Mapping[int, tuple[int, str]]:
        """The parts that have come, from number `after` + 1 on: number → bytes and ETag. Raises NotThere, and NotPossible where
        nobody but `write_part` knows."""

    def finish(self, path: str, upload: str, etags: Sequence[str]) -> None:
        """Makes the file of its parts, replacing one of that name. Raises NotThere as above."""

    def abort(self, path: str, upload: str) -> None:
        """Forgets the parts. An upload that is absent is as good as aborted."""

    def copy(self, path: str, to: str) -> None:
        """Makes another file of the same bytes, replacing one of that name. Raises NotThere."""

    def move(self, path: str, to: str) -> None:
        """The same, and afterwards the first one is gone; who dies meanwhile may leave both. Raises NotThere."""

    def carry(self, path: str, to: str, *, is_folder: bool, before: dt.datetime | None, seconds: float) -> Carried:
        """Moves a file, or a folder with everything in it, and replaces nothing. Begins no other file after `seconds`. Whoever
        ran out of time, or died, does the same again until it is over: a file that lies in both places as one and the same
        is taken from the first. Files that were written after `before` stay. What is absent has been moved."""

    def delete(self, path: str) -> None:
        """Removes one file. One that is absent is as good as removed."""

    def delete_folder(self, folder: str) -> int:
        """Removes a folder with everything in it; the number of files that were removed."""
