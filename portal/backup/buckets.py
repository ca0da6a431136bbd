"""Buckets of the portal on an S3 server of one's own: those of appcodes, and the one with logs.

The server may be anybody's, so only plain S3 is used. Objects come back with their bytes, content type and metadata; the server
gives them a new time.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tarfile import TarInfo
from typing import Any
from urllib.parse import quote, unquote

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from portal.backup.archive import BackupError, Readable
from portal.backup.database import Snapshot
from portal.backup.source import Server, Source, server

MEMBERS = "buckets/"
LOGS = "gpu-cloud-logs"
_TYPE, _MODIFIED, _META = "PORTAL.content-type", "PORTAL.modified", "PORTAL.meta."
# An object in a bucket that is half restored. In the end it holds the old sizes and times of all objects, for
# datastores/storage/adopt.py: lines of [key, bytes, seconds since 1970] as JSON, compressed by gzip.
# In the trash, which neither listings nor versions show.
MARK = ".portal-trash/.restoring"
_GONE = ("NoSuchKey", "404", "NotFound")


@dataclass(frozen=True)
class Bucket:
    server: Server
    name: str
    prefix: str = ""


def of(source: Source, snapshot: Snapshot) -> list[Bucket]:
    """What the portal owns on servers of one's own. Raises BackupError."""
    found = []
    if own := source.storage:
        names = [name for (name,) in snapshot.rows("SELECT bucket FROM datastores_storage ORDER BY bucket")]
        names.append(source.settings.get("PORTAL_STORAGE_BUCKET_PREFIX", "") + LOGS)
        there = _names(own)
        found += [Bucket(own, name) for name in names if name in there]
    if logs := server(source.settings, "PORTAL_LOGS_S3"):
        prefix = source.settings.get("PORTAL_LOGS_S3_PREFIX", "").strip("/")
        found.append(Bucket(logs, source.settings.get("PORTAL_LOGS_S3_BUCKET") or LOGS, f"{prefix}/" if prefix else ""))
    return found


def objects(bucket: Bucket) -> Iterator[tuple[str, Readable, int, dict[str, str]]]:
    """Key, bytes, size and headers of each object. One that is removed meanwhile is left out. Raises BackupError."""
    client = _client(bucket.server)
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix=bucket.prefix):
            for item in page.get("Contents", ()):
                try:
                    answer = client.get_object(Bucket=bucket.name, Key=item["Key"])
                except ClientError as error:
                    if error.response["Error"]["Code"] in _GONE:
                        continue
                    raise
                headers = {
                    _TYPE: answer.get("ContentType", ""),
                    _MODIFIED: str(int(answer["LastModified"].timestamp())),
                }
                headers |= {f"{_META}{name}": value for name, value in answer.get("Metadata", {}).items()}
                yield item["Key"], answer["Body"], answer["ContentLength"], headers
    except (BotoCoreError, ClientError) as error:
        raise BackupError(f"The bucket {bucket.name} cannot be read: {_why(error)}.") from error


def member_of(bucket: str, key: str) -> str:
    """The name of a member, from which `key_of` has both back. Parts of a key that mean something else in a path are encoded."""
    words = [
        quote(word, safe=" !$&'()+,;=@^~") if word not in ("", ".", "..") else _PARTS[word] for word in key.split("/")
    ]
    return f"{MEMBERS}{bucket}/{'/'.join(words)}"


def key_of(member: str) -> tuple[str, str]:
    bucket, _, key = member.removeprefix(MEMBERS).partition("/")
    return bucket, "/".join(unquote(word) if word != "%" else "" for word in key.split("/"))


def prepare(wanted: list[Bucket]) -> None:
    """Makes the buckets. Raises BackupError where one has objects that no restore put there."""
    for bucket in wanted:
        client = _client(bucket.server)
        try:
            if bucket.name not in _names(bucket.server):
                client.create_bucket(Bucket=bucket.name)
            first = client.list_objects_v2(Bucket=bucket.name, MaxKeys=1, Prefix=bucket.prefix).get("Contents", ())
            marked = client.list_objects_v2(Bucket=bucket.name, MaxKeys=1, Prefix=MARK).get("Contents", ())
            if first and not marked:
                raise BackupError(f"The bucket {bucket.name} is not empty. Restore into an S3 server without it.")
            client.put_object(Bucket=bucket.name, Key=MARK, Body=b"")
        except (BotoCoreError, ClientError) as error:
            raise BackupError(f"The bucket {bucket.name} cannot be made: {_why(error)}.") from error


def put(server: Server, bucket: str, key: str, stream: Readable, headers: Mapping[str, str]) -> None:
    """Raises BackupError."""
    metadata = {name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)}
    extra: dict[str, Any] = {"Metadata": metadata}
    if headers.get(_TYPE):
        extra["ContentType"] = headers[_TYPE]
    try:
        _client(server).upload_fileobj(stream, bucket, key, ExtraArgs=extra)
    except (BotoCoreError, ClientError, Boto3Error) as error:
        raise BackupError(f"{key} cannot be stored in the bucket {bucket}: {_why(error)}.") from error


class Restored:
    """What is put into buckets, noted for `finish`."""

    def __init__(self, wanted: list[Bucket], folder: Path) -> None:
        self._wanted = {each.name: each for each in wanted}
        self._folder = folder
        self._noted = {each.name: gzip.open(self._file(each.name), "wt") for each in wanted}  # noqa: SIM115

    def put(self, member: TarInfo, stream: Readable) -> None:
        bucket, key = key_of(member.name)
        put(self._wanted[bucket].server, bucket, key, stream, member.pax_headers)
        line = [key, member.size, int(member.pax_headers.get(_MODIFIED) or 0)]
        self._noted[bucket].write(json.dumps(line) + "\n")

    def finish(self) -> None:
        """Everything is there. Raises BackupError."""
        for name, noted in self._noted.items():
            noted.close()
            client = _client(self._wanted[name].server)
            try:
                if name.endswith(LOGS):
                    client.delete_object(Bucket=name, Key=MARK)
                else:
                    client.upload_file(str(self._file(name)), name, MARK)
            except (BotoCoreError, ClientError, Boto3Error) as error:
                raise BackupError(f"The bucket {name} cannot be finished: {_why(error)}.") from error

    def _file(self, bucket: str) -> Path:
        return self._folder / f"{bucket}.gz"


# "%" alone is never what `quote` makes.
_PARTS = {"": "%", ".": "%2E", "..": "%2E%2E"}


def _names(server: Server) -> set[str]:
    try:
        return {each["Name"] for each in _client(server).list_buckets()["Buckets"]}
    except (BotoCoreError, ClientError) as error:
        raise BackupError(f"The object storage at {server.url} cannot be asked: {_why(error)}.") from error


@lru_cache(maxsize=4)
def _client(server: Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 5}, read_timeout=60),
    )


def _why(error: Exception) -> str:
    return str(error.response["Error"].get("Code")) if isinstance(error, ClientError) else type(error).__name__
