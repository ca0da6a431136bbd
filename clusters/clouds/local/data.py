"""The data of one run: folders of this machine, and the process that fetches and stores remote ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from clusters.clouds.base import StorageState

if TYPE_CHECKING:
    from clusters.clouds.local.runs import Run


class Data:
    """`ready` lets tasks start; `over` says that nothing is left to store (or that it was given up: not `stored`)."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.state: StorageState = "none"
        self.message = ""
        self.ready = False
        self.over = False
        self.stored = True

    @property
    def scratch(self) -> Path:
        return self.run.folder / "scratch"

    def place(self, number: int) -> Path:
        """The folder that holds a copy of mount `number`."""
        return self.run.folder / "mounts" / str(number)

    def resume(self) -> None:
        pass

    def start(self) -> None:
        if self.ready:
            return
        self.scratch.mkdir(exist_ok=True)
        if self.run.uid is not None:
            os.chown(self.scratch, self.run.uid, self.run.uid)
        self.ready = True
        self.run.node.wake(self.run)

    def finish(self) -> None:
        self.over = True

    def pause(self) -> None:
        self.over = True
