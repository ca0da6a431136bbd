"""The manifest of a datastore, as one typed and validated value.

    {"kind": "datastore", "metadata": {"name": "demo-nfs-output", "appcode": "ops-demo"},
     "spec": {"nfs": {"server": "10.0.0.7", "path": "/data/output"}}}

The form, a REST body and a seed all become a `DatastoreManifest`. `spec` has exactly one kind, under the kind's name.
The value is validated on its own; whether a name is taken, a folder allowed or a server reachable is checked elsewhere.
The secret key is a `SecretStr`: it never appears in a repr, a log or a response.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from datastores.listing import TRASH
from portal.manifests import AppcodeName, DnsLabel, Manifest, Strict
from portal.manifests.kept import Kept

MAX_PATH = 1000

Kind = Literal["s3", "nfs", "volume", "local"]
KINDS: tuple[Kind, ...] = ("s3", "nfs", "volume", "local")
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]

# A Kubernetes cluster may allow less; a larger size is certainly a typing error.
MAX_SIZE = 100 * 2**40

# The name of a version of a datastore.
VERSION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,38}[A-Za-z0-9])?")

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[?[0-9A-Fa-f:.]+\]?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_SIZE = re.compile(r"([1-9][0-9]{0,8})(Mi|Gi|Ti)")
_UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_CLASS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def _server(value: str) -> str:
    """An origin like https://minio.example.com:9000, without a trailing slash."""
    try:
        parts = urlsplit(value)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError("This is not an address; write it like https://s3.example.com:9000.") from error
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or port == 0:
        raise ValueError("Give an address that starts with http:// or https://, like https://s3.example.com:9000.")
    if parts.username is not None or parts.password is not None:
        raise ValueError("Keys belong into their own fields, not into the address.")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("Give only the server's address; the bucket and its folder have fields of their own.")
    return value.rstrip("/")


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError("Give the name or the IP address of the NFS server.")
    return value


def _bucket(value: str) -> str:
    if not _BUCKET.fullmatch(value):
        raise ValueError("A bucket's name has 3 to 63 lower-case letters, digits, '-' and '.'.")
    return value


def _region(value: str) -> str:
    if not _REGION.fullmatch(value):
        raise ValueError("Use lower-case letters, digits and '-', like us-east-1.")
    return value


def _printable(value: str) -> str:
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("A key has no spaces, line breaks or special characters; was all of it copied?")
    return value


def _secret(value: SecretStr) -> SecretStr:
    _printable(value.get_secret_value())
    return value


def relative_path(value: str) -> str:
    """A folder or file inside a datastore, without slashes at its ends. Raises ValueError for paths that could leave it."""
    words = value.strip("/").split("/") if value.strip("/") else []
    if any(word in ("", ".", "..") for word in words):
        raise ValueError("Give a path inside the datastore, without empty parts, '.' and '..'.")
    if TRASH in words:
        raise ValueError(f"{TRASH} is where removed files wait; choose another name, or look into the trash.")
    if not value.isprintable() or len(value.encode()) > MAX_PATH:
        raise ValueError(f"A path has at most {MAX_PATH} bytes and no control characters.")
    return "/".join(words)


def absolute_path(value: str) -> str:
    """A path from the root, without a trailing slash. Raises ValueError."""
    if not value.startswith("/") or value.startswith("//"):
        raise ValueError("Give an absolute path, like /data/training.")
    return "/" + relative_path(value)


def size_bytes(size: str) -> int:
    """Bytes of a size like 20Gi. Raises ValueError."""
    found = _SIZE.fullmatch(size)
    if not found:
        raise ValueError("Write a size like 20Gi, 500Mi or 2Ti.")
    return int(found[1]) * _UNITS[found[2]]


def _size(value: str) -> str:
    if size_bytes(value) > MAX_SIZE:
        raise ValueError(f"A volume has at most {MAX_SIZE // 2**40}Ti.")
    return value


def _storage_class(value: str) -> str:
    if value and not _CLASS.fullmatch(value):
        raise ValueError("The name of a storage class has lower-case letters, digits, '-' and '.', like ceph-rbd.")
    return value


def _none_if_empty(value: Any) -> Any:
    return None if value == "" else value


Key = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_printable)]
Secret = Annotated[SecretStr, Field(min_length=1, max_length=500), AfterValidator(_secret)]


class Spec(Strict):
    """Snake-case keys (access_key). Errors never contain the refused value, because it may be a secret."""

    model_config = ConfigDict(alias_generator=None, hide_input_in_errors=True)


class S3Spec(Spec):
    """A bucket, or a folder (`prefix`) of it. Without `secret_key` a change keeps the stored one."""

    server: Annotated[str, StringConstraints(max_length=300), AfterValidator(_server)]
    access_key: Key
    secret_key: Annotated[Secret | None, BeforeValidator(_none_if_empty)] = None
    bucket: Annotated[str, AfterValidator(_bucket)]
    prefix: Annotated[str, AfterValidator(relative_path)] = ""
    region: Annotated[str, AfterValidator(_region)] = "us-east-1"


class NfsSpec(Spec):
    """A folder of an NFS server, mounted by the node that runs a task."""

    server: Annotated[str, StringConstraints(max_length=253), AfterValidator(_host)]
    path: Annotated[str, AfterValidator(absolute_path)]


class VolumeSpec(Spec):
    """A volume that Kubernetes makes by a StorageClass ("" for the default): Ceph RBD, CephFS or another CSI driver.
    ReadWriteOnce, which is all that most block storage supports, is mounted by one task at a time."""

    storage_class: Annotated[str, AfterValidator(_storage_class)] = ""
    size: Annotated[str, AfterValidator(_size)]
    access_mode: AccessMode = "ReadWriteOnce"


class LocalSpec(Spec):
    """A folder of the portal's own machine, inside one that an administrator allowed."""

    path: Annotated[str, AfterValidator(absolute_path)]


class DatastoreSpec(Spec):
    """Exactly one of the four."""

    s3: S3Spec | None = None
    nfs: NfsSpec | None = None
    volume: VolumeSpec | None = None
    local: LocalSpec | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"Give exactly one of {', '.join(KINDS)}; here are {len(given)}.")
        return self

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def public(self) -> dict[str, str]:
        """The fields of the given kind without secrets, for storing, display and responses."""
        only: BaseModel = getattr(self, self.kind)
        fields: dict[str, str] = only.model_dump(mode="json", exclude={"secret_key"})
        return fields

    @property
    def secret(self) -> str:
        """The secret key, or "" if none was given."""
        return self.s3.secret_key.get_secret_value() if self.s3 and self.s3.secret_key else ""


class DatastoreMetadata(Strict):
    name: Annotated[DnsLabel, Kept("A datastore keeps its name: clusters mount it by that.")]
    appcode: Annotated[AppcodeName, Kept("A datastore stays in its appcode; make another one there.")]


class DatastoreManifest(Manifest):
    """A datastore: `kind`, `metadata` and `spec`."""

    model_config = ConfigDict(hide_input_in_errors=True)

    kind: Literal["datastore"] = "datastore"
    metadata: DatastoreMetadata
    spec: DatastoreSpec
