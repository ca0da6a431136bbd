"""Services on simulated nodes: routers send requests to the addresses of pods while Kubernetes reports them ready."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from typing import Any

import pytest

from clusters.clouds.drivers.entrance import READY
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.render.endpoints import ENTRANCE, FIRST_PORT
from clusters.router import rows
from tests.clusters.router.routers import address
from tests.clusters.services.conftest import new_manifest, new_model
from tests.kube.plane import Object, Plane
from tests.kube.test_loop import Loop, loop  # noqa: F401  the fixture

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]

ROUTERS = "routers-of-ours"


class Serving:
    """The loop of services beside that of runs."""

    def __init__(self, loop: Loop) -> None:  # noqa: F811
        self.loop, self.plane = loop, loop.plane

    def until(self, happened: Any) -> None:
        from django.utils import timezone

        from clusters.services.controller import loop as serving

        def done() -> bool:
            serving.tick(timezone.now())
            return bool(happened())

        self.loop.until(done)

    def route(self) -> set[str]:
        """Returns the addresses that a router uses."""
        with closing(rows.connect(address())) as connection:
            ([service], _) = rows.read(connection, {})
        return {replica.address for revision in service.revisions for replica in revision.replicas}

    def pods(self) -> dict[str, Object]:
        """Returns the pods that should continue, by the address at which each answers."""
        selector = names.selector(portal=self.loop.cloud._settings.portal)
        found = self.plane.request("GET", "/api/v1/namespaces/ops/pods", labelSelector=selector)["items"]
        alive = [each for each in found if "deletionTimestamp" not in each["metadata"] and each["status"].get("podIP")]
        return {f"{each['status']['podIP']}:{FIRST_PORT}": each for each in alive}

    def becomes(self, pod: Object, *, ready: bool) -> None:
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        said = {"type": "Ready", "status": str(ready), "lastTransitionTime": now}
        path = f"/api/v1/namespaces/ops/pods/{pod['metadata']['name']}/status"
        self.plane.request(
            "PATCH", path, {"status": {"conditions": [said]}}, content_type="application/strategic-merge-patch+json"
        )


def test_a_route_has_the_addresses_of_the_pods_that_are_ready_and_these_let_routers_in(
    plane: Plane,
    loop: Loop,  # noqa: F811
    people: Any,
) -> None:
    from clusters.clouds.models import Cloud
    from clusters.services import actions
    from portal.errors import Invalid

    new_model(people, "https://s3.example.com")
    manifest = new_manifest(image="tensorflow", replicas={"least": 2, "most": 2})
    with pytest.raises(Invalid) as refused:
        actions.create_service(manifest, acting_user=people.bob)
    assert "which lets no routers of services in yet" in refused.value.errors[0].message
    cloud = Cloud.objects.get(name="kubernetes")
    Cloud.objects.update(settings={**cloud.settings, "router_namespace": ROUTERS})
    service = actions.create_service(manifest, acting_user=people.bob)
    serving = Serving(loop)
    serving.until(lambda: len(serving.route()) == 2)
    pods = serving.pods()
    assert serving.route() == set(pods)

    # The port is open to the namespace of the routers only, and no Ingress leads there.
    ours = {"labelSelector": f"{names.selector(portal=loop.cloud._settings.portal)},{names.RUN_ID}"}
    policies = plane.request("GET", "/apis/networking.k8s.io/v1/namespaces/ops/networkpolicies", **ours)["items"]
    opened = [each["spec"]["ingress"][1:] for each in policies]
    routers = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ROUTERS}}}
    assert opened == 2 * [[{"from": [routers], "ports": [{"port": FIRST_PORT, "protocol": "TCP"}]}]]
    assert not plane.request("GET", "/apis/networking.k8s.io/v1/namespaces/ops/ingresses", **ours)["items"]

    # A pod that is not ready gets no requests until it is ready again; a deleted pod is replaced.
    first, second = sorted(pods)
    serving.becomes(pods[first], ready=False)
    serving.until(lambda: serving.route() == {second})
    serving.becomes(pods[first], ready=True)
    serving.until(lambda: serving.route() == {first, second})
    plane.request("DELETE", f"/api/v1/namespaces/ops/pods/{pods[first]['metadata']['name']}")
    serving.until(lambda: len(serving.route()) == 2 and first not in serving.route())
    assert serving.route() == set(serving.pods())
    actions.delete_service(service, acting_user=people.alice)


def test_a_replica_is_the_container_of_its_runtime_which_finds_the_model_where_it_looks_for_it(
    plane: Plane,
    loop: Loop,  # noqa: F811
    people: Any,
) -> None:
    from clusters.catalog.models import ServingRuntime
    from clusters.clouds.models import Cloud
    from clusters.services import actions

    new_model(people, "https://s3.example.com")
    cloud = Cloud.objects.get(name="kubernetes")
    Cloud.objects.update(settings={**cloud.settings, "router_namespace": ROUTERS})
    ServingRuntime.objects.filter(name="tensorflow-serving").update(enabled=True)
    manifest = new_manifest(image=None, runtime="tensorflow-serving")
    service = actions.create_service(manifest, acting_user=people.bob)
    serving = Serving(loop)
    serving.until(serving.route)
    [pod] = serving.pods().values()
    [container] = pod["spec"]["containers"]
    assert container["image"].startswith("tensorflow/serving:")
    assert container["command"][-1] == "--model_base_path=/models/digits"
    assert "/models/digits/1" in {each["mountPath"] for each in container["volumeMounts"]}
    [door] = (each for each in pod["spec"]["initContainers"] if each["name"] == ENTRANCE)
    assert door["args"] == [ENTRANCE, "/v1/models/digits/versions/1/metadata", f"{FIRST_PORT}:8501"]
    asked = container["readinessProbe"]["httpGet"]
    assert (asked["path"], asked["port"]) == (READY, FIRST_PORT)
    actions.delete_service(service, acting_user=people.alice)
