"""Walks and removes folders of any depth without ever following a link.

Others may have made the folders and may change them concurrently. Recursion would fail at the interpreter's limit, a
path at 4,096 bytes, and a stack of open folders at the limit of descriptors. So one folder is open at a time, entered
by its name and left by "..", which must lead back to where we came from.

Only small modules of the standard library are imported here, because processes beside tasks use it, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level(NamedTuple):
    """A folder on the way: its identity, its name and stat result in the folder above, and its subfolders still to visit."""

    identity: tuple[int, int]
    name: str
    info: os.stat_result
    left: list[tuple[str, os.stat_result]]


class Found(NamedTuple):
    """`name` in the open folder `folder`. It is valid until the next step of the walk."""

    folder: int
    name: str
    info: os.stat_result
    way: list[_Level]

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode)

    @property
    def path(self) -> str:
        """The path from the start of the walk. It may be as long as the tree is deep, so it is only built on demand."""
        return "/".join([level.name for level in self.way[1:]] + [self.name])


def walk(top: int, *, unlock: bool = False, closed: bool = True) -> Iterator[Found]:
    """Yields everything below the open folder `top`; a folder comes after its contents. `unlock` first makes folders
    usable for their owner; `closed` yields folders that cannot be opened without their contents. Ends early if a folder
    on the way was moved meanwhile."""
    here = os.open(".", _FOLDER, dir_fd=top)
    try:
        way = [_Level(_identity(os.fstat(here)), "", os.fstat(here), [])]
        yield from _entries(here, way)
        while True:
            if way[-1].left:
                name, info = way[-1].left.pop()
                below = _enter(here, name, unlock=unlock, closed=closed)
                if below < 0:
                    yield Found(here, name, info, way)
                    continue
                os.close(here)
                here = below
                way.append(_Level(_identity(os.fstat(here)), name, info, []))
                yield from _entries(here, way)
                continue
            done = way.pop()
            if not way:
                return
            above = os.open("..", _FOLDER, dir_fd=here)
            os.close(here)
            here = above
            if _identity(os.fstat(here)) != way[-1].identity:
                return
            yield Found(here, done.name, done.info, way)
    finally:
        os.close(here)


def remove(name: str, *, dir_fd: int | None = None, unlock: bool = False) -> int:
    """Removes a folder with its contents; returns the number of files removed. Raises OSError."""
    count = 0
    if unlock:
        _unlock(name, dir_fd)
    top = os.open(name, _FOLDER, dir_fd=dir_fd)
    try:
        for found in walk(top, unlock=unlock, closed=False):
            if found.is_folder:
                os.rmdir(found.name, dir_fd=found.folder)
            else:
                os.unlink(found.name, dir_fd=found.folder)
                count += 1
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=dir_fd)
    return count


def _entries(here: int, way: list[_Level]) -> Iterator[Found]:
    for name in os.listdir(here):
        try:
            info = os.stat(name, dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(info.st_mode):
            way[-1].left.append((name, info))
        else:
            yield Found(here, name, info, way)


def _enter(folder: int, name: str, *, unlock: bool, closed: bool) -> int:
    """Returns -1 if there is nothing to be seen."""
    try:
        if unlock:
            _unlock(name, folder)
        return os.open(name, _FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    except OSError:
        if not closed:
            raise
        return -1


def _unlock(name: str, folder: int | None) -> None:
    """chmod without following a link."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
    finally:
        os.close(handle)


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino
