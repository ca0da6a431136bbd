"""Documents of datastores: `{kind, metadata, spec, status}`, with every field of the spec except the secret.

A document can be sent back unchanged: a change without a secret keeps the stored one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from datastores.actions import Outcome
from datastores.extension_points import uses_of
from datastores.models import Datastore
from datastores.sharing import MOST
from datastores.specs import DatastoreManifest, DatastoreMetadata, LocalSpec, NfsSpec, VolumeSpec
from portal.access import VIEW, may
from portal.api.documents import Answer, page_of
from portal.manifests import Strict, parse
from portal.models import User


class S3Shown(BaseModel):
    """Everything except the secret key."""

    server: str
    access_key: str
    bucket: str
    prefix: str
    region: str


class SpecShown(BaseModel):
    """One of the four; the others are absent."""

    s3: S3Shown | None = None
    nfs: NfsSpec | None = None
    volume: VolumeSpec | None = None
    local: LocalSpec | None = None


class VolumeStatus(Answer):
    """Where a volume was made, and its current size; `message` says why it did not get the desired size."""

    cloud: str
    namespace: str
    size: str
    made: dt.datetime
    message: str


class DatastoreStatus(Answer):
    """The last test (null before the first), the clusters that use the datastore, and its volume once it was made."""

    tested: dt.datetime | None
    ok: bool | None
    message: str
    used_by: list[str]
    volume: VolumeStatus | None


class DatastoreDocument(Answer):
    kind: Literal["datastore"] = "datastore"
    metadata: DatastoreMetadata
    spec: SpecShown
    status: DatastoreStatus


DatastorePage = page_of("DatastorePage", DatastoreDocument)


Codes = Annotated[list[Annotated[str, StringConstraints(max_length=200)]], Field(max_length=MOST)]


class ReadersManifest(Strict):
    """Who else may read a datastore."""

    appcodes: Codes = Field(default_factory=list, examples=[["ops-more"]])
    lines: Codes = Field(default_factory=list, description="Business lines, with everything below them.")
    everybody: bool = False


class ReadersDocument(Answer):
    """Who else may read a datastore."""

    appcodes: list[str]
    lines: list[str]
    everybody: bool


class TestAnswer(Answer):
    """`path` names the invalid field, "" if there is none."""

    ok: bool
    message: str = Field(examples=["There is no such bucket on this server."])
    path: str = Field(examples=["spec.s3.bucket"])


def read_manifest(body: Any, *, appcode: str, name: str | None = None) -> DatastoreManifest:
    """Parses a manifest sent to …/appcodes/`appcode`/datastores[/`name`]. Metadata may leave out what the URL contains,
    but not contradict it. Raises Invalid."""
    address = {"appcode": appcode} if name is None else {"appcode": appcode, "name": name}
    return parse(DatastoreManifest, body, **address)


def to_manifest(store: Datastore, *, reader: User | None = None) -> dict[str, Any]:
    """Without access key and users if it is only shared with `reader`."""
    document = to_manifests([store])[0]
    if reader and not may(reader, store.appcode, VIEW):
        document["status"]["usedBy"] = []
        for spec in document["spec"].values():
            spec.update({key: "" for key in spec if key == "access_key"})
    return document


def to_manifests(stores: Sequence[Datastore]) -> list[dict[str, Any]]:
    """The documents, with one query for all users. Appcodes and volumes have to be joined."""
    uses = uses_of(stores)
    return [_document(store, [use.name for use in uses[store.pk]]) for store in stores]


def test_answer(outcome: Outcome) -> dict[str, Any]:
    return TestAnswer(ok=outcome.ok, message=outcome.message, path=".".join(outcome.path)).json_value()


def _document(store: Datastore, used_by: list[str]) -> dict[str, Any]:
    made = store.made
    volume = made and VolumeStatus.of(made, size=made.told_size, made=made.made_at, message=made.trouble)
    status = DatastoreStatus(
        tested=store.tested_at, ok=store.test_ok, message=store.test_message, used_by=used_by, volume=volume
    )
    return {
        "kind": "datastore",
        "metadata": {"name": store.name, "appcode": store.appcode.code},
        "spec": {store.kind: dict(store.spec)},
        "status": status.json_value(),
    }
