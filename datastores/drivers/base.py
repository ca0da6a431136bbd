"""The contract between pages and storage. There is one driver per kind; a driver knows no rows, users or requests.

Paths are relative to the datastore, separated by '/', without a slash at either end and without '.' and '..' ("" is the
datastore itself); callers have passed them through `specs.relative_path`. A folder exists only by its contents: listing
an absent one returns an empty page, and storing a file creates its parent folders. All calls may block on the network
for seconds, so no caller may hold a transaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

# Bytes per chunk of a download.
CHUNK = 256 * 1024
# Seconds to connect; patience.py limits the response time.
CONNECT_SECONDS = 3
# The default of `appears`, for callers that need not guard the moment at which a file appears.
ANY_TIME: AbstractContextManager[object] = nullcontext()


class DriverError(Exception):
    """The operation failed. The text is a sentence for people; `field` names the invalid part of the spec ("" for none)."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotThere(DriverError):
    """No such file."""


class NotPossible(DriverError):
    """This kind of datastore, or this datastore, can never do that."""


@dataclass(frozen=True)
class Entry:
    """A file or a folder. `name` is the last part of `path`; folders have neither size nor time. `etag` changes
    whenever the bytes of a file do. `modified` may be any time that a program has set; `since` is when the file last
    changed, if the store knows that separately."""

    name: str
    path: str
    is_folder: bool = False
    size: int = 0
    modified: dt.datetime | None = None
    etag: str = ""
    since: dt.datetime | None = None


@dataclass(frozen=True)
class Listing:
    """Some entries of one folder, ordered by name, and the opaque cursor of the next ones ("" at the end)."""

    entries: tuple[Entry, ...]
    cursor: str = ""


class NoSuchPart(DriverError):
    """The file has none of the requested bytes."""


@dataclass(frozen=True)
class Part:
    """A byte range as in HTTP (RFC 9110, 14.1.2): from `first` to `last`, both inclusive; without `last` to the end;
    without `first` the last `last` bytes."""

    first: int | None
    last: int | None

    def __str__(self) -> str:
        return f"bytes={'' if self.first is None else self.first}-{'' if self.last is None else self.last}"

    def of(self, total: int) -> tuple[int, int]:
        """Start and length of the range in a file of `total` bytes. Raises NoSuchPart."""
        if self.first is None:
            start, end = max(0, total - (self.last or 0)), total
        else:
            start, end = self.first, total if self.last is None else min(total, self.last + 1)
        if start >= end:
            raise NoSuchPart("The file ends before the part that was asked for.")
        return start, end - start


@dataclass(frozen=True)
class Content:
    """A file of `total` bytes being read: `chunks` yields exactly `size` bytes from `start` on, or raises DriverError.
    Consume or close it."""

    size: int
    chunks: Iterator[bytes]
    total: int
    start: int = 0
    etag: str = ""


@dataclass(frozen=True)
class Carried:
    """The result of a move. `is_over` unless time ran out; `kept` counts files that stay because another file is at
    their destination."""

    is_over: bool = True
    kept: int = 0


class Stream(Protocol):
    """The source of an upload: `read(n)` returns at most n bytes, and none at the end."""

    def read(self, size: int = -1, /) -> bytes: ...


class Unseen:
    """Base of kinds whose files only tasks can see; `why` explains that. Each kind implements its own `test`."""

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
        """Reads, and returns a sentence about what was reached. Raises DriverError naming the invalid field. Changes nothing."""

    def list(self, folder: str, *, search: str = "", cursor: str = "", limit: int = 200) -> Listing:
        """One level of `folder`, only names that start with `search`. A cursor of another listing raises DriverError."""

    def walk(self, folder: str) -> Iterator[Entry]:
        """Yields all files in `folder` and below, unordered, fetched as they are consumed."""

    def look(self, path: str) -> Entry:
        """Returns one file. Raises NotThere."""

    def open(self, path: str, part: Part | None = None) -> Content:
        """Raises NotThere, NoSuchPart. Servers without range support return the whole file."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`: fewer at the end, none beyond it. Raises NotThere."""

    def upload(
        self, path: str, stream: Stream, size: int, *, appears: AbstractContextManager[object] = ANY_TIME
    ) -> None:
        """Stores `size` bytes of `stream` atomically, replacing a file of that name. `appears` is entered once all
        bytes have arrived and left when the file is in place; if it raises, nothing is stored."""

    def begin(self, path: str) -> str:
        """Begins a multipart upload; returns its id."""

    def write_part(self, path: str, upload: str, number: int, start: int, data: bytes) -> str:
        """Stores or replaces part `number`, from 1, at offset `start` of the file; returns its ETag. Raises NotThere if
        the upload was finished or aborted."""

    def part_url(self, path: str, upload: str, number: int, size: int, seconds: int) -> str:
        """A URL at which its holder may PUT part `number`, of exactly `size` bytes, for `seconds`. Sends no request.
        Raises NotPossible if the store has none."""

    def parts(self, path: str, upload: str, after: int = 0) -> Mapping[int, tuple[int, str]]:
        """The stored parts from number `after` + 1 on: number → (bytes, ETag). Raises NotThere, and NotPossible if the
        store cannot list parts."""

    def finish(self, path: str, upload: str, etags: Sequence[str]) -> None:
        """Makes the file from its parts, replacing one of that name. Raises NotThere as above."""

    def abort(self, path: str, upload: str) -> None:
        """Discards the parts. Does nothing if the upload is absent."""

    def copy(self, path: str, to: str) -> None:
        """Copies a file, replacing one of that name. Raises NotThere."""

    def move(self, path: str, to: str) -> None:
        """Moves a file, replacing one of that name; a crash may leave both. Raises NotThere."""

    def carry(self, path: str, to: str, *, is_folder: bool, before: dt.datetime | None, seconds: float) -> Carried:
        """Moves a file or a folder with its contents, replacing nothing. Starts no further file after `seconds`. After
        a timeout or a crash the caller repeats the call until it is over: a file that is in both places is deleted from
        the first. Files written after `before` stay. An absent source counts as moved."""

    def delete(self, path: str) -> None:
        """Deletes one file. Does nothing if it is absent."""

    def delete_folder(self, folder: str) -> int:
        """Deletes a folder with its contents; returns the number of deleted files."""
