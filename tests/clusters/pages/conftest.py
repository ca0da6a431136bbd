"""A catalogue, and clusters with runs in every phase, written as the loop would have left them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest


@pytest.fixture
def catalogue(db: None) -> None:
    from django.core.cache import cache

    from clusters.clouds.drivers.base import Capacity, Node
    from clusters.models import Flavor, Image
    from clusters.runs.observe import save_capacity

    cache.clear()
    Flavor.objects.create(name="small", title="Small", cpu_milli=500, memory_mb=512)
    Flavor.objects.create(name="middle-1-gpu", title="Middle + 1 GPU", cpu_milli=1000, memory_mb=2048, gpus=1)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr")
    Image.objects.create(name="container-only", title="Container only", container="example.com/x:1")
    node = {
        "name": "here", "gpu_model": "simulated", "gpus": 8, "gpus_free": 8, "cpu_milli": 8000, "memory_mb": 16384,
        "simulated": True, "note": "Memory limits are not enforced here.",
    }  # fmt: skip
    save_capacity("local", Capacity((Node(**node),)))


@pytest.fixture
def stores(people: Any) -> None:
    from datastores.models import Datastore

    for appcode in (people.ops, people.flight):
        for name in ("data", "results"):
            Datastore.objects.create(
                appcode=appcode, name=name, kind="nfs", spec={"server": "nfs.example.com", "path": "/x"}
            )


@pytest.fixture
def document() -> Any:
    """document("demo", workers=2, command="…") → a manifest's dictionary in ops-demo."""

    def make(
        name: str = "demo", appcode: str = "ops-demo", *, ps: int = 0, workers: int = 0, **spec: Any
    ) -> dict[str, Any]:
        roles = {"master": {"flavor": "middle-1-gpu"}}
        if ps:
            roles["ps"] = {"flavor": "small", "count": ps}
        if workers:
            # The quota of the tests' appcodes is 8 GPUs.
            roles["worker"] = {"flavor": "middle-1-gpu" if workers < 8 else "small", "count": workers}
        spec = {"image": "tensorflow", "command": "true", "roles": roles, **spec}
        return {"kind": "cluster", "metadata": {"name": name, "appcode": appcode}, "spec": spec}

    return make


@pytest.fixture
def make_cluster(catalogue: None, people: Any, document: Any) -> Any:
    """make_cluster("demo", phase="Running", workers=2, by=bob) → Cluster whose first run was left in that phase."""
    from clusters.actions import create_cluster
    from clusters.manifest import ClusterManifest
    from clusters.models import Run

    def make(
        name: str = "demo", *, phase: str = "Queued", by: Any = None, run: dict[str, Any] | None = None, **spec: Any
    ) -> Any:
        manifest = ClusterManifest.model_validate(document(name, **spec))
        cluster = create_cluster(manifest, acting_user=by or people.alice)
        now = dt.datetime.now(dt.UTC)
        facts: dict[str, Any] = {"phase": phase}
        if phase != "Queued":
            facts |= {"started_at": now - dt.timedelta(minutes=5)}
        if phase == "Running":
            facts["roles"] = {
                role: {"ready": each["count"], "count": each["count"]}
                for role, each in cluster.current_run.roles.items()
            }
        if phase in ("Succeeded", "Failed", "Stopped"):
            facts |= {"finished_at": now, "verdict": phase, "gone": True}
        Run.objects.filter(pk=cluster.current_run_id).update(**facts, **(run or {}))
        cluster.refresh_from_db()
        return cluster

    return make


@pytest.fixture
def as_person(client: Any) -> Any:
    """as_person(alice) → a client that is signed in as her."""

    def sign_in(user: Any) -> Any:
        client.force_login(user)
        return client

    return sign_in
