"""A version as an archive for MLflow, streamed from its datastore."""

from __future__ import annotations

import datetime as dt

from zipstream import ZipStream

from clusters.environments.models import Environment
from clusters.model_registry import mlflow
from clusters.model_registry.models import ModelVersion
from datastores.actions import open_store
from datastores.files import contents
from portal.errors import Conflict


def packed(version: ModelVersion) -> ZipStream:
    """Not compressed, so its size is known beforehand. Raises Conflict and DriverError."""
    if version.state != ModelVersion.State.READY or version.frozen is None:
        raise Conflict(f"Version {version.number} is {version.state}; only what is Ready can be taken along.")
    driver = open_store(version.frozen.datastore)
    archive = ZipStream(sized=True)
    name, _, number = (version.lineage.get("environment") or "").partition(":")
    rows = Environment.objects.filter(appcode=version.model.appcode_id, name=name)
    environment = rows.filter(version=int(number)).first() if number.isdecimal() else None
    own = mlflow.files(
        version.model.name, version.number, format_=version.format, paths=[each["path"] for each in version.files],
        signature=version.signature, sample=version.sample, lineage=version.lineage,
        digests={each["path"]: each["sha256"] for each in version.files},
        created=f"{version.created_at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S.%f}", lock=environment.lock if environment else "",
    )  # fmt: skip
    for path, data in own.items():
        archive.add(data, path)
    folder = f"{version.folder}/" if version.folder else ""
    for each in version.files:
        contents.pack(archive, driver, f"{folder}{each['path']}", f"{mlflow.DATA}/{each['path']}", each["size"])
    return archive
