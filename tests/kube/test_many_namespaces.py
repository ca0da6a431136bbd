"""Limits of namespaces are repaired in all of them concurrently, however many there are."""

from __future__ import annotations

import secrets

import pytest

from clusters.clouds.drivers.kubernetes.api.client import AT_ONCE
from clusters.clouds.drivers.kubernetes.render import manifests, names
from tests.kube.following import Following, cloud_of
from tests.kube.plane import Plane

pytestmark = pytest.mark.kube


def test_more_namespaces_than_threads_are_bounded_side_by_side(plane: Plane) -> None:
    """Each needs several calls, which run concurrently."""
    portal = f"test-{secrets.token_hex(4)}"
    spaces = [f"line-{secrets.token_hex(4)}" for _ in range(3 * AT_ONCE)]
    with Following(cloud_of(plane, portal)) as following:
        for space in spaces:
            plane.make_namespace(space, {names.PORTAL: portal})
        path = "/apis/networking.k8s.io/v1/networkpolicies"
        selected = {
            "fieldSelector": f"metadata.name={manifests.LIMITS}",
            "labelSelector": names.selector(portal=portal),
        }

        def bounded() -> set[str]:
            return {each["metadata"]["namespace"] for each in plane.request("GET", path, **selected)["items"]}

        following.until(lambda: bounded() == set(spaces), 90)
        for space in spaces:
            labels = plane.request("GET", f"/api/v1/namespaces/{space}")["metadata"]["labels"]
            assert labels.items() >= manifests.SECURITY.items()
    for space in spaces:
        plane.request("DELETE", f"/api/v1/namespaces/{space}")
