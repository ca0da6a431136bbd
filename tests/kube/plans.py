"""Plans as the portal makes them, for tests of the Kubernetes cloud."""

from __future__ import annotations

import itertools
from typing import Any

from clusters.clouds.base import ImageRef, Mount, Plan, RolePlan, RunRef, S3Source

_ids = itertools.count(1000)
IMAGE = ImageRef("tensorflow", "example/tensorflow:2.21", "", "")


def run_ref(namespace: str = "ops", **changes: Any) -> RunRef:
    """A run with an id that no other has in this process."""
    return RunRef(
        **{"id": next(_ids), "namespace": namespace, "appcode": "demo", "cluster": "mnist", "number": 3, **changes}
    )


def role(name: str, count: int = 1, **changes: Any) -> RolePlan:
    facts: dict[str, Any] = {
        "role": name,
        "count": count,
        "argv": ("bash", "-c", "python train.py"),
        "env": {"PORTAL_ROLE": name},
        "cpu_milli": 500,
        "memory_mb": 512,
        "gpus": 1,
        "gpu_model": "",
        "restart": "OnFailure",
        "retries": 1,
    }
    return RolePlan(**{**facts, **changes})


def plan(*roles: RolePlan, run: RunRef | None = None, **changes: Any) -> Plan:
    facts = {"run": run or run_ref(), "image": IMAGE, "roles": roles or (role("master"),), "mounts": ()}
    return Plan(**{**facts, **changes})


def bucket(name: str, prefix: str = "") -> S3Source:
    return S3Source("https://s3.example:9000", name, prefix, "AKIAEXAMPLE", "very-secret", "eu-1")


def data() -> tuple[Mount, Mount]:
    return (
        Mount("/elearn/input", True, bucket("digits")),
        Mount("/elearn/output", False, bucket("models", "mnist/3")),
    )
