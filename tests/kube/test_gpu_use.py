"""GPU utilisation on a real control plane: a Prometheus reports pods by name, and the result has their uids."""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import replace

import pytest

from clusters.clouds.drivers.kubernetes import prometheus
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.clusters.clouds.kubernetes.test_prometheus import Server, matrix, reply, series, server  # noqa: F401  the fixture
from tests.kube.following import Following, cloud_of, portal_kubeconfig
from tests.kube.plane import Plane
from tests.kube.plans import plan, role, run_ref

pytestmark = pytest.mark.kube


def test_uids_and_minutes_of_our_pods(plane: Plane, server: Server):  # noqa: F811
    portal = f"test-{secrets.token_hex(4)}"
    run = run_ref(f"line-{secrets.token_hex(4)}")
    cloud = cloud_of(plane, portal)
    with Following(cloud) as following:
        cloud.apply(plan(role("worker", 2), run=run))
        following.until(lambda: len(following.of(run, "Running")) == 2)
        pods = plane.request("GET", f"/api/v1/namespaces/{run.namespace}/pods")["items"]
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
        assert len(uids) == 2
        minute = prometheus.minutes_due("", dt.datetime.now(dt.UTC))[0]
        told = [
            {**each, "metric": {"exported_namespace": run.namespace, "exported_pod": name}}
            for name in [*uids, "somebody-else"]
            for each in [series(name, *((minute + n * prometheus.MINUTE, "0.25") for n in range(-2, 3)))]
        ]
        server.answer = reply(matrix(*told))
        client = Client.connect(str(portal_kubeconfig(plane)))
        settings = Settings(portal=portal)
        measured = KubernetesCloud(client, replace(settings, prometheus=server.address), "plane", "token").gpu_use(
            (minute - prometheus.MINUTE).isoformat()
        )
        assert {each.uid for each in measured.items} == set(uids.values())
        assert {(each.seconds, each.busy) for each in measured.items} == {(60.0, 0.25)}
        assert min(each.minute for each in measured.items) == minute
        assert measured.position == max(each.minute for each in measured.items).isoformat()
        assert server.asked[0][2] == "Bearer token"
        assert KubernetesCloud(client, settings).gpu_use("").note == prometheus.UNSET
        cloud.delete(run)
        following.until(lambda: following.is_gone(run))
    plane.request("DELETE", f"/api/v1/namespaces/{run.namespace}")
