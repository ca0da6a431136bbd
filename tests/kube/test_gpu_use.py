"""GPU utilisation on a real control plane: a Prometheus reports pods by name, and the result has their uids."""

from __future__ import annotations

import datetime as dt
import json
import secrets
from dataclasses import replace

import pytest

from clusters.clouds.drivers.base import GpuNow, Sample, Samples
from clusters.clouds.drivers.kubernetes import prometheus, sampling
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.clusters.clouds.kubernetes.test_prometheus import Server, matrix, reply, series, server  # noqa: F401  the fixture
from tests.kube.following import Following, cloud_of, grant, measuring, portal_kubeconfig, until_found
from tests.kube.plane import Plane, Refused
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


def test_what_metrics_server_and_dcgm_tell_becomes_samples(plane: Plane, server: Server):  # noqa: F811
    """The API of metrics-server is served by the API server itself here, from objects of that form."""
    run = run_ref(f"line-{secrets.token_hex(4)}")
    cloud = cloud_of(plane, f"test-{secrets.token_hex(4)}")
    cloud._sampling._settings = replace(cloud._sampling._settings, prometheus=server.address)
    server.answer = reply(vector())
    metrics = "metrics.k8s.io"
    form = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"pods.{metrics}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": metrics, "scope": "Namespaced", "names": {"plural": "pods", "kind": "PodMetrics"},
            "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": form}}],
        },
    }  # fmt: skip
    with Following(cloud) as following:
        cloud.apply(plan(role("worker", 2, gpus=1), run=run))
        following.until(lambda: len(following.of(run, "Running")) == 2)
        assert cloud.samples() == Samples(
            (), {"cpu": sampling.NOTHING, "gpu": f"{prometheus.SILENT} {sampling.NO_GPUS}"}
        )
        granted = measuring()
        granted["rules"] = granted["rules"][1:]
        grant(plane, granted)
        plane.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pods.{metrics}", crd)
        pods = plane.request("GET", f"/api/v1/namespaces/{run.namespace}/pods")["items"]
        first, second = (pod["metadata"] for pod in pods)
        usage = [{"cpu": "1500000000n", "memory": "10Mi"}, {"cpu": "250m", "memory": "0"}]
        said = {
            "apiVersion": f"{metrics}/v1beta1", "kind": "PodMetrics", "timestamp": "2026-03-04T21:00:00Z", "window": "15s",
            "containers": [{"name": f"c{n}", "usage": each} for n, each in enumerate(usage)],
            "metadata": {"name": first["name"], "namespace": run.namespace, "labels": first["labels"]},
        }  # fmt: skip
        path = f"/apis/{metrics}/v1beta1/namespaces/{run.namespace}/pods"

        def made() -> bool | None:
            try:
                return bool(plane.request("POST", path, said))
            except (Refused, ValueError):  # not served yet
                return None

        assert until_found(made)
        place = {"exported_namespace": run.namespace, "exported_pod": second["name"]}
        server.answer = reply(
            vector(
                ("DCGM_FI_DEV_GPU_UTIL", place | {"gpu": "3"}, "99"),
                ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", place | {"gpu": "3"}, "0.25"),
                ("DCGM_FI_DEV_FB_USED", place | {"gpu": "3"}, "1024"),
                ("DCGM_FI_DEV_FB_USED", {"namespace": "monitoring", "pod": "dcgm", "gpu": "4"}, "1"),
            )
        )
        found = until_found(lambda: told if len((told := cloud.samples()).items) == 2 else None)
        by_uid = {each.uid: each for each in found.items}
        at = dt.datetime(2026, 3, 4, 21, tzinfo=dt.UTC).timestamp()
        assert by_uid[first["uid"]] == Sample(first["uid"], at, cores=1.75, memory_bytes=10 << 20)
        assert by_uid[second["uid"]].gpus == (GpuNow("3", 25.0, 1 << 30),)
        assert found.notes == {"network": sampling.NO_RIGHT}
        cloud.delete(run)
        following.until(lambda: following.is_gone(run))
    plane.request("DELETE", f"/api/v1/namespaces/{run.namespace}")
    plane.request("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pods.{metrics}")


def vector(*found: tuple[str, dict[str, str], str]) -> bytes:
    """An answer of Prometheus to an instant query."""
    result = [{"metric": {"__name__": name, **labels}, "value": [1.0, value]} for name, labels, value in found]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
