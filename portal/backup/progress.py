"""Lines for the person who waits: what is being done, and every few seconds how far it is."""

from __future__ import annotations

import sys
import time
from typing import IO

from portal.backup.archive import Readable

EVERY = 5.0


class Progress:
    """Writes to stderr, so that nothing mixes with what a command gives out."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stderr
        self._read = 0
        self._told = time.monotonic()

    def step(self, what: str) -> None:
        print(f"  {what} …", file=self._out, flush=True)
        self._told = time.monotonic()

    def done(self, what: str) -> None:
        print(what, file=self._out, flush=True)

    def counted(self, stream: Readable, name: str) -> Readable:
        """The same stream; what is read from it counts."""
        return _Counted(self, stream, name)

    def note(self, name: str, size: int) -> None:
        self._read += size
        if time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            print(f"  {amount(self._read)}, now {name}", file=self._out, flush=True)


class _Counted:
    def __init__(self, progress: Progress, stream: Readable, name: str) -> None:
        self._progress, self._stream, self._name = progress, stream, name

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._progress.note(self._name, len(data))
        return data


def amount(size: int) -> str:
    """1.5 GiB"""
    for unit, worth in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= worth:
            return f"{size / worth:.1f} {unit}"
    return f"{size} bytes"
