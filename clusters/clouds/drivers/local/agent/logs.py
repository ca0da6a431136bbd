"""Access to a running task: its log, and commands beside it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import CloudError, LogChunk, RunRef
from clusters.clouds.drivers.lines import Lines, Wanted
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.agent.node import Node
from clusters.clouds.drivers.local.task import exec as task_exec

# Keeps the tasks alive: the event loop only holds weak references.
_waiting: set[asyncio.Task[int]] = set()


def read(node: Node, ref: RunRef, role: str, index: int, attempt: int, wanted: Wanted) -> LogChunk:
    """See `Cloud.log`."""
    folder = node.folder / "runs" / str(ref.id) / "tasks" / f"{role}-{index}-{attempt}"
    running = folder.is_dir() and ref.id in node.runs and not (folder / "seen.json").exists()
    try:
        with ExitStack() as held:
            log = held.enter_context(open(folder / "log", "rb")).fileno()
            # Read before counting the marks: everything written so far has its mark.
            size = os.fstat(log).st_size
            count, read_marks = held.enter_context(_marks(folder / "log.times", log))
            lines = Lines(size, count, lambda offset, n: os.pread(log, n, offset), read_marks)
            return lines.piece(wanted, complete=not running)
    except FileNotFoundError:
        return LogChunk(b"", 0, not running, absent=True)


@contextmanager
def _marks(path: Path, log: int) -> Iterator[tuple[int, Callable[[int, int], bytes]]]:
    """Opens a log's marks. A log without marks (of a removed attempt) counts as written at once."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        only = marks.RECORD.pack(0, 0, os.fstat(log).st_mtime_ns // 1000)
        yield 1, lambda number, n: only[number * marks.SIZE :]
        return
    try:
        yield (
            os.fstat(handle).st_size // marks.SIZE,
            lambda number, n: os.pread(handle, n * marks.SIZE, number * marks.SIZE),
        )
    finally:
        os.close(handle)


def running_folder(node: Node, ref: RunRef, role: str, index: int) -> Path:
    """Returns the folder of a running task. Raises CloudError."""
    run = node.runs.get(ref.id)
    task = next((task for task in run.tasks if task.key == (role, index)), None) if run else None
    if task is None or node.told.get(task.view().uid, task.view()).phase != "Running":  # type: ignore[union-attr]
        raise CloudError(f"{role}-{index} does not run.")
    return task.folder


async def execute(folder: Path, request: Mapping[str, Any], peer: int) -> None:
    """See `Cloud.exec`. Passes the descriptor `peer` to the process that runs the command (task/exec.py)."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", task_exec.__file__, str(folder), str(peer)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env={},
        pass_fds=(peer,),
    )
    if process.stdin is not None:
        process.stdin.write(protocol.dumps(request))
        process.stdin.close()
    waiting = asyncio.get_running_loop().create_task(process.wait())
    _waiting.add(waiting)
    waiting.add_done_callback(_waiting.discard)
