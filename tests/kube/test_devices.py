"""Nodes whose GPUs Kubernetes knows from ResourceSlices alone: pods ask for `nvidia.com/gpu` as ever, and the portal counts what
kube-scheduler hands out."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from clusters.clouds.drivers.base import Node, Slices
from clusters.clouds.drivers.kubernetes.settings import GPU, GPU_MODEL
from clusters.clouds.drivers.kubernetes.watch.devices import Devices, with_devices
from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Loops
from tests.kube.plane import Plane
from tests.kube.test_faults import end_all
from tests.kube.test_plane import of, pod

pytestmark = pytest.mark.kube

API = "/apis/resource.k8s.io/v1"
MODEL, DRIVER = "NVIDIA-BY-CLAIM", "gpu.example.com"
SELECTOR = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"


def device_class(name: str, selector: str = SELECTOR, resource: str = GPU) -> dict[str, Any]:
    spec = {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": resource}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def resource_slice(node: str, gpus: int, generation: int = 1, **more: Any) -> dict[str, Any]:
    kinds = ["gpu"] * gpus + ["nic"]
    devices = [{"name": f"{kind}-{n}", "attributes": {"type": {"string": kind}}} for n, kind in enumerate(kinds)]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices, **more}
    metadata = {"name": f"{node}-{generation}"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


@pytest.fixture
def node(plane: Plane) -> Iterator[str]:
    """A node that has four GPUs by a ResourceSlice, and none by its kubelet."""
    [name] = plane.add_nodes(1, gpus=0, labels={GPU_MODEL: MODEL})
    plane.request("POST", f"{API}/deviceclasses", device_class("gpus"))
    plane.request("POST", f"{API}/resourceslices", resource_slice(name, 4))
    yield name
    plane.request("DELETE", f"{API}/resourceslices/{name}-1")
    plane.request("DELETE", f"{API}/deviceclasses/gpus")


def test_a_pod_that_asks_for_gpus_as_ever_is_bound_to_a_node_that_has_them_by_a_slice(
    plane: Plane, node: str, namespace: str
) -> None:
    made = pod("two")
    made["spec"]["containers"][0]["resources"] = {"limits": {GPU: "2"}, "requests": {GPU: "2"}}
    made["spec"]["nodeSelector"] = {GPU_MODEL: MODEL}
    plane.request("POST", of(namespace), made)
    plane.until(of(namespace), lambda pods: pods["two"]["spec"].get("nodeName") == node, 60)
    [claim] = plane.request("GET", f"{API}/namespaces/{namespace}/resourceclaims")["items"]
    assert len(claim["status"]["allocation"]["devices"]["results"]) == 2


@pytest.mark.django_db(transaction=True)
def test_a_run_starts_on_a_node_that_has_its_gpus_by_a_slice_and_waits_where_a_claim_of_others_holds_them(
    plane: Plane, node: str, namespace: str, people: Any
) -> None:
    from clusters.catalog.models import Flavor
    from portal.models import Appcode
    from tests.api.client import api_of

    request = {"name": "gpu", "exactly": {"deviceClassName": "gpus", "count": 1}}
    claim = {"metadata": {"name": "theirs"}, "spec": {"devices": {"requests": [request]}}}
    plane.request("POST", f"{API}/namespaces/{namespace}/resourceclaims", claim)
    other = pod("other")
    other["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "theirs"}]
    other["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    plane.request("POST", of(namespace), other)
    plane.until(of(namespace), lambda pods: pods["other"]["spec"].get("nodeName") == node, 60)
    loops = Loops(plane, f"devices-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    Flavor.objects.create(name="mine", title="GPU", cpu_milli=100, memory_mb=128, gpus=1, gpu_model=MODEL)
    Appcode.objects.update(gpu_quota=100)
    loops.start()
    try:
        run = loops.until_running(loops.create(people, "two", workers=1, flavor="mine"), seconds=60)
        assert {task.node for task in run.tasks.all()} == {node}
        waits = loops.create(people, "waits", workers=1, flavor="mine")
        told = "It needs 2 GPUs; 1 of 4 NVIDIA-BY-CLAIM are free. It starts as soon as enough are free."
        loops.until(lambda: loops.run(waits).message == told)
        [queue] = api_of(people.bob).get("/queue")[1]["items"]
        [seen] = [each for each in queue["nodes"] if each["name"] == node]
        assert (seen["gpus"], seen["mine"], seen["otherSoftware"]) == (4, 2, 1)
        end_all(loops)
    finally:
        loops.stop()


def counted(*items: dict[str, Any]) -> dict[str, dict[str, int]]:
    devices = Devices()
    for item in items:
        devices.note(item["kind"], "ADDED", item)
    return devices.by_node()


def test_only_devices_that_a_node_has_now_and_that_a_class_is_understood_to_select_are_counted() -> None:
    old, new = resource_slice("n", 8), resource_slice("n", 3, generation=2)
    assert counted(old, new, device_class("gpus")) == {"n": {GPU: 3}}
    assert counted(new, device_class("gpus", f"device.driver == '{DRIVER}'")) == {"n": {GPU: 4}}
    for selector in (f"{SELECTOR} || true", "device.capacity['x'].memory > 3", "device.driver != 'a'"):
        assert counted(new, device_class("gpus", selector)) == {}
    assert counted(resource_slice("n", 3, nodeName=None, allNodes=True), device_class("gpus")) == {}
    tainted = resource_slice("n", 2)
    tainted["spec"]["devices"][0]["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
    assert counted(tainted, device_class("gpus")) == {"n": {GPU: 1}}


def test_what_the_kubelet_offers_itself_comes_before_a_slice() -> None:
    plain = Node("n", MODEL, 0, 0, 1000, 1000)
    assert with_devices(plain, {GPU: 3, "example.com/x": 2}) == Node(
        "n", MODEL, 3, 3, 1000, 1000, slices=(Slices("example.com/x", 2, 2),)
    )
    own = Node("n", MODEL, 8, 8, 1000, 1000)
    assert with_devices(own, {GPU: 3}) == own
