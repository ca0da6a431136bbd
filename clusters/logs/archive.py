"""Stores logs whose cloud loses them with their pods: an object for each attempt in a bucket of the installation.

    logs/<cloud>/<run id>/<role>-<index>-<attempt>.log      what the program wrote
    logs/<cloud>/<run id>/<role>-<index>-<attempt>.times    when (clouds/drivers/marks.py), written before the log

Objects are written in parts and read by ranges. There are no rows or clouds here; `collect.py` decides what is copied when.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import IO

from django.conf import settings

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import CloudError, LogChunk
from clusters.clouds.drivers.lines import Lines, Wanted
from datastores.drivers.base import DriverError, NotThere
from datastores.drivers.s3 import S3
from datastores.storage.actions import logs_bucket
from datastores.storage.store import OwnBucket, StorageAway


class Archive:
    def __init__(self, store: S3) -> None:
        self._store = store

    def keep(self, key: str, file: IO[bytes], size: int, times: IO[bytes], times_size: int) -> None:
        """Stores a log, replacing an earlier one; all of it or nothing."""
        with _told():
            self._store.upload(_times_of(key), times, times_size)
            self._store.upload(key, file, size)

    def read(self, key: str, size: int, wanted: Wanted) -> LogChunk:
        """A piece of a log of `size` bytes, as from `Cloud.log`."""
        times = _times_of(key)
        try:
            with _told():
                blocks = _Blocks(self._store, times)
                count = self._store.look(times).size // marks.SIZE
                return Lines(size, count, partial(self._store.read_range, key), blocks.read).piece(
                    wanted, complete=True
                )
        except Gone:
            return LogChunk(b"", min(wanted.offset, size), True, absent=True)

    def forget(self, folder: str) -> None:
        with _told():
            self._store.delete_folder(folder)


class _Blocks:
    """Marks in an object, read in blocks and each block once, since neighbouring marks are often read together."""

    def __init__(self, store: S3, path: str) -> None:
        self._store, self._path = store, path
        self._known: dict[int, bytes] = {}

    def read(self, start: int, count: int) -> bytes:
        found = b""
        for number in range(start // marks.BLOCK, (start + count - 1) // marks.BLOCK + 1):
            if number not in self._known:
                begin = number * marks.BLOCK * marks.SIZE
                self._known[number] = self._store.read_range(self._path, begin, marks.BLOCK * marks.SIZE)
            found += self._known[number]
        skipped = (start % marks.BLOCK) * marks.SIZE
        return found[skipped : skipped + count * marks.SIZE]


class Gone(CloudError):
    """The log was removed from the bucket."""


def folder_of(cloud: str, run_id: int) -> str:
    return f"logs/{cloud}/{run_id}"


def key_of(cloud: str, run_id: int, role: str, index: int, attempt: int) -> str:
    return f"{folder_of(cloud, run_id)}/{role}-{index}-{attempt}.log"


def _times_of(key: str) -> str:
    return f"{key.removesuffix('.log')}.times"


def archive() -> Archive | None:
    """The archive of this installation: PORTAL_LOGS_S3_URL, else a bucket of the portal's own object storage. None without
    either; then logs last as long as their pods."""
    if settings.LOGS_S3["server"]:
        return _archive(*settings.LOGS_S3.values())
    return _own_archive(logs_bucket()) if settings.STORAGE["url"] else None


def is_there() -> bool:
    """Whether this installation has an archive."""
    return bool(settings.LOGS_S3["server"] or settings.STORAGE["url"])


@lru_cache(maxsize=4)
def _own_archive(bucket: str) -> Archive:
    return Archive(OwnBucket(bucket))


@lru_cache(maxsize=4)
def _archive(server: str, bucket: str, prefix: str, region: str, access_key: str, secret: str) -> Archive:
    return Archive(S3(server=server, bucket=bucket, prefix=prefix, region=region, access_key=access_key, secret=secret))


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except NotThere as error:
        raise Gone("This log is not in the archive any more.") from error
    except (DriverError, StorageAway) as error:
        raise CloudError(f"The archive of logs does not work: {error}") from error
