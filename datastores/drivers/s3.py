"""S3: a bucket, or a folder of one, on any server that speaks S3.

One client per server and pair of keys is cached, because creating one takes 50 ms and its connections stay open. The
many error responses of servers become a few helpful sentences, each at its field.
"""

from __future__ import annotations

import datetime as dt
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from functools import lru_cache
from itertools import islice
from math import ceil
from typing import Any, TypeVar

import boto3
from boto3.s3.transfer import TransferConfig
from botocore import awsrequest, exceptions
from botocore.config import Config
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from botocore.utils import parse_timestamp
from django.conf import settings
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError, ReadTimeoutError

from datastores.drivers.base import (
    ANY_TIME,
    CHUNK,
    CONNECT_SECONDS,
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
from datastores.drivers.patience import (
    ANSWER_BYTES,
    ANSWER_SECONDS,
    Allowance,
    SecureSocket,
    Socket,
    TooLong,
    for_files,
)
from datastores.listing import TRASH
from portal import outgoing

# Largest single put, and part size of larger files, of which one part at a time is in memory; maximum number of parts.
PIECE, PIECES = 8 * 2**20, 10_000
# Bodies that fit into a connection's buffers are sent without `Expect: 100-continue`, which saves a round trip.
UNASKED = 2**20
# The server copies by itself, in parts only above the size that Amazon copies in one request.
COPYING = TransferConfig(multipart_threshold=2**30, multipart_chunksize=2**28, use_threads=False)
MANY = 1000
# Files copied in parallel.
COPIES = 8
# Files listed of a target folder: ten requests.
LISTED = 10 * MANY
# Larger than any S3 server's limit for a file, in bytes.
LARGEST = 2**49

Raised = TypeVar("Raised", bound=BaseException)

# The server's error code → (invalid field, sentence).
_WORDS = {
    "NoSuchBucket": ("bucket", "There is no such bucket on this server."),
    "InvalidBucketName": ("bucket", "The server does not take this as the name of a bucket."),
    "InvalidAccessKeyId": ("access_key", "The server does not know this access key."),
    "SignatureDoesNotMatch": ("secret_key", "The secret key does not belong to this access key."),
    "AccessDenied": ("bucket", "The server knows this key, and it may not do that in this bucket."),
    "AllAccessDisabled": ("bucket", "The server has closed this bucket."),
    "ExpiredToken": ("access_key", "This access key has expired."),
    "RequestTimeTooSkewed": ("server", "The server's clock and ours differ too much."),
    "AuthorizationHeaderMalformed": ("region", "The bucket lies in another region."),
    "PermanentRedirect": ("region", "The bucket lies in another region."),
    "IllegalLocationConstraintException": ("region", "The bucket lies in another region."),
    "EntityTooLarge": ("", "The server does not take files of this size."),
    "QuotaExceeded": ("", "The bucket is full."),
    "XMinioStorageFull": ("", "The server's disks are full."),
    "SlowDown": ("", "The server is overloaded; try again in a minute."),
}
_ABSENT = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
_DENIED = {"403", "Forbidden"}
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
            with self._told():
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
        with self._told():
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
        with self._told():
            for answer in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                for item in answer.get("Contents", ()):
                    if not item["Key"].endswith("/") and f"/{TRASH}/" not in "/" + item["Key"][len(prefix) :]:
                        yield self._entry(item, folder)

    def look(self, path: str) -> Entry:
        # Uses a listing, in which this key comes first: the response to HEAD does not show whether the server speaks S3.
        with self._told():
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=self._key(path), MaxKeys=1)
        for item in answer.get("Contents", ()):
            if item["Key"] == self._key(path):
                return self._entry(item, path.rpartition("/")[0])
        raise NotThere("There is no such file any more.")

    def open(self, path: str, part: Part | None = None) -> Content:
        wanted = {} if part is None else {"Range": str(part)}
        with self._told(), for_files():
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self._key(path), **wanted)
            except exceptions.ClientError as error:
                if _word(error) in _NO_SUCH_PART:
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
        with self._told(), for_files():
            try:
                answer = self._client.get_object(
                    Bucket=self.bucket, Key=self._key(path), Range=f"bytes={start}-{start + length - 1}"
                )
            except exceptions.ClientError as error:
                if _word(error) in _NO_SUCH_PART:
                    return b""
                raise
            with answer["Body"] as body:
                return bytes(body.read(length))

    def upload(
        self, path: str, stream: Stream, size: int, *, appears: AbstractContextManager[object] = ANY_TIME
    ) -> None:
        if size <= PIECE:
            data = _exactly(stream, size)
            with appears, self._told(), for_files():
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
        with self._told():
            return str(self._client.create_multipart_upload(Bucket=self.bucket, Key=self._key(path))["UploadId"])

    def write_part(self, path: str, upload: str, number: int, start: int, data: bytes) -> str:
        with self._told(), for_files():
            answer = self._client.upload_part(
                Bucket=self.bucket, Key=self._key(path), UploadId=upload, PartNumber=number, Body=data
            )
            return str(answer["ETag"])

    def part_url(self, path: str, upload: str, number: int, size: int, seconds: int) -> str:
        # The signature covers the length: another length is refused.
        wanted = {"Bucket": self.bucket, "Key": self._key(path), "UploadId": upload, "PartNumber": number}
        with self._told():
            return str(
                self._client.generate_presigned_url(
                    "upload_part", Params={**wanted, "ContentLength": size}, ExpiresIn=seconds
                )
            )

    def parts(self, path: str, upload: str, after: int = 0) -> Mapping[int, tuple[int, str]]:
        asked = self._client.get_paginator("list_parts").paginate(
            Bucket=self.bucket, Key=self._key(path), UploadId=upload, PartNumberMarker=after
        )
        with self._told():
            return {
                each["PartNumber"]: (each["Size"], each["ETag"]) for answer in asked for each in answer.get("Parts", ())
            }

    def finish(self, path: str, upload: str, etags: Sequence[str]) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        with self._told(), for_files():
            self._client.complete_multipart_upload(
                Bucket=self.bucket, Key=self._key(path), UploadId=upload, MultipartUpload={"Parts": parts}
            )

    def abort(self, path: str, upload: str) -> None:
        with suppress(NotThere), self._told():
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=self._key(path), UploadId=upload)

    def copy(self, path: str, to: str) -> None:
        self.look(path)
        self._copy(path, to)

    def _copy(self, path: str, to: str) -> None:
        source = {"Bucket": self.bucket, "Key": self._key(path)}
        with self._told(), for_files():
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
        with self._told():
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
        with self._told():
            wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._client.delete_objects(Bucket=self.bucket, Delete=wanted)
            if refused := answer.get("Errors"):
                raise DriverError(f"{len(refused)} files could not be removed: {refused[0].get('Message', '')}")

    def _some_keys(self, prefix: str) -> tuple[str, ...]:
        with self._told():
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, MaxKeys=MANY)
        return tuple(item["Key"] for item in answer.get("Contents", ()))

    def _chunks(self, body: Any) -> Iterator[bytes]:
        with self._told(), body:
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
        return _client(self.server, *self._keys)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Converts botocore's exceptions to DriverErrors."""
        where = self.server.split("://", 1)[1]
        try:
            yield
        except exceptions.ClientError as error:
            raise _from_answer(error) from error
        except exceptions.SSLError as error:
            raise DriverError(f"{where} has no certificate that we trust, or speaks no TLS.", "server") from error
        except (exceptions.ConnectTimeoutError, exceptions.ReadTimeoutError, ReadTimeoutError) as error:
            raise DriverError(f"Unreachable: {where} does not answer in time.", "server") from error
        except exceptions.EndpointConnectionError as error:
            raise DriverError(f"Unreachable: {_why(error)} at {where}.", "server") from error
        except (exceptions.HTTPClientError, HTTPError) as error:
            if _cause(error, TooLong):
                sentence = f"{where} answers with more than {ANSWER_BYTES // 2**20} MiB, as no S3 server does."
                raise DriverError(sentence, "server") from error
            if closed := _cause(error, outgoing.Closed):
                raise DriverError(str(closed), "server") from error
            raise DriverError(f"The connection to {where} broke.", "server") from error
        # Invalid numbers and times raise ValueError.
        except (exceptions.BotoCoreError, ResponseParserError, KeyError, ValueError) as error:
            raise DriverError(f"{where} answers, but not as an S3 server does.", "server") from error


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


