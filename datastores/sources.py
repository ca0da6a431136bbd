"""What a mount needs of a datastore, as plain values; repr hides the secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from datastores import exports
from datastores.access import allowed_folder
from datastores.models import Datastore
from datastores.specs import Kind


class SourceError(Exception):
    """It can no longer be mounted. The text is a sentence for people."""


@dataclass(frozen=True)
class StoreSource:
    """One folder of a datastore. `fields` by kind, paths with the folder joined:     s3: endpoint, bucket, prefix,
    access_key, region (`secret` is the secret key) · nfs: server, path, root (the export, which     contains the path)
    · volume: storage_class, size, access_mode, folder · local: root (the allowed folder), path (inside it)."""

    kind: Kind
    fields: Mapping[str, str]
    read_only: bool = False
    secret: str = field(default="", repr=False)


def source_for(store: Datastore, folder: str = "") -> StoreSource:
    """`folder` is relative to the datastore, "" for all of it. One query for `local`, none otherwise. Raises
    SourceError if an administrator has closed the folder or NFS export that contains it."""
    spec: dict[str, str] = store.spec
    if store.kind == Datastore.Kind.S3:
        fields = {
            "endpoint": spec["server"],
            "bucket": spec["bucket"],
            "prefix": "/".join(part for part in (spec["prefix"], folder) if part),
            "access_key": spec["access_key"],
            "region": spec["region"],
        }
        return StoreSource("s3", fields, secret=store.secret or "")
    if store.kind == Datastore.Kind.VOLUME:
        return StoreSource("volume", {**spec, "folder": folder})
    path = f"{spec['path'].rstrip('/')}/{folder}" if folder else spec["path"]
    if store.kind == Datastore.Kind.NFS:
        if sentence := exports.why_not(spec["server"], spec["path"], store.appcode.code):
            raise SourceError(f"Datastore {store.name}: {sentence}")
        return StoreSource("nfs", {"server": spec["server"], "path": path, "root": spec["path"]})
    allowed = allowed_folder(store.appcode, spec["path"])
    if allowed is None:
        raise SourceError(
            f"Datastore {store.name}: an administrator does not allow the folder {spec['path']} any more."
        )
    return StoreSource("local", {"root": allowed.path, "path": path}, read_only=allowed.read_only)
