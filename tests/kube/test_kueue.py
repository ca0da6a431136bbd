"""Runs that wait in a queue. Kueue itself is missing: the test changes Jobs as Kueue does when it admits or evicts one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from clusters.clouds.drivers.base import RunRef
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.following import Following, portal_kubeconfig
from tests.kube.plane import Object, Plane
from tests.kube.plans import plan, role, run_ref

pytestmark = pytest.mark.kube


@pytest.fixture
def cloud(plane: Plane) -> KubernetesCloud:
    settings = Settings(portal=f"test-{secrets.token_hex(4)}", kueue_queue="gpus")
    return KubernetesCloud(Client.connect(str(portal_kubeconfig(plane))), settings)


@pytest.fixture
def space(plane: Plane) -> Iterator[str]:
    name = f"line-{secrets.token_hex(4)}"
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


class Kueue:
    def __init__(self, plane: Plane, run: RunRef, role_name: str) -> None:
        self.plane = plane
        self.path = f"/apis/batch/v1/namespaces/{run.namespace}/jobs/{names.role_name(run, role_name)}"

    def job(self) -> Object:
        return self.plane.request("GET", self.path)

    def admit(self, pool: str) -> None:
        """Admits the Job as Kueue's controller does, which also selects nodes for its pods."""
        self._patch({"suspend": False, "template": {"spec": {"nodeSelector": {"kubernetes.io/os": pool}}}})

    def evict(self) -> None:
        self._patch({"suspend": True})

    def _patch(self, spec: Object) -> None:
        self.plane.request("PATCH", self.path, {"spec": spec}, fieldManager="kueue")


def test_what_kueue_lets_go_is_not_suspended_again(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    whole = plan(role("master"), role("ps", restart="Always", gpus=0), run=run_ref(space))
    cloud.apply(whole)
    kueue = Kueue(plane, whole.run, "master")
    assert kueue.job()["spec"]["suspend"] is True
    cloud.apply(whole)
    assert kueue.job()["spec"]["suspend"] is True
    # The parameter server is not a Job; Kueue would hold its pods back with scheduling gates.
    following.until(lambda: [task.role for task in following.of(whole.run)] == ["ps"])
    kueue.admit("linux")
    following.until(lambda: [task.role for task in following.of(whole.run, "Running")] == ["master", "ps"])
    cloud.apply(whole)
    job = kueue.job()
    assert job["spec"]["suspend"] is False
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    cloud.delete(whole.run)
    following.until(lambda: following.is_gone(whole.run))


def test_what_kueue_takes_back_has_not_failed(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    whole = plan(role("worker", 2, retries=0), run=run_ref(space))
    cloud.apply(whole)
    kueue = Kueue(plane, whole.run, "worker")
    kueue.admit("linux")
    following.until(lambda: len(following.of(whole.run, "Running")) == 2)
    kueue.evict()
    following.until(lambda: len(following.of(whole.run, "Failed")) == 2)
    assert [(task.reason, task.disrupted) for task in following.of(whole.run, "Failed")] == [("Disrupted", True)] * 2
    kueue.admit("linux")
    following.until(lambda: len(following.of(whole.run, "Running")) == 2)
    assert all(task.disrupted for task in following.of(whole.run, "Failed"))
    cloud.delete(whole.run)
    following.until(lambda: following.is_gone(whole.run))
