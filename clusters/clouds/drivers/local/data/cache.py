"""Inputs in S3 that lie on this machine once for all runs that read them, and are shown to their tasks read-only.

    cache/<key>/lock      held by the storage process that makes it, and by the agent that removes it
    cache/<key>/partial   what is being copied; goes on where it broke
    cache/<key>/files     the whole: it has this name only when nothing is missing
    cache/<key>/size      its bytes; the file's time is when it was last used

A key is made of where it lies, the keys by which it was listed there, and the digest of that listing (datastores/listing.py). So
who finds one has just listed the same with the same keys, whoever copied it; and what has changed in the store is another one.
The files belong to a uid that no task has.

A run uses one from the moment its storage process has written so into its status.json, under the lock; the agent looks there,
under the lock, before it removes one. Neither has to live for the other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time

from datastores import trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

# What no run has used for so long goes. What was begun and left alone goes sooner, for nobody counts it.
KEPT, BEGUN = 30 * 86400.0, 86400.0


def key_of(mount: dict[str, Any], digest: str) -> str:
    parts = (*(str(mount[name]) for name in ("endpoint", "region", "bucket", "prefix", "access_key")), digest)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def files(place: str) -> str:
    return os.path.join(place, "files")


def open_lock(place: str) -> int:
    """Of the folder of one key, which is made when it is not there; not locked yet."""
    while True:
        os.makedirs(place, mode=0o700, exist_ok=True)
        try:
            return os.open(os.path.join(place, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # it was removed meanwhile
            continue


def is_of(handle: int, place: str) -> bool:
    """Whether a lock that was waited for is still that of the folder."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(os.path.join(place, "lock")))
    except FileNotFoundError:
        return False


def free_bytes(path: str) -> int:
    """What an ordinary user may still write where `path` lies."""
    disk = os.statvfs(path)
    return disk.f_frsize * disk.f_bavail


def begin(place: str, uid: int | None) -> str:
    """The folder into which it is copied. Under the lock."""
    partial = os.path.join(place, "partial")
    os.makedirs(partial, 0o755, exist_ok=True)
    if uid is not None:  # also where whoever made it has not come to that
        os.chown(partial, uid, uid)
    return partial


def written(partial: str) -> int:
    """Bytes of the disk that what was copied there has already."""
    top = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = (each.info for each in trees.walk(top))
        return sum(min(info.st_size, info.st_blocks * 512) for info in found if stat.S_ISREG(info.st_mode))
    finally:
        os.close(top)


def finish(place: str, size: int) -> None:
    """All of it is there. Under the lock."""
    with open(os.path.join(place, "size"), "w") as file:
        file.write(str(size))
    # What was written may not be on the disk yet, and after a loss of power nobody would look into the files again.
    os.sync()
    os.rename(os.path.join(place, "partial"), files(place))


def forget(place: str) -> None:
    """What was copied is of no listing. Under the lock."""
    trees.remove(os.path.join(place, "partial"))


def used(place: str) -> None:
    os.utime(os.path.join(place, "size"))


def sweep(
    folder: str, in_use: Callable[[], Collection[str]], discard: Callable[[str], None], *, most: int, wanted: int
) -> None:
    """Removes what was not used for long; and of the rest what was used longest ago, until no more than `most` bytes are kept and
    `wanted` bytes more are free. `in_use` are the keys of the runs that are here."""
    found = []
    for key in os.listdir(folder) if os.path.isdir(folder) else ():
        is_whole = os.path.isdir(files(os.path.join(folder, key)))
        try:
            told = os.path.join(folder, key, "size" if is_whole else "lock")
            with open(told) as file:
                size = int(file.read()) if is_whole else 0
            found.append((os.stat(told).st_mtime, key, size, KEPT if is_whole else BEGUN))
        except FileNotFoundError:
            continue
    kept, now = sum(size for _, _, size, _ in found), time.time()
    # Asked for once here, and again under the lock of each that is to go.
    busy = set(in_use())
    for at, key, size, longest in sorted(found):
        is_needed = key in busy or (kept <= most and wanted <= 0 and now - at < longest)
        if is_needed or not _remove(os.path.join(folder, key), key, in_use, discard):
            continue
        kept, wanted = kept - size, wanted - size


def _remove(place: str, key: str, in_use: Callable[[], Collection[str]], discard: Callable[[str], None]) -> bool:
    handle = open_lock(place)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_of(handle, place) or key in in_use():
            return False
        discard(place)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
