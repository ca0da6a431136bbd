"""The server behind the portal's own object storage, by the common subset of S3 and IAM: SeaweedFS on one machine, a
Ceph gateway or Amazon elsewhere. Every step can be repeated; this module knows no rows.

A bucket has two users: one for people, whose key they refresh and stop, and one for the portal's own runs, which go on
meanwhile.
"""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import IO, Any, Literal

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.conf import settings

from datastores.drivers.base import ANY_TIME, DriverError, Stream
from datastores.drivers.s3 import S3
from portal.up.servers import STORAGE_PROOF

# A new store starts within seconds; after a kill it reads its data for longer.
START_SECONDS = 50.0
MOST_UPLOADS = 1000
Owner = Literal["people", "portal"]
_POLICY = "bucket"
_ALREADY = {"BucketAlreadyOwnedByYou", "EntityAlreadyExists"}
_ON_BUCKET = ("ListBucket", "GetBucketLocation", "GetBucketVersioning")
_ON_OBJECTS = ("GetObject", "PutObject", "DeleteObject", "GetObjectTagging", "PutObjectTagging", "DeleteObjectTagging")


class StorageAway(Exception):
    """The text is a sentence for people."""


@dataclass(frozen=True)
class KeyPair:
    access_key: str
    secret_key: str = field(repr=False)


def start() -> None:
    """Returns when the store answers; at once if it is external. Raises StorageAway."""
    path = settings.STORAGE["start"]
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(START_SECONDS)
            asked.connect(path)
            said = b""
            while piece := asked.recv(4096):
                said += piece
    except OSError as error:
        raise StorageAway("The object storage cannot be started just now; try again in a minute.") from error
    if said != b"ready":
        raise StorageAway("The object storage does not start on this machine; its log says why.")


def make_bucket(bucket: str) -> None:
    with _told(), _repeated():
        _client("s3").create_bucket(Bucket=bucket)


def put(bucket: str, key: str, body: bytes) -> None:
    with _told():
        _client("s3").put_object(Bucket=bucket, Key=key, Body=body)


def fetch(bucket: str, key: str, into: IO[bytes]) -> bool:
    """Whether there is such an object; its bytes are in `into` then."""
    with _told():
        try:
            _client("s3").download_fileobj(bucket, key, into)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                return False
            raise
        return True


def remove(bucket: str, key: str) -> None:
    with _told():
        _client("s3").delete_object(Bucket=bucket, Key=key)


class OwnBucket(S3):
    """A bucket of the portal itself, made at the first upload. It uses the portal's own keys and bypasses the door, so
    no key of a user or a run opens it. `make` raises StorageAway, other methods DriverError."""

    def __init__(self, bucket: str) -> None:
        super().__init__(
            server=settings.STORAGE["inner_url"],
            access_key="",
            bucket=bucket,
            region=settings.STORAGE["region"],
            secret="",
        )
        self._is_there = False

    def make(self) -> None:
        if not self._is_there:
            start()
            make_bucket(self.bucket)
            self._is_there = True

    def upload(
        self, path: str, stream: Stream, size: int, *, appears: AbstractContextManager[object] = ANY_TIME
    ) -> None:
        try:
            self.make()
            super().upload(path, stream, size, appears=appears)
        except DriverError:
            self._is_there = False  # it may have been deleted
            raise

    @property
    def _client(self) -> Any:
        return _client("s3")


def make_user(bucket: str, owner: Owner) -> None:
    """Makes a user who may do in the bucket what the door allows, and nothing elsewhere."""
    iam, name = _client("iam"), _user(bucket, owner)
    where = f"arn:aws:s3:::{bucket}"
    statements = [_allow(_ON_BUCKET, where), _allow(_ON_OBJECTS, f"{where}/*")]
    with _told():
        with _repeated():
            iam.create_user(UserName=name)
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        iam.put_user_policy(UserName=name, PolicyName=_POLICY, PolicyDocument=policy)


def make_key(bucket: str, owner: Owner) -> KeyPair:
    with _told():
        made = _client("iam").create_access_key(UserName=_user(bucket, owner))["AccessKey"]
    return KeyPair(made["AccessKeyId"], made["SecretAccessKey"])


def keep_key(bucket: str, owner: Owner, only: str | None) -> None:
    """Deletes all keys of a user except one: stopped keys, and keys whose maker crashed before they were recorded."""
    iam, name = _client("iam"), _user(bucket, owner)
    with _told():
        for each in iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
            if each["AccessKeyId"] != only:
                iam.delete_access_key(UserName=name, AccessKeyId=each["AccessKeyId"])


def drop_uploads(bucket: str, before: dt.datetime, keep: Collection[str]) -> int:
    """Drops multipart uploads that were idle since `before`, except those in `keep`; returns how many. Reads at most
    MOST_UPLOADS."""
    client, count = _client("s3"), 0
    with _told():
        pages = client.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, PaginationConfig={"MaxItems": MOST_UPLOADS}
        )
        for each in (upload for page in pages for upload in page.get("Uploads", ())):
            named = {"Bucket": bucket, "Key": each["Key"], "UploadId": each["UploadId"]}
            if each["UploadId"] in keep or each["Initiated"] >= before:
                continue
            parts = client.get_paginator("list_parts").paginate(**named)
            if all(part["LastModified"] < before for page in parts for part in page.get("Parts", ())):
                client.abort_multipart_upload(**named)
                count += 1
    return count


def _user(bucket: str, owner: Owner) -> str:
    return f"{bucket}.{owner}"


def _allow(actions: tuple[str, ...], resource: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": [f"s3:{each}" for each in actions], "Resource": resource}


@contextmanager
def _repeated() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] not in _ALREADY:
            raise


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        word = str(error.response.get("Error", {}).get("Code", ""))[:60]
        raise StorageAway(f"The object storage answers “{word}”; an administrator has to look at it.") from error
    except BotoCoreError as error:
        raise StorageAway("The object storage does not answer just now; try again in a minute.") from error


@lru_cache(maxsize=2)
def _client(service: Literal["s3", "iam"]) -> Any:
    told: Mapping[str, str] = settings.STORAGE
    config = Config(
        connect_timeout=3, read_timeout=20, retries={"total_max_attempts": 2}, s3={"addressing_style": "path"}
    )
    client = boto3.session.Session().client(
        service,
        endpoint_url=told["inner_url"],
        region_name=told["region"],
        aws_access_key_id=told["access_key"],
        aws_secret_access_key=told["secret"],
        config=config,
    )
    if told["proof"]:
        client.meta.events.register("before-send", _prove)
    return client


def _prove(request: Any, **_: Any) -> None:
    request.headers[STORAGE_PROOF] = settings.STORAGE["proof"]
