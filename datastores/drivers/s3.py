"""S3: a bucket, or a folder of one, on any server that speaks S3."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from itertools import islice
from math import ceil
from typing import Any

from boto3.s3.transfer import TransferConfig
from botocore import exceptions

from datastores.drivers.base import (
    ANY_TIME,
    CHUNK,
    Carried,
    Content,
    DriverError,
    Entry,
    Listing,
    NoSuchPart,
    NotThere,
    Part,
    Stream,
)
from datastores.drivers.patience import for_files
from datastores.drivers.s3_client import client_for
from datastores.drivers.s3_errors import code_of, driver_errors
from datastores.listing import TRASH

# Largest single put, and part size of larger files, of which one part at a time is in memory; maximum number of parts.
PIECE, PIECES = 8 * 2**20, 10_000
# The server copies by itself, in parts only above the size that Amazon copies in one request.
COPYING = TransferConfig(multipart_threshold=2**30, multipart_chunksize=2**28, use_threads=False)
MANY = 1000
# Files copied in parallel.
COPIES = 8
# Files listed of a target folder: ten requests.
LISTED = 10 * MANY
# Larger than any S3 server's limit for a file, in bytes.
LARGEST = 2**49

_NO_SUCH_PART = {"416", "InvalidRange"}
_CONTENT_RANGE = re.compile(r"bytes (?P<start>[0-9]+)-[0-9]+/(?P<total>[0-9]+)")


class S3:
    def __init__(
        self, *, server: str, access_key: str, bucket: str, prefix: str = "", region: str = "us-east-1", secret: str
    ) -> None:
        self.server, self.bucket, self.prefix = server, bucket, prefix
        self._keys = (access_key, secret, region)

    def test(self) -> str:
        try:
            with self._errors():
                answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=self._folder(""), MaxKeys=1)
                # A web page may parse as XML, but lacks this field.
                answer["IsTruncated"]
        except NotThere as error:
            # No file was requested, and S3 servers have a different error code for a missing bucket.
            raise DriverError(f"No S3 server answers at {self.server.split('://', 1)[1]}.", "server") from error
        return f"Reached: the bucket “{self.bucket}” can be read."

    def list(self, folder: str, *, search: str = "", cursor: str = "", limit: int = 200) -> Listing:
        prefix = self._folder(folder)
        position = {"ContinuationToken": cursor} if cursor else {}
        with self._errors():
            answer = self._client.list_objects_v2(
                Bucket=self.bucket, Prefix=prefix + search, Delimiter="/", MaxKeys=limit, **position
            )
        below = folder + "/" if folder else ""
        folders = [part["Prefix"][len(prefix) :].rstrip("/") for part in answer.get("CommonPrefixes", ())]
        entries = [Entry(name, below + name, is_folder=True) for name in folders if name not in ("", TRASH)]
        # The object of the folder itself, which some tools create, is not a file.
        entries += [self._entry(item, folder) for item in answer.get("Contents", ()) if item["Key"] != prefix]
        entries.sort(key=lambda entry: (not entry.is_folder, entry.name))
        return Listing(tuple(entries), answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else "")

    def walk(self, folder: str) -> Iterator[Entry]:
        prefix = self._folder(folder)
        with self._errors():
            for answer in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                for item in answer.get("Contents", ()):
                    if not item["Key"].endswith("/") and f"/{TRASH}/" not in "/" + item["Key"][len(prefix) :]:
                        yield self._entry(item, folder)

    def look(self, path: str) -> Entry:
        # Uses a listing, in which this key comes first: the response to HEAD does not show whether the server speaks S3.
        with self._errors():
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=self._key(path), MaxKeys=1)
        for item in answer.get("Contents", ()):
            if item["Key"] == self._key(path):
                return self._entry(item, path.rpartition("/")[0])
        raise NotThere("There is no such file any more.")

    def open(self, path: str, part: Part | None = None) -> Content:
        wanted = {} if part is None else {"Range": str(part)}
        with self._errors(), for_files():
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self._key(path), **wanted)
            except exceptions.ClientError as error:
                if code_of(error) in _NO_SUCH_PART:
                    raise NoSuchPart("The file ends before the part that was asked for.") from error
                raise
            (size, etag), start = _facts(answer["ContentLength"], answer.get("ETag", "")), 0
            total = size
            if said := _CONTENT_RANGE.fullmatch(answer.get("ContentRange", "")):
                start, total = int(said["start"]), int(said["total"])
        return Content(size, self._chunks(answer["Body"]), total, start, etag)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with self._errors(), for_files():
            try:
                answer = self._client.get_object(
                    Bucket=self.bucket, Key=self._key(path), Range=f"bytes={start}-{start + length - 1}"
                )
            except exceptions.ClientError as error:
                if code_of(error) in _NO_SUCH_PART:
                    return b""
                raise
            with answer["Body"] as body:
                return bytes(body.read(length))

    def upload(
        self, path: str, stream: Stream, size: int, *, appears: AbstractContextManager[object] = ANY_TIME
    ) -> None:
        if size <= PIECE:
            data = _exactly(stream, size)
            with appears, self._errors(), for_files():
                self._client.put_object(Bucket=self.bucket, Key=self._key(path), Body=data)
            return
        piece, upload, etags = max(PIECE, ceil(size / PIECES)), self.begin(path), list[str]()
        try:
            for start in range(0, size, piece):
                data = _exactly(stream, min(piece, size - start))
                etags.append(self.write_part(path, upload, len(etags) + 1, start, data))
            with appears:
                self.finish(path, upload, etags)
        except BaseException:
            with suppress(DriverError):
                self.abort(path, upload)
            raise

    def begin(self, path: str) -> str:
        with self._errors():
            return str(self._client.create_multipart_upload(Bucket=self.bucket, Key=self._key(path))["UploadId"])

    def write_part(self, path: str, upload: str, number: int, start: int, data: bytes) -> str:
        with self._errors(), for_files():
            answer = self._client.upload_part(
                Bucket=self.bucket, Key=self._key(path), UploadId=upload, PartNumber=number, Body=data
            )
            return str(answer["ETag"])

    def part_url(self, path: str, upload: str, number: int, size: int, seconds: int) -> str:
        # The signature covers the length: another length is refused.
        wanted = {"Bucket": self.bucket, "Key": self._key(path), "UploadId": upload, "PartNumber": number}
        with self._errors():
            return str(
                self._client.generate_presigned_url(
                    "upload_part", Params={**wanted, "ContentLength": size}, ExpiresIn=seconds
                )
            )

    def parts(self, path: str, upload: str, after: int = 0) -> Mapping[int, tuple[int, str]]:
        asked = self._client.get_paginator("list_parts").paginate(
            Bucket=self.bucket, Key=self._key(path), UploadId=upload, PartNumberMarker=after
        )
        with self._errors():
            return {
                each["PartNumber"]: (each["Size"], each["ETag"]) for answer in asked for each in answer.get("Parts", ())
            }

    def finish(self, path: str, upload: str, etags: Sequence[str]) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        with self._errors(), for_files():
            self._client.complete_multipart_upload(
                Bucket=self.bucket, Key=self._key(path), UploadId=upload, MultipartUpload={"Parts": parts}
            )

    def abort(self, path: str, upload: str) -> None:
        with suppress(NotThere), self._errors():
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=self._key(path), UploadId=upload)

    def copy(self, path: str, to: str) -> None:
        self.look(path)
        self._copy(path, to)

    def _copy(self, path: str, to: str) -> None:
        source = {"Bucket": self.bucket, "Key": self._key(path)}
        with self._errors(), for_files():
            self._client.copy(source, self.bucket, self._key(to), Config=COPYING)

    def move(self, path: str, to: str) -> None:
        self.copy(path, to)
        self.delete(path)

    def carry(self, path: str, to: str, *, is_folder: bool, before: dt.datetime | None, seconds: float) -> Carried:
        done = list[str]()
        try:
            carried = self._carry(path, to, is_folder, before, time.monotonic() + seconds, done)
            if is_folder and carried.is_over:
                # The objects of the folders themselves.
                own = [key for key in self._some_keys(self._folder(path)) if key.endswith("/")]
                done += own[: MANY - len(done)]
        except DriverError:
            # Delete what was copied, so that no file is in both places longer than necessary.
            self._delete_keys(done)
            raise
        self._delete_keys(done)
        return carried

    def _carry(
        self, path: str, to: str, is_folder: bool, before: dt.datetime | None, until: float, done: MutableSequence[str]
    ) -> Carried:
        """Copies files; `done` collects the keys that are still to be deleted."""
        # List the target once; only if it is too large, check it file by file.
        known = {entry.path: entry for entry in islice(self.walk(to), LISTED)} if is_folder else {}
        is_known = is_folder and len(known) < LISTED
        left, kept = self.walk(path) if is_folder else self._found(path), 0
        with ThreadPoolExecutor(COPIES) as pool:
            while some := list(islice(left, COPIES)):
                if time.monotonic() >= until:
                    return Carried(False, kept)
                copies, keys = list[Future[None]](), list[str]()
                for entry in some:
                    target = to + entry.path[len(path) :]
                    if before and entry.modified and entry.modified > before:
                        continue
                    there = known.get(target) if is_known else next(self._found(target), None)
                    # Only the portal writes to the trash; elsewhere a file may be anybody's.
                    if there is not None and not (
                        self._same(there, entry) if before is None else _is_copy(there, entry)
                    ):
                        kept += 1
                        continue
                    keys.append(self._key(entry.path))
                    if there is None:
                        copies.append(pool.submit(copy_context().run, self._copy, entry.path, target))
                for copy in copies:
                    copy.result()
                done += keys
                if len(done) > MANY - COPIES:
                    self._delete_keys(done)
                    done.clear()
        return Carried(True, kept)

    def _same(self, there: Entry, entry: Entry) -> bool:
        """True if two files have the same bytes. ETags are not comparable if a file was stored or copied in parts."""
        if there.size != entry.size or there.etag == entry.etag:
            return there.size == entry.size
        return all(
            self.read_range(there.path, start, PIECE) == self.read_range(entry.path, start, PIECE)
            for start in range(0, entry.size, PIECE)
        )

    def _found(self, path: str) -> Iterator[Entry]:
        try:
            yield self.look(path)
        except NotThere:
            return

    def delete(self, path: str) -> None:
        with self._errors():
            self._client.delete_object(Bucket=self.bucket, Key=self._key(path))

    def delete_folder(self, folder: str) -> int:
        prefix, removed = self._folder(folder), 0
        # Always lists from the start: deleted keys are no longer listed.
        while keys := self._some_keys(prefix):
            self._delete_keys(keys)
            removed += len([key for key in keys if not key.endswith("/")])
        return removed

    def _delete_keys(self, keys: Sequence[str]) -> None:
        """Deletes at most MANY keys."""
        if not keys:
            return
        with self._errors():
            wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._client.delete_objects(Bucket=self.bucket, Delete=wanted)
            if refused := answer.get("Errors"):
                raise DriverError(f"{len(refused)} files could not be removed: {refused[0].get('Message', '')}")

    def _some_keys(self, prefix: str) -> tuple[str, ...]:
        with self._errors():
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, MaxKeys=MANY)
        return tuple(item["Key"] for item in answer.get("Contents", ()))

    def _chunks(self, body: Any) -> Iterator[bytes]:
        with self._errors(), body:
            while chunk := body.read(CHUNK):
                yield chunk

    def _entry(self, item: Any, folder: str) -> Entry:
        path = item["Key"][len(self._folder("")) :]
        size, etag = _facts(item["Size"], item["ETag"])
        return Entry(
            name=path[len(folder) + 1 :] if folder else path,
            path=path,
            size=size,
            modified=item["LastModified"],
            etag=etag,
        )

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _folder(self, path: str) -> str:
        """The key prefix of a folder: "" for the whole bucket, otherwise with a trailing slash."""
        key = self._key(path).rstrip("/")
        return key + "/" if key else ""

    @property
    def _client(self) -> Any:
        return client_for(self.server, *self._keys)

    def _errors(self) -> AbstractContextManager[None]:
        return driver_errors(self.server)


def _is_copy(copy: Entry, of: Entry) -> bool:
    """True if a file in the trash is a copy of one to be moved there: by ETag or, since copies in parts have another
    ETag, by a later time."""
    if copy.size != of.size:
        return False
    return copy.etag == of.etag or bool(copy.modified and of.modified and copy.modified > of.modified)


def _exactly(stream: Stream, size: int) -> bytes:
    """Reads `size` bytes. A stream that ends early, because a browser went away, raises DriverError."""
    data = bytearray()
    while len(data) < size:
        try:
            more = stream.read(size - len(data))
        except OSError:
            # The sender has stalled for too long.
            more = b""
        if not more:
            raise DriverError("The upload was cut off; nothing was stored.")
        data += more
    return bytes(data)


def _facts(size: int, etag: str) -> tuple[int, str]:
    """Validates size and ETag from the server, because both go into headers. Raises DriverError."""
    if not 0 <= size <= LARGEST or not (etag.isascii() and etag.isprintable()):
        raise DriverError("The server says of a file what cannot be.", "server")
    return size, etag.strip('"')
