"""Changed settings of a Kubernetes cluster, or a new version of the portal, apply to runs that start later. Existing runs are
repaired to what they were started with."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from clusters.clouds.drivers.base import CloudRefused
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.following import NODES, CountingClient, Following, portal_kubeconfig
from tests.kube.plane import Plane
from tests.kube.plans import plan, role, run_ref

pytestmark = pytest.mark.kube


@pytest.fixture
def before() -> Settings:
    return Settings(portal=f"test-{secrets.token_hex(4)}", storage_networks=NODES)


def with_settings(plane: Plane, settings: Settings) -> KubernetesCloud:
    return KubernetesCloud(CountingClient.connect(str(portal_kubeconfig(plane))), settings)


@pytest.fixture
def following(plane: Plane, before: Settings) -> Iterator[Following]:
    with Following(with_settings(plane, before)) as following:
        yield following


def test_a_run_goes_on_with_the_settings_with_which_it_was_started(
    plane: Plane, before: Settings, following: Following
) -> None:
    space = f"line-{secrets.token_hex(4)}"
    run = run_ref(space)
    wanted = plan(role("master"), role("ps", restart="Always", gpus=0), role("worker", 2), run=run)
    with_settings(plane, before).apply(wanted)
    following.until(lambda: len(following.of(run, "Running")) == 4)
    pods, name = f"/api/v1/namespaces/{space}/pods", names.base_name(run)

    def uids() -> set[str]:
        return {each["metadata"]["uid"] for each in plane.request("GET", pods)["items"]}

    running = uids()
    plane.request("DELETE", f"/api/v1/namespaces/{space}/services/{name}")
    # Each change would replace pods, be refused by a Job, stop the Jobs, or refuse the run.
    after = replace(before, disk="7Gi", kueue_queue="later", largest_task={"nvidia.com/gpu": "0", "cpu": "10m"})
    changed = with_settings(plane, after)
    changed.apply(wanted)
    assert plane.request("GET", f"/api/v1/namespaces/{space}/services/{name}")["metadata"]["name"] == name
    jobs = plane.request("GET", f"/apis/batch/v1/namespaces/{space}/jobs")["items"]
    assert [job["spec"]["suspend"] for job in jobs] == [False, False]
    (deployment,) = plane.request("GET", f"/apis/apps/v1/namespaces/{space}/deployments")["items"]
    assert deployment["metadata"]["generation"] == 1
    assert uids() == running
    # A new run uses the new settings.
    with pytest.raises(CloudRefused, match="Choose a smaller flavor"):
        changed.apply(plan(role("master"), run=run_ref(space)))

    # It ends as before too: the objects that create its pods are scaled to none first.
    changed.delete(run)
    following.until(lambda: following.is_gone(run))
    plane.request("DELETE", f"/api/v1/namespaces/{space}")
