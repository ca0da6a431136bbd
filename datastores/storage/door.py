"""Decides about one request to the portal's object storage, before the store gets it. Pure.

The store itself checks signatures and separates buckets. The door only narrows: to currently valid keys, to the key's
bucket, and to the operations listed here. It sees only headers, so it knows no sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from datastores.storage.operations import Asked

READS = frozenset({
    "GetBucketLocation", "GetBucketVersioning", "GetObject", "GetObjectTagging", "HeadBucket", "HeadObject", "ListBuckets",
    "ListMultipartUploads", "ListObjects", "ListObjectsV2", "ListParts",
})  # fmt: skip
# Operations that add data; refused when the appcode's limit is reached.
ADDS = frozenset({
    "CompleteMultipartUpload", "CopyObject", "CreateMultipartUpload", "PutObject", "UploadPart", "UploadPartCopy",
})  # fmt: skip
REMOVES = frozenset({
    "AbortMultipartUpload", "DeleteObject", "DeleteObjectTagging", "DeleteObjects", "PutObjectTagging",
})  # fmt: skip
# The headers that the gateway forwards for the decision.
HEARD = (
    "Authorization", "X-Amz-Copy-Source", "X-Amz-Server-Side-Encryption", "X-Amz-Decoded-Content-Length", "X-Amz-Content-Sha256",
)  # fmt: skip
# Seconds; the same as S3's limit.
LONGEST = 7 * 24 * 3600
ALLOWED = READS | ADDS | REMOVES


@dataclass(frozen=True)
class Grant:
    """What a valid access key opens. `full`: the bucket has reached its limit."""

    bucket: str
    full: bool = False


@dataclass(frozen=True)
class Refusal:
    """An error with S3's codes, which its clients understand."""

    status: int
    code: str
    message: str

    def xml(self, resource: str) -> str:
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message>'
            f"<Resource>{escape(resource)}</Resource></Error>"
        )


NO_KEY = Refusal(403, "AccessDenied", "Sign this request with an access key, by Signature Version 4.")
UNKNOWN_KEY = Refusal(403, "InvalidAccessKeyId", "This access key does not exist, or it was stopped.")
NOT_YOURS = Refusal(403, "AccessDenied", "This access key is for another bucket.")
YOURS_ALREADY = Refusal(409, "BucketAlreadyOwnedByYou", "The bucket of this access key exists.")
TOO_LONG = Refusal(400, "AuthorizationQueryParametersError", "A signed address is good for at most seven days.")
NOT_OFFERED = Refusal(501, "NotImplemented", "This storage does not offer what was asked for.")
FULL = Refusal(403, "QuotaExceeded", "The bucket has as much as it may; remove something, or ask for a larger limit.")
NOT_ENCRYPTED = Refusal(501, "NotImplemented", "This storage encrypts nothing; leave out x-amz-server-side-encryption.")
NO_SUCH_KEY = Refusal(404, "NoSuchKey", "There is no such key: no key here begins with “/” or has “//”.")
NO_FOLDER = Refusal(501, "NotImplemented", "A key that begins with “/” or has “//” is not offered.")
NO_CONTENT = Refusal(501, "NotImplemented", "A key that ends with “/” is a folder here and takes no content.")
OLD_SIGNATURE = Refusal(400, "InvalidRequest", "Sign an address with response-… by Signature Version 4 (s3v4).")
AWAY = Refusal(503, "ServiceUnavailable", "It is not known just now who may do this. Try again.")


def judge(asked: Asked, grant: Grant | None, now: float) -> Refusal | None:
    """The refusal of a request, or None to let it through. `grant` is that of `asked.access_key`, `now` in seconds since 1970."""
    if not asked.access_key:
        return NO_KEY
    if grant is None:
        return UNKNOWN_KEY
    if asked.lasts > LONGEST or asked.ends > now + LONGEST:
        return TOO_LONG
    if asked.operation == "CreateBucket" and asked.bucket == grant.bucket:
        # Many clients create the bucket before they write to it.
        return YOURS_ALREADY
    if asked.operation not in ALLOWED:
        return NOT_OFFERED
    if {asked.bucket, *asked.sources} - {grant.bucket} and asked.operation != "ListBuckets":
        return NOT_YOURS
    return _differs(asked) or (FULL if grant.full and asked.operation in ADDS else None)


def _differs(asked: Asked) -> Refusal | None:
    """Refuses what a store on a file system would handle differently from S3 and lose, instead of answering 200."""
    if asked.key.startswith("/") or "//" in asked.key:
        return NO_SUCH_KEY if asked.operation in READS else NO_FOLDER
    if asked.key.endswith("/") and asked.operation in ADDS and not (asked.operation == "PutObject" and asked.is_empty):
        return NO_CONTENT
    if asked.encryption and asked.operation in ADDS:
        return NOT_ENCRYPTED
    return OLD_SIGNATURE if asked.overrides_by_v2 else None
