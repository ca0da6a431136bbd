"""Input that is divided among tasks: each task sees a folder with its part of the files."""

from __future__ import annotations

import os
import stat

from clusters.clouds.drivers.parts import WHOLE, link, shown
from datastores import trees
from datastores.listing import TRASH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def share(folder: str, part: int) -> str:
    """Returns the folder with a part of the divided input in `folder`; `part` -1 for tasks that get none."""
    return f"{folder}-{part}" if part >= 0 else f"{folder}-none"


def divide(mount: dict[str, Any], source: str) -> None:
    """Makes a folder for each part, and one for tasks that get none. They contain hard links to files fetched into `source`, so
    no file is stored twice, or symbolic links to the path of a mounted source in tasks. Idempotent, because no task reads them
    yet."""
    folder, parts, fold, folds = (mount[key] for key in ("folder", "parts", "fold", "folds"))
    names = [name for name in scan(source) if not name.startswith(f"{TRASH}/")]
    for part in (-1, *range(parts)):
        found = shown(names, part, parts, fold, folds)
        there = share(folder, part)
        if os.path.isdir(there):
            trees.remove(there)
        os.mkdir(there, 0o755)
        if mount["kind"] != "s3":
            link(WHOLE, there, found)
            continue
        for name, appears in found:
            os.makedirs(os.path.dirname(os.path.join(there, appears)), exist_ok=True)
            os.link(os.path.join(source, name), os.path.join(there, appears), follow_symlinks=False)


def scan(folder: str) -> list[str]:
    """Returns the relative path of every regular file below `folder`. Follows no links."""
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return [found.path for found in trees.walk(top) if stat.S_ISREG(found.info.st_mode)]
    finally:
        os.close(top)
