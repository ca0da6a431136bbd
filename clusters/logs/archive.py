"""Where logs are kept whose cloud loses them with their pods: an object for each attempt in a bucket of the installation's own.

    logs/<cloud>/<run id>/<role>-<index>-<attempt>.log

Objects are written in parts and read by ranges. There are no rows in here and no clouds; `collect.py` decides what is
copied when.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO

from django.conf import settings

from clusters.clouds.drivers.base import CloudError, LogChunk
from datastores.drivers.base import DriverError, NotThere
from datastores.drivers.s3 import S3


class Archive:
    def __init__(self, store: S3) -> None:
        self._store = store

    def keep(self, key: str, file: IO[bytes], size: int) -> None:
        """Stores a log, replacing what was there; all of it or nothing."""
        with _told():
            self._store.upload(key, file, size)

    def read(self, key: str, size: int, *, offset: int, limit: int, tail: int | None) -> LogChunk:
        """A piece of a log of `size` bytes; as `Cloud.log`."""
        start = max(0, size - tail) if tail is not None else min(offset, size)
        length = min(limit, size - start)
        try:
            with _told():
                data = self._store.read_range(key, start, length) if length else b""
        except Gone:
            return LogChunk(b"", start, True, absent=True)
        return LogChunk(data, start + len(data), start + len(data) >= size or not data)

    def forget(self, folder: str) -> None:
        with _told():
            self._store.delete_folder(folder)


class Gone(CloudError):
    """Somebody removed it from the bucket."""


def folder_of(cloud: str, run_id: int) -> str:
    return f"logs/{cloud}/{run_id}"


def key_of(cloud: str, run_id: int, role: str, index: int, attempt: int) -> str:
    return f"{folder_of(cloud, run_id)}/{role}-{index}-{attempt}.log"


def archive() -> Archive | None:
    """That of this installation; None where logs last as long as their pods."""
    return _archive(*settings.LOGS_S3.values()) if settings.LOGS_S3["server"] else None


@lru_cache(maxsize=4)
def _archive(server: str, bucket: str, prefix: str, region: str, access_key: str, secret: str) -> Archive:
    return Archive(S3(server=server, bucket=bucket, prefix=prefix, region=region, access_key=access_key, secret=secret))


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except NotThere as error:
        raise Gone("This log is not in the archive any more.") from error
    except DriverError as error:
        raise CloudError(f"The archive of logs does not work: {error}") from error
