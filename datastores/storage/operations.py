"""Determines a request's S3 operation from its method, path, query and copy source; it never reads bodies. Pure.

The operations and their parameters come from botocore's model of S3. A query parameter that S3 does not define for an
operation makes the request unknown, so no request is mistaken for another: a server that overlooks `?tagging` would
store a `PUT` of tags as the object's content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote

from botocore.loaders import Loader

# Parameters of presigned URLs (SigV4, and the older signature that some clients still use), and the operation name that
# some clients add for readers of logs.
_V4 = ("algorithm", "credential", "date", "expires", "signedheaders", "signature", "security-token", "content-sha256")
SIGNING = frozenset({*(f"x-amz-{name}" for name in _V4), "awsaccesskeyid", "signature", "expires", "x-id"})
_COPY_SOURCE = "x-amz-copy-source"
ENCRYPTION = "x-amz-server-side-encryption"
# The SHA-256 of an empty body.
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Confusing(ValueError):
    """Two programs could parse this path differently."""


@dataclass(frozen=True)
class Shape:
    """How to recognise an operation: `path` is 0 for the server itself, 1 for a bucket, 2 for an object. Its query has
    `said` with these values and `needed` with any value, and may have `known`."""

    name: str
    method: str
    path: int
    said: Mapping[str, str]
    needed: frozenset[str]
    known: frozenset[str]
    copies: bool

    def fits(self, query: Mapping[str, str], *, copies: bool) -> bool:
        names = {name for name, value in self.said.items() if query.get(name) == value} | self.needed & query.keys()
        return copies == self.copies and names == self.said.keys() | self.needed


@dataclass(frozen=True)
class Asked:
    """A request as an S3 operation ("" if S3 has none) on a bucket, with its access key and the buckets that it copies
    from. A presigned URL is valid for `lasts` seconds from a time that the store knows, or until `ends`, in seconds
    since 1970; both are 0 for a request signed by headers. `is_empty`: its headers announce an empty body."""

    operation: str
    bucket: str = ""
    access_key: str = ""
    sources: frozenset[str] = field(default_factory=frozenset)
    lasts: int = 0
    ends: int = 0
    key: str = ""
    encryption: str = ""
    is_empty: bool = False
    overrides_by_v2: bool = False


@cache
def shapes() -> tuple[Shape, ...]:
    """The shapes of all S3 operations, most specific first. The model is read once."""
    model = Loader().load_service_model("s3", "service-2")
    found = [_shape(name, each, model["shapes"]) for name, each in model["operations"].items()]
    return tuple(sorted((each for each in found if each), key=lambda each: -len(each.said) - len(each.needed)))


def read(
    method: str, uri: str, *, authorization: str = "", copy_source: str = "", encryption: str = "", body: str = ""
) -> Asked:
    """Parses a request for `uri` (path and query as sent); `body` is the announced digest or length of its body. Raises
    Confusing."""
    raw, _, text = uri.partition("?")
    bucket, key = split_path(raw)
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError as error:
        raise Confusing("This query cannot be read.") from error
    query = dict(pairs)
    if len(query) != len(pairs):
        raise Confusing("A name stands in the query twice.")
    lower = {name.lower(): value for name, value in pairs}
    if bool(authorization) + ("x-amz-credential" in lower) + ("awsaccesskeyid" in lower) > 1:
        raise Confusing("Sign a request once, by its headers or by its address.")
    sources = frozenset({split_path(unquote(copy_source.partition("?")[0]), decoded=True)[0]} if copy_source else ())
    return Asked(
        _operation(method, 2 if key else 1 if bucket else 0, query, copies=bool(copy_source)),
        bucket,
        _key_in(authorization, lower.get("x-amz-credential", "")) or lower.get("awsaccesskeyid", ""),
        sources,
        _number(lower.get("x-amz-expires", "0")),
        _number(lower.get("expires", "0")),
        key,
        encryption or next((value for name, value in lower.items() if name.startswith(ENCRYPTION)), ""),
        body in ("0", NOTHING),
        "awsaccesskeyid" in lower and any(name.startswith("response-") for name in lower),
    )


def split_path(raw: str, *, decoded: bool = False) -> tuple[str, str]:
    """Bucket and key of a path. Raises Confusing if a server could see another bucket in it."""
    path = raw if decoded else unquote(raw)
    words = path.removeprefix("/").split("/")
    if not (decoded or raw.startswith("/")) or any(word in (".", "..") for word in words) or path.startswith("//"):
        raise Confusing("A path has no parts “.” and “..”.")
    if "%" in raw.removeprefix("/").partition("/")[0] or "\\" in path or "\0" in path or path.startswith("/arn:"):
        raise Confusing("A path has no such characters.")
    return words[0], "/".join(words[1:])


def _operation(method: str, path: int, query: Mapping[str, str], *, copies: bool) -> str:
    """The most specific operation that matches; "" if the query has parameters that it does not know."""
    for each in shapes():
        if (each.method, each.path) == (method, path) and each.fits(query, copies=copies):
            more = {name for name in query if name not in each.known and name.lower() not in SIGNING}
            return "" if more else each.name
    return ""


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Confusing("This is no number of seconds.")
    return int(text)


def _key_in(authorization: str, credential: str) -> str:
    """The access key of a SigV4 signature, the only version allowed in headers."""
    scheme, _, rest = authorization.partition(" ")
    if scheme == "AWS4-HMAC-SHA256":
        parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        credential = parts.get("Credential", "")
    return credential.split("/")[0]


def _shape(name: str, operation: Mapping[str, Any], shapes: Mapping[str, Any]) -> Shape | None:
    path, _, text = operation["http"]["requestUri"].partition("?")
    levels = {"/": 0, "/{Bucket}": 1, "/{Bucket}/{Key+}": 2}
    if path not in levels:
        return None
    said = dict(parse_qsl(text, keep_blank_values=True))
    request = shapes[operation["input"]["shape"]] if "input" in operation else {"members": {}}
    members = {member: each for member, each in request["members"].items() if "location" in each}
    asked = {member: each["locationName"] for member, each in members.items() if each["location"] == "querystring"}
    required = set(request.get("required", ()))
    headers = {
        each["locationName"] for member, each in members.items() if each["location"] == "header" and member in required
    }
    return Shape(
        name,
        operation["http"]["method"],
        levels[path],
        said,
        frozenset(asked[member] for member in asked.keys() & required),
        frozenset(asked.values()) | said.keys(),
        _COPY_SOURCE in headers,
    )
