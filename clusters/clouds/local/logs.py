"""What people look at inside a task: its log, and a short command run beside it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusters.clouds.base import CloudError, LogChunk, RunRef
from clusters.clouds.local import inside

if TYPE_CHECKING:
    from clusters.clouds.local.node import Node

EXEC_BYTES = 1 << 20
EXEC_SECONDS = 60.0
TIMED_OUT = 124


def read(
    node: Node, ref: RunRef, role: str, index: int, attempt: int, offset: int, limit: int, tail: int | None
) -> LogChunk:
    """See `Cloud.log`."""
    folder = node.folder / "runs" / str(ref.id) / "tasks" / f"{role}-{index}-{attempt}"
    running = folder.is_dir() and ref.id in node.runs and not (folder / "seen.json").exists()
    try:
        with open(folder / "log", "rb") as file:
            size = file.seek(0, 2)
            if tail is not None:
                offset, limit = max(0, size - tail), min(limit, tail) if limit else tail
            file.seek(min(offset, size))
            data = file.read(limit)
            end = min(offset, size) + len(data)
    except FileNotFoundError:
        return LogChunk(b"", 0, not running)
    return LogChunk(data, end, not running and end >= size)


async def execute(node: Node, ref: RunRef, role: str, index: int, argv: Sequence[str]) -> tuple[int, bytes]:
    """See `Cloud.exec`. A command that takes too long is ended, with the exit code 124 that timeout(1) would give."""
    run = node.runs.get(ref.id)
    task = next((task for task in run.tasks if task.key == (role, index)), None) if run else None
    if task is None or node.told.get(task.view().uid, task.view()).phase != "Running":  # type: ignore[union-attr]
        raise CloudError("The task does not run.")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", inside.__file__, str(task.folder), *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={},
    )
    output = bytearray()

    async def collect(stream: asyncio.StreamReader) -> None:
        while data := await stream.read(1 << 16):
            output.extend(data[: EXEC_BYTES - len(output)])
            if len(output) >= EXEC_BYTES and process.returncode is None:
                process.kill()

    try:
        if process.stdout is not None:
            await asyncio.wait_for(collect(process.stdout), EXEC_SECONDS)
    except TimeoutError:
        process.kill()
        await process.communicate()
        return TIMED_OUT, bytes(output)
    code = await process.wait()
    return code if code >= 0 else 128 - code, bytes(output)