class _Patient:
    """Mixin for both kinds of connections: gives each request a new allowance."""

    allowance: Allowance

    def putrequest(self, *args: Any, **options: Any) -> None:
        self.allowance = Allowance()
        super().putrequest(*args, **options)  # type: ignore[misc]

    def send(self, data: Any) -> Any:
        connection: Any = self
        if connection.sock is None:
            connection.connect()
        connection.sock.allowance = self.allowance
        return super().send(data)  # type: ignore[misc]

    def getresponse(self) -> Any:
        answer = super().getresponse()  # type: ignore[misc]
        if answer.status >= 300:
            # The body is an error message, not the file.
            self.allowance.is_file = False
        return answer

    def _new_conn(self) -> Any:
        to: Any = self
        try:
            return Socket.of(outgoing.connect(to.host, to.port, settings.OUTGOING, CONNECT_SECONDS))
        except socket.gaierror as error:
            raise NameResolutionError(to.host, to, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(to, str(error)) from error
        except OSError as error:
            raise NewConnectionError(to, str(error)) from error


class _Connection(_Patient, awsrequest.AWSHTTPConnection):  # type: ignore[misc]
    pass


class _SecureConnection(_Patient, awsrequest.AWSHTTPSConnection):  # type: ignore[misc]
    def connect(self) -> None:
        assert self.ssl_context is not None, "botocore gives one"
        self.ssl_context.sslsocket_class = SecureSocket
        super().connect()


class _Pool(awsrequest.AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(awsrequest.AWSHTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_session_lock = threading.Lock()


@lru_cache(maxsize=1)
def _session() -> boto3.session.Session:
    inner = get_session()
    inner.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)
    return boto3.session.Session("unused", "unused", botocore_session=inner)  # see _client


def _time(value: Any) -> dt.datetime:
    """Parses times of lists: botocore's own parser for all formats takes half of the time of a list. Raises ValueError."""
    try:
        try:
            found = dt.datetime.fromisoformat(value)
        except (TypeError, ValueError):
            found = parse_timestamp(value)
        return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (RuntimeError, OverflowError) as error:
        raise ValueError("a time that cannot be") from error


@lru_cache(maxsize=32)
def _client(server: str, access_key: str, secret: str, region: str) -> Any:
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": 1},
        max_pool_connections=16,
        # No proxy, whatever the environment says: it would connect without the checks of portal/outgoing.py.
        proxies={},
        s3={"addressing_style": "path"},
        # By default botocore presigns URLs with the older signature, which does not cover headers.
        signature_version="s3v4",
        # Not all other servers support the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    with _session_lock:
        client = _session().client(
            "s3",
            endpoint_url=server,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
            region_name=region,
            config=config,
        )
    client.meta.events.register("before-call.s3", _stay_here)
    client.meta.events.register_last("before-call.s3", _unasked)
    # botocore has no public way to check a connection's address; a test covers this private one.
    session = client._endpoint.http_session
    session._pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    session._manager.pool_classes_by_scheme = session._pool_classes_by_scheme
    return client


def _stay_here(params: dict[str, Any], **_: Any) -> None:
    """Marks a region redirect as already followed, because botocore would follow a redirect loop for ever."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _unasked(params: dict[str, Any], **_: Any) -> None:
    if isinstance(params["body"], bytes) and len(params["body"]) <= UNASKED:
        params["headers"].pop("Expect", None)


def _facts(size: int, etag: str) -> tuple[int, str]:
    """Validates size and ETag from the server, because both go into headers. Raises DriverError."""
    if not 0 <= size <= LARGEST or not (etag.isascii() and etag.isprintable()):
        raise DriverError("The server says of a file what cannot be.", "server")
    return size, etag.strip('"')


def _word(error: exceptions.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _from_answer(error: exceptions.ClientError) -> DriverError:
    word = _word(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if word in _WORDS:
        field, sentence = _WORDS[word]
        return DriverError(sentence, field)
    if word in _ABSENT:
        return NotThere("There is no such file any more.")
    if word in _DENIED:
        return DriverError("The server refuses these keys.", "access_key")
    if status in (301, 307):
        return DriverError("The bucket lies in another region.", "region")
    if status >= 500:
        return DriverError(
            "The server answers with an error of its own; is this an S3 server, and is it well?", "server"
        )
    if not word:
        return DriverError("The server answers, but not as an S3 server does.", "server")
    # The message comes from the server and may be anything; its code is short, and the server's operator knows it.
    return DriverError(f"The server answers “{word[:60]}”.", "server")


def _why(error: BaseException) -> str:
    text = repr(_cause(error, OSError) or error.__cause__ or error.__context__ or error)
    if "Name or service" in text or "NameResolution" in text or "name resolution" in text:
        return "there is no server of this name"
    return "the connection is refused" if "refused" in text else "nothing answers"


def _cause(error: BaseException, kind: type[Raised]) -> Raised | None:
    """The first exception of `kind` among an error, its causes, and what botocore wrapped in it."""
    left: list[BaseException | None] = [error]
    while left:
        item = left.pop()
        if isinstance(item, kind):
            return item
        if item is not None:
            left += [getattr(item, "kwargs", {}).get("error"), item.__cause__]
    return None
