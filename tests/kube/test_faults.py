"""A bad network between the portal and the API server: it converges, and nothing is left over."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.clouds.base import CloudError
from clusters.clouds.kubernetes import names
from clusters.clouds.kubernetes.client import Client
from clusters.clouds.kubernetes.cloud import KubernetesCloud
from clusters.clouds.kubernetes.settings import Settings
from tests.kube.following import Following
from tests.kube.plane import Plane
from tests.kube.plans import plan, role, run_ref
from tests.kube.proxy import Proxy, proxied

pytestmark = pytest.mark.kube


@pytest.fixture
def proxy(plane: Plane) -> Iterator[Proxy]:
    with proxied(plane) as proxy:
        yield proxy


@pytest.fixture
def cloud(proxy: Proxy, tmp_path: Path) -> KubernetesCloud:
    client = Client.connect(str(proxy.kubeconfig(tmp_path)))
    return KubernetesCloud(client, Settings(portal=f"bad-{secrets.token_hex(4)}"))


@pytest.fixture
def space(plane: Plane) -> Iterator[str]:
    name = f"line-{secrets.token_hex(4)}"
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


def test_a_third_of_all_calls_fail_and_everything_still_happens_once(
    plane: Plane, proxy: Proxy, cloud: KubernetesCloud, space: str
) -> None:
    run = run_ref(space)
    proxy.failing = 0.3
    with Following(cloud) as following:
        while True:
            try:
                cloud.apply(plan(role("master"), role("worker", 10), run=run))
                break
            except CloudError:
                continue
        following.until(lambda: len(following.of(run, "Running")) == 11)
        while True:
            try:
                cloud.delete(run)
                break
            except CloudError:
                continue
        following.until(lambda: following.is_gone(run))
        assert len(following.of(run, "Failed")) == 11
        plane.until(f"/api/v1/namespaces/{space}/configmaps", lambda found: names.owner_name(run) not in found)
        assert plane.request("GET", f"/api/v1/namespaces/{space}/pods")["items"] == []
    assert proxy.failed > 5


def test_a_watch_that_falls_silent_is_noticed_and_begun_again(
    plane: Plane, proxy: Proxy, cloud: KubernetesCloud, space: str
) -> None:
    run = run_ref(space)
    with Following(cloud) as following:
        cloud.apply(plan(role("worker", 2), run=run))
        following.until(lambda: len(following.of(run, "Running")) == 2)
        proxy.silent.set()
        plane.end_pods(space, names.selector(run_id=run.id), 0)
        following.until(lambda: following.errors, seconds=40)
        proxy.silent.clear()
        following.until(lambda: len(following.of(run, "Succeeded")) == 2)
        cloud.delete(run)
        following.until(lambda: following.is_gone(run))


def test_a_server_that_only_fails_is_an_error_within_seconds(plane: Plane, tmp_path: Path) -> None:
    with proxied(plane) as proxy:
        client = Client.connect(str(proxy.kubeconfig(tmp_path)))
        proxy.failing = 1.0
        with pytest.raises(CloudError, match="The proxy says no"):
            client.get("/api/v1/nodes")
