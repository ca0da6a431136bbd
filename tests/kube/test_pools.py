"""Pools as real clusters have them: labels, taints, MIG slices and another vendor's GPUs, placed by the real scheduler."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Loops
from tests.kube.plane import Plane
from tests.kube.test_faults import end_all

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]

ZONE, MIG, AMD = "topology.kubernetes.io/zone", "nvidia.com/mig-1g.10gb", "amd.com/gpu"
TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}
FLAVORS: dict[str, dict[str, Any]] = {
    "pool": {
        "gpus": 8,
        "node_labels": {ZONE: "eu-1"},
        "tolerations": [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
    },
    "mig": {"gpus": 2, "gpu_model": "H100 1g.10gb", "resource": MIG},
    "amd": {"gpus": 4, "gpu_model": "MI300X", "resource": AMD, "extra": {"rdma/hca": 1}},
    "nowhere": {"gpus": 1, "node_labels": {ZONE: "moon-1"}},
}


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    from clusters.catalog.models import Flavor
    from portal.models import Appcode

    loops = Loops(plane, f"pools-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    for name, facts in FLAVORS.items():
        Flavor.objects.create(name=name, title=name, cpu_milli=100, memory_mb=128, **facts)
    Appcode.objects.update(gpu_quota=10_000)
    loops.start()
    try:
        yield loops
        end_all(loops)
    finally:
        loops.stop()


def test_each_flavor_goes_where_it_belongs_and_is_counted_and_billed_as_what_it_is(
    plane: Plane, loops: Loops, people: Any, client: Any
) -> None:
    from billing.models import UsageSegment
    from clusters.clouds.models import CloudState
    from clusters.runs.placing.known import capacity_of

    kept, far = plane.add_nodes(1, labels={ZONE: "eu-1"}, taints=[TAINT]), plane.add_nodes(1, labels={ZONE: "eu-2"})
    [mixed], [amd] = plane.add_nodes(1, gpus=4), plane.add_nodes(1, gpus=0)
    for node, size in ((mixed, {MIG: "14"}), (amd, {AMD: "8", "rdma/hca": "2"})):
        plane.request("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"capacity": size, "allocatable": size}})

    def seen() -> dict[str, Any]:
        return {node.name: node for node in capacity_of("kubernetes").nodes}

    loops.until(lambda: {*kept, *far, mixed, amd} <= seen().keys() and seen()[mixed].slices and seen()[amd].gpus == 8)
    assert seen()[kept[0]].takes_tasks, "a flavor tolerates its taint"

    where = {"pool": kept[0], "mig": mixed, "amd": amd}
    clusters = {name: loops.create(people, name, flavor=name) for name in FLAVORS}
    for name, node in where.items():
        run = loops.until_running(clusters[name])
        assert {task.node for task in run.tasks.all()} == {node}, name
        assert run.gpus == (0 if name == "mig" else FLAVORS[name]["gpus"]), "a slice is no GPU of the quota"
        assert run.times_given_back == 0
    message = f"No node has the label {ZONE}=moon-1, which one master needs. Choose another flavor."
    loops.until(lambda: loops.run(clusters["nowhere"]).message == message)
    # A second task of 8 GPUs of the pool would fit on other nodes, which have no such label.
    second = loops.create(people, "second", flavor="pool")
    waits = f"It needs 8 GPUs; 0 of 8 with the label {ZONE}=eu-1 are free. It starts as soon as enough are free."
    loops.until(lambda: loops.run(second).message == waits)

    loops.until(lambda: seen()[mixed].slices[0].free == 12 and seen()[amd].gpus_free == 4)
    one = seen()[mixed]
    assert (one.gpus, one.gpus_free, one.slices[0].resource, one.slices[0].total) == (4, 4, MIG, 14)
    # What release 1.0 reads: only what it can place tasks on.
    stored = {node["name"]: node for node in CloudState.objects.get(name="kubernetes").capacity["nodes"]}
    assert [stored[name]["gpus_free"] for name in (kept[0], amd, mixed)] == [0, 0, 4]
    assert not stored[kept[0]]["takes_tasks"]

    client.force_login(people.bob)
    page = client.get("/queue").content.decode()
    assert "12 of 14 mig-1g.10gb free" in page
    loops.until(lambda: UsageSegment.objects.count() == 3)
    models = {each.labels["flavor"]: (each.gpu_model, each.gpus) for each in UsageSegment.objects.all()}
    assert models == {"pool": ("NVIDIA-A100", 8), "mig": ("H100 1g.10gb", 2), "amd": ("MI300X", 4)}
    loops.disable(people, clusters["pool"])
    assert {task.node for task in loops.until_running(second).tasks.all()} == {kept[0]}
