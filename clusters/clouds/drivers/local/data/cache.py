"""The cache of inputs from S3: one copy on this machine for all runs that read the same, mounted read-only in their tasks.

    cache/<key>/lock      held by the storage process that makes the copy, and by the agent that removes it
    cache/<key>/partial   the incomplete copy; continued after an interruption
    cache/<key>/files     the complete copy: renamed to this only when nothing is missing
    cache/<key>/size      its bytes; the file's time is the last use

The key consists of the source, the access keys by which it was listed, and the digest of that listing (datastores/listing.py).
So a run that finds an entry has just listed the same content with the same keys, whoever copied it; changed content has another
key. The files belong to a uid that no task has.

A run uses an entry once its storage process has written so into its status.json, under the lock; the agent checks that, under
the lock, before it removes one. Neither process needs the other to live.
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

# Seconds after which an unused entry is removed. Incomplete ones go sooner, because their size is not counted.
KEPT, BEGUN = 30 * 86400.0, 86400.0


def key_of(mount: dict[str, Any], digest: str) -> str:
    parts = (*(str(mount[name]) for name in ("endpoint", "region", "bucket", "prefix", "access_key")), digest)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def files(place: str) -> str:
    return os.path.join(place, "files")


def open_lock(place: str) -> int:
    """Opens the lock file of an entry, without locking it. Creates a missing folder."""
    while True:
        os.makedirs(place, mode=0o700, exist_ok=True)
        try:
            return os.open(os.path.join(place, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # removed meanwhile
            continue


def is_of(handle: int, place: str) -> bool:
    """Returns whether a lock obtained after waiting still belongs to the folder."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(os.path.join(place, "lock")))
    except FileNotFoundError:
        return False


def free_bytes(path: str) -> int:
    """Returns the bytes that an ordinary user may still write on the disk of `path`."""
    disk = os.statvfs(path)
    return disk.f_frsize * disk.f_bavail


def begin(place: str, uid: int | None) -> str:
    """Returns the folder for the copy. Requires the lock."""
    partial = os.path.join(place, "partial")
    os.makedirs(partial, 0o755, exist_ok=True)
    if uid is not None:  # also if the process that created it was killed before this
        os.chown(partial, uid, uid)
    return partial


def written(partial: str) -> int:
    """Returns the bytes on disk of an incomplete copy."""
    top = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = (each.info for each in trees.walk(top))
        return sum(min(info.st_size, info.st_blocks * 512) for info in found if stat.S_ISREG(info.st_mode))
    finally:
        os.close(top)


def finish(place: str, size: int) -> None:
    """Marks a copy as complete. Requires the lock."""
    with open(os.path.join(place, "size"), "w") as file:
        file.write(str(size))
    # Data may not be on disk yet, and after a power failure the files would not be checked again.
    os.sync()
    os.rename(os.path.join(place, "partial"), files(place))


def forget(place: str) -> None:
    """Deletes a copy that matches no listing. Requires the lock."""
    trees.remove(os.path.join(place, "partial"))


def used(place: str) -> None:
    os.utime(os.path.join(place, "size"))


def sweep(
    folder: str, in_use: Callable[[], Collection[str]], discard: Callable[[str], None], *, most: int, wanted: int
) -> None:
    """Removes entries that were unused for long; then the least recently used ones until at most `most` bytes are kept and
    `wanted` more bytes are free. `in_use` returns the keys that current runs use."""
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
    # Read once here, and again under the lock of each entry before its removal.
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
