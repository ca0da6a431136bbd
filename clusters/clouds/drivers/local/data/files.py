"""Small JSON files that are replaced atomically: readers see the old or the new content, never a part."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Replaces `path` (mode 0600). `durable`: waits for the disk, for data that must survive a power failure."""
    new = path.with_name(path.name + ".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "w") as file:
        json.dump(value, file, ensure_ascii=False)
        if durable:
            file.flush()
            os.fsync(handle)
    os.rename(new, path)
    if durable:
        sync_folder(path.parent)


def read_json(path: Path | str) -> Any:
    """Returns the value in `path`, or None if there is no such file."""
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def sync_folder(path: Path) -> None:
    """Waits until a folder's entries are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def when(seconds: float | None) -> dt.datetime | None:
    """Converts seconds since 1970 into a UTC time."""
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC)
