"""What people look at inside a task: its log, and a short command run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusters.clouds.base import CloudRefused, LogChunk, RunRef

if TYPE_CHECKING:
    from clusters.clouds.local.node import Node


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
    """See `Cloud.exec`."""
    raise CloudRefused("Not possible yet.")
