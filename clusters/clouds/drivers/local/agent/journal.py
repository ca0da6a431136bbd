"""Numbered news: an append-only file of JSON lines from which a watch can resume.

A position is `<journal>.<number of the last item seen>`. The file keeps only the last items; older positions and those of another
journal have expired. A reboot of the machine starts a new journal, because the last lines of the old one may not have reached the
disk, and their numbers must not be reused.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections import deque
from collections.abc import Callable
from pathlib import Path

from clusters.clouds.drivers.base import Batch, Seen, WatchExpired
from clusters.clouds.drivers.local import protocol

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BATCH = 500


class Journal:
    """Keeps at least `keep` items; the file is rewritten at twice as many."""

    def __init__(self, path: Path, keep: int = 20_000) -> None:
        self.path, self.keep = path, keep
        self.items: deque[Seen] = deque()
        self.last = 0
        self.lines = 0
        self.listeners: set[Callable[[], None]] = set()
        boot = BOOT_ID.read_text().strip()
        if not self._load(boot):
            self.name = secrets.token_hex(6)
            self.boot = boot
            self._rewrite()
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115  open as long as the agent lives

    def _load(self, boot: str) -> bool:
        try:
            lines = self.path.read_bytes().split(b"\n")
            head = json.loads(lines[0])
            if head["boot"] != boot:
                return False
            self.name, self.boot, self.last = head["journal"], boot, head["after"]
            for line in lines[1:-1]:
                self.items.append(protocol.seen_from(json.loads(line)))
                self.last += 1
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            self.items.clear()
            self.last = 0
            return False
        self._rewrite()
        return True

    def _rewrite(self) -> None:
        while len(self.items) > self.keep:
            self.items.popleft()
        head = {"journal": self.name, "boot": self.boot, "after": self.last - len(self.items)}
        new = self.path.with_name(self.path.name + ".new")
        new.touch(mode=0o600)
        new.write_bytes(protocol.dumps(head) + b"".join(protocol.dumps(item) for item in self.items))
        os.rename(new, self.path)
        self.lines = len(self.items)

    @property
    def position(self) -> str:
        return f"{self.name}.{self.last}"

    def append(self, items: list[Seen]) -> None:
        """Writes news, then calls the listeners. Raises OSError if nothing was written."""
        if not items:
            return
        end = os.fstat(self.file.fileno()).st_size
        data = b"".join(protocol.dumps(item) for item in items)
        try:
            if self.file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self.file.fileno(), end)  # a partial line would be read as the end
            raise
        self.items.extend(items)
        self.last += len(items)
        self.lines += len(items)
        if self.lines >= 2 * self.keep:
            self.file.close()
            self._rewrite()
            self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        for listener in self.listeners:
            listener()

    def since(self, position: str) -> Batch:
        """Returns the items after `position`, at most BATCH. Raises WatchExpired."""
        name, _, number = position.rpartition(".")
        if name != self.name or not number.isdecimal() or not self.last - len(self.items) <= int(number) <= self.last:
            raise WatchExpired("This position is older than what the node agent remembers.")
        start = int(number) - (self.last - len(self.items))
        items = tuple(self.items[i] for i in range(start, min(len(self.items), start + BATCH)))
        return Batch(f"{self.name}.{int(number) + len(items)}", items)
