"""Serializes the contract's values as JSON, for the agent's socket and files, and connects to that socket.

A request is one line and its answer another; bytes (a log, command output) follow a line with their number. A watch answers one
line per batch.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusters.clouds.drivers.base import (
    ActivitySeen,
    Batch,
    Capacity,
    CodeCommit,
    CodeFiles,
    Endpoint,
    EndpointSeen,
    Environment,
    GpuNow,
    GpuUse,
    ImageRef,
    LocalSource,
    Measurements,
    Mount,
    NfsSource,
    Node,
    Plan,
    RolePlan,
    RunGone,
    RunRef,
    S3Source,
    Sample,
    Samples,
    Seen,
    Source,
    StorageSeen,
    TaskSeen,
    VolumeRef,
    VolumeSource,
)

SOURCES: dict[str, type[Source]] = {"s3": S3Source, "nfs": NfsSource, "local": LocalSource, "volume": VolumeSource}
SEEN: dict[str, type[Seen]] = {
    "task": TaskSeen, "storage": StorageSeen, "endpoint": EndpointSeen, "activity": ActivitySeen, "gone": RunGone,
}  # fmt: skip
_NAMES: dict[type, str] = {kind: name for kinds in (SOURCES, SEEN) for name, kind in kinds.items()}
_TIMES = ("scheduled_at", "began_at", "started_at", "finished_at")


def dumps(value: Any) -> bytes:
    """Returns one line of JSON."""
    return (
        json.dumps(value, ensure_ascii=False, default=_plain, separators=(",", ":")).encode("utf-8", "surrogatepass")
        + b"\n"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    fields = dict(vars(value))
    if isinstance(value, RolePlan):
        # This machine has nothing that could be demanded, and agents of older releases know no such word.
        del fields["demand"]
    if type(value) in _NAMES:
        fields["kind"] = _NAMES[type(value)]
    return fields


def plan_from(data: dict[str, Any]) -> Plan:
    return Plan(
        run=RunRef(**data["run"]),
        image=ImageRef(**data["image"]),
        roles=tuple(_role_from(role) for role in data["roles"]),
        mounts=tuple(Mount(**{**mount, "source": _source_from(mount["source"])}) for mount in data["mounts"]),
        grace_seconds=data["grace_seconds"],
        shared=data["shared"],
        secrets=data["secrets"],
        proof=data["proof"],
        environment=Environment(**data["environment"]) if data.get("environment") else None,
        code=_code_from(data["code"]) if data.get("code") else None,
        tracking_token=data.get("tracking_token", ""),
    )


def _code_from(data: dict[str, Any]) -> CodeFiles | CodeCommit:
    return CodeFiles(**data) if "files" in data else CodeCommit(**data)


def _role_from(data: dict[str, Any]) -> RolePlan:
    endpoints = tuple(Endpoint(**endpoint) for endpoint in data["endpoints"])
    return RolePlan(**{**data, "argv": tuple(data["argv"]), "endpoints": endpoints, "nodes": tuple(data["nodes"])})


def _source_from(data: dict[str, Any]) -> Source:
    fields = {key: value for key, value in data.items() if key != "kind"}
    if data["kind"] == "volume":
        fields["volume"] = VolumeRef(**fields["volume"])
    return SOURCES[data["kind"]](**fields)


def seen_from(data: dict[str, Any]) -> Seen:
    fields = {key: value for key, value in data.items() if key != "kind"}
    if data["kind"] == "task":
        fields["gpus"] = tuple(fields["gpus"])
        for name in _TIMES:
            if fields[name] is not None:
                fields[name] = dt.datetime.fromisoformat(fields[name])
    if data["kind"] == "activity":
        fields["since"] = dt.datetime.fromisoformat(fields["since"])
    return SEEN[data["kind"]](**fields)


def batch_from(data: dict[str, Any]) -> Batch:
    return Batch(data["position"], tuple(seen_from(item) for item in data["items"]))


def capacity_from(data: dict[str, Any]) -> Capacity:
    return Capacity(tuple(Node(**node) for node in data["nodes"]))


def measurements_from(data: dict[str, Any]) -> Measurements:
    items = (GpuUse(**{**item, "minute": dt.datetime.fromisoformat(item["minute"])}) for item in data["items"])
    return Measurements(data["position"], tuple(items), data["note"])


def samples_from(data: dict[str, Any]) -> Samples:
    items = (Sample(**{**item, "gpus": tuple(GpuNow(**gpu) for gpu in item["gpus"])}) for item in data["items"])
    return Samples(tuple(items), data["notes"])


class At:
    """A short path of a socket via its folder's handle, because the kernel limits socket paths to 107 bytes."""

    def __init__(self, path: str | Path) -> None:
        self.folder, self.name = os.path.split(os.path.abspath(path))

    def __enter__(self) -> str:
        self.handle = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self.handle}/{self.name}"

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def connect(path: str, timeout: float) -> socket.socket:
    """Connects to the agent. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        with At(path) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        raise
    return connection
