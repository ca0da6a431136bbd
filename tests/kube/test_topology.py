"""Runs on a real control plane whose nodes say in which rack they are: near each other, or apart."""

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

RACK = "example.com/rack"


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    """Twelve nodes of 8 GPUs are in three racks, and the last is in none."""
    from clusters.catalog.models import Flavor
    from clusters.clouds.models import Cloud, CloudState
    from portal.models import Appcode

    for number, name in enumerate(sorted(plane.nodes())[:12]):
        plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {RACK: f"r{number % 3}"}}})
    loops = Loops(plane, f"racks-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    Flavor.objects.create(name="eight-gpus", title="8 GPUs", cpu_milli=100, memory_mb=128, gpus=8)
    cloud = Cloud.objects.get(name="kubernetes")
    cloud.settings["topology"] = ["topology.kubernetes.io/zone", RACK]
    cloud.save()
    Appcode.objects.update(gpu_quota=10_000)
    loops.start()
    try:
        loops.until(lambda: CloudState.objects.filter(capacity__nodes__12__isnull=False).exists())
        yield loops
        end_all(loops)
    finally:
        loops.stop()


def racks_of(plane: Plane, loops: Loops, run: Any) -> list[str]:
    """Where the scheduler bound its pods."""
    of = {name: node["metadata"]["labels"].get(RACK, "") for name, node in plane.nodes().items()}
    return sorted(of[pod["spec"]["nodeName"]] for pod in loops.pods(run))


def test_gangs_are_bound_in_one_rack_each_and_what_no_rack_holds_starts_anyway(
    plane: Plane, loops: Loops, people: Any, client: Any
) -> None:
    from tests.api.client import api_of

    found = []
    for name, nodes in (("three", 3), ("four", 4), ("two", 2)):
        run = loops.until_running(loops.create(people, name, workers=nodes - 1, flavor="eight-gpus"))
        [rack, *others] = racks_of(plane, loops, run)
        assert set(others) <= {rack}
        found.append(rack)
    assert len(set(found)) == 3
    left = loops.until_running(loops.create(people, "left", workers=3, flavor="eight-gpus"))
    assert racks_of(plane, loops, left) == sorted(["", found[0], found[2], found[2]])
    [queue] = api_of(people.bob).get("/queue")[1]["items"]
    of = {name: node["metadata"]["labels"].get(RACK, "") for name, node in plane.nodes().items()}
    assert {each["name"]: each["domains"] for each in queue["nodes"]} == {
        name: {"rack": rack} if rack else {} for name, rack in of.items()
    }
    client.force_login(people.bob)
    assert f"<small>rack {found[1]}</small>" in client.get("/queue").content.decode()
    assert f"<small>rack {found[1]}</small>" in client.get("/clusters/ops-demo/four").content.decode()


def test_tasks_that_spread_are_bound_in_as_many_racks_as_there_are(plane: Plane, loops: Loops, people: Any) -> None:
    run = loops.until_running(loops.create(people, "apart", workers=3, placement="spread"))
    assert set(racks_of(plane, loops, run)) >= {"r0", "r1", "r2"}
    assert len({pod["spec"]["nodeName"] for pod in loops.pods(run)}) == 4
