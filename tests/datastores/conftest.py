"""Datastores on the real S3 server of the tests, in local folders, and as manifests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datastores.specs import DatastoreManifest


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the limit of a connection test from 5 to 60 s, because servers answer slowly on a busy machine."""
    monkeypatch.setattr("datastores.actions.TEST_SECONDS", 60)


@pytest.fixture
def s3_spec(s3: Any, bucket: str) -> Callable[..., dict[str, Any]]:
    """s3_spec(prefix="x") → {"s3": {…}} for a new empty bucket; keyword arguments replace fields, None leaves one out."""

    def make(**changes: Any) -> dict[str, Any]:
        fields = {"server": s3.url, "access_key": s3.access_key, "secret_key": s3.secret_key, "bucket": bucket}
        return {"s3": {name: value for name, value in (fields | changes).items() if value is not None}}

    return make


def body(name: str, spec: dict[str, Any], appcode: str = "ops-demo") -> dict[str, Any]:
    return {"kind": "datastore", "metadata": {"name": name, "appcode": appcode}, "spec": spec}


@pytest.fixture
def manifest() -> Callable[..., DatastoreManifest]:
    """manifest("data", {"s3": {…}}, appcode="ops-demo") → DatastoreManifest."""
    return lambda *args, **kwargs: DatastoreManifest.model_validate(body(*args, **kwargs))


@pytest.fixture
def store(people: Any, s3_spec: Callable[..., dict[str, Any]], manifest: Callable[..., DatastoreManifest]) -> Any:
    """A saved S3 datastore of ops-demo called data."""
    from datastores.actions import create_datastore

    return create_datastore(manifest("data", s3_spec()), acting_user=people.alice)


@pytest.fixture
def folder(db: None, tmp_path: Path) -> Path:
    """A local folder that an administrator opened to every appcode."""
    from datastores.models import AllowedFolder

    path = tmp_path / "allowed"
    path.mkdir()
    AllowedFolder.objects.create(path=str(path))
    return path
