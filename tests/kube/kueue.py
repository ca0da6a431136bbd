"""The part of Kueue that the portal reads: the kind LocalQueue, without a controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kube.plane import Plane, Refused
from tests.running import eventually

GROUP, VERSION = "kueue.x-k8s.io", "v1beta1"
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NAME = f"localqueues.{GROUP}"
_SCHEMA: Any = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@contextmanager
def installed(plane: Plane) -> Iterator[None]:
    names = {"plural": "localqueues", "singular": "localqueue", "kind": "LocalQueue", "listKind": "LocalQueueList"}
    version = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": _SCHEMA}}
    body = {
        "metadata": {"name": _NAME},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }
    plane.request("POST", _PATH, body)
    try:
        # The API server publishes and withdraws API groups with a delay.
        assert eventually(lambda: _is_served(plane), 60)
        yield
    finally:
        plane.request("DELETE", f"{_PATH}/{_NAME}")
        assert eventually(lambda: not _is_served(plane), 60)


def make_queue(plane: Plane, namespace: str, name: str) -> None:
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "LocalQueue", "metadata": {"name": name}, "spec": {}}
    plane.request("POST", f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/localqueues", body)


def _is_served(plane: Plane) -> bool:
    try:
        plane.request("GET", f"/apis/{GROUP}")
        plane.request("GET", f"/apis/{GROUP}/{VERSION}/localqueues")
    except Refused as refusal:
        # 429: its storage is being created.
        if refusal.status not in (404, 429):
            raise
        return False
    except ValueError:
        # For a group that it does not serve, the API server answers in plain text.
        return False
    return True
