"""A new release of the portal beside runs of the release before: repairs and new pull passwords reach them, and nothing of them
is replaced. A release is simulated by other program texts in the plan and by other manifests."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest

from clusters.clouds.drivers.base import CloudRefused, Endpoint, Plan, RunChanged, RunRef
from clusters.clouds.drivers.kubernetes import launch
from clusters.clouds.drivers.kubernetes.api.client import path_of
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import endpoints, names, network_policy, pods, storage
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.following import NODES, CountingClient, Following, cloud_of, portal_kubeconfig
from tests.kube.plane import Object, Plane
from tests.kube.plans import data, endpoint, plan, role, run_ref

pytestmark = pytest.mark.kube

# Kinds whose status controllers write.
CONTROLLED = ("Pod", "Job", "Deployment", "StatefulSet")
SHARED = {"PORTAL_START": '# Our program.\nexec "$@"', "TF_CONFIG_CLUSTER": "{}"}


@pytest.fixture
def portal() -> str:
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def following(plane: Plane, portal: str) -> Iterator[Following]:
    with Following(cloud_of(plane, portal)) as following:
        yield following


@pytest.fixture
def run(plane: Plane) -> Iterator[RunRef]:
    space = f"line-{secrets.token_hex(4)}"
    yield run_ref(space)
    plane.request("DELETE", f"/api/v1/namespaces/{space}")


def submitted(run: RunRef) -> Plan:
    """A run with a workload of each kind, an endpoint, data and a pull password."""
    return plan(
        role("master", gpus=0),
        role("ps", restart="Always", gpus=0),
        role("server", 2, restart="Always", gpus=0, endpoints=(endpoint("web", 8080),)),
        role("worker", 2, gpus=0),
        run=run,
        mounts=data(),
        shared=SHARED,
        registries={"registry.example": ("us", "before")},
        proof="of-the-cluster",
    )


def of_next_release(whole: Plan) -> Plan:
    """The plan of the same run by the next release, after its pull password was changed."""
    shared = {"PORTAL_START": '# Our better program.\nexec "$@"', "PORTAL_NEW": "new", "TF_CONFIG_CLUSTER": "{}"}
    return replace(whole, shared=shared, registries={"registry.example": ("us", "after")})


@contextmanager
def next_release(plane: Plane, portal: str) -> Iterator[KubernetesCloud]:
    """Yields a cloud that renders other pods, Services, Ingresses, policies and Secrets, and one more object."""
    template, policy, service = pods.template, network_policy.ingress, endpoints._service
    made, keys, ingress = storage.manifests, storage.secrets, endpoints._ingress

    def other_pods(*arguments: Any, **named: Any) -> Object:
        found = template(*arguments, **named)
        found["spec"]["containers"][0]["env"].append({"name": "RELEASE", "value": "next"})
        found["spec"]["terminationGracePeriodSeconds"] += 1
        return found

    def other_service(*arguments: Any, **named: Any) -> Object:
        found = service(*arguments, **named)
        found["spec"]["ports"][0]["targetPort"] += 1
        return found

    def other_ingress(*arguments: Any, **named: Any) -> Object:
        found = ingress(*arguments, **named)
        found["metadata"]["annotations"]["example.com/release"] = "next"
        found["spec"]["rules"][0]["http"]["paths"][0]["pathType"] = "ImplementationSpecific"
        return found

    def one_more(whole: Plan, settings: Settings) -> list[Object]:
        more = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{names.base_name(whole.run)}-more"}}
        return [
            *made(whole, settings),
            {**more, "spec": {"clusterIP": "None", "selector": {"app": "x"}, "ports": [{"port": 1}]}},
        ]

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(pods, "template", other_pods)
        patches.setattr(endpoints, "_service", other_service)
        patches.setattr(endpoints, "_ingress", other_ingress)
        patches.setattr(network_policy, "ingress", lambda *some: [*policy(*some), {"from": [{"podSelector": {}}]}])
        patches.setattr(storage, "manifests", one_more)
        patches.setattr(storage, "secrets", lambda *of: {**keys(*of), "LATER": "very-secret"})
        yield cloud_of(plane, portal)


def everything(plane: Plane, run: RunRef) -> dict[tuple[str, str], Object]:
    """All objects of the run by kind and name, without what controllers write."""
    kinds = ("ConfigMap", "Service", "NetworkPolicy", "Ingress", "Job", "Deployment", "StatefulSet", "Pod")
    label, found = names.selector(run_id=run.id), {}
    for kind in kinds:
        for each in plane.request("GET", path_of(kind, run.namespace), labelSelector=label)["items"]:
            found[kind, each["metadata"]["name"]] = each
    return found


def uids(found: dict[tuple[str, str], Object]) -> dict[tuple[str, str], str]:
    return {key: each["metadata"]["uid"] for key, each in found.items()}


def versions(found: dict[tuple[str, str], Object]) -> dict[tuple[str, str], str]:
    """Resource versions of what the portal applies."""
    return {key: each["metadata"]["resourceVersion"] for key, each in found.items() if key[0] not in CONTROLLED}


def specs(found: dict[tuple[str, str], Object]) -> dict[tuple[str, str], Any]:
    kept = ("spec", "data", "binaryData")
    return {
        key: {name: _chosen(each[name]) for name in kept if name in each}
        for key, each in found.items()
        if key[0] != "Pod"
    }


def _chosen(spec: Object) -> Object:
    """Without the addresses that the API server assigns to a new Service."""
    return {name: value for name, value in spec.items() if name not in ("clusterIP", "clusterIPs")}


def secret_of(plane: Plane, run: RunRef, name: str) -> dict[str, str]:
    found = plane.request("GET", path_of("Secret", run.namespace, name))["data"]
    return {key: base64.b64decode(value).decode() for key, value in found.items()}


def changes(following: Following) -> list[str]:
    return [each.message for each in following.told if isinstance(each, RunChanged)]


def test_a_run_of_the_release_before_is_repaired_as_it_was_started(
    plane: Plane, portal: str, following: Following, run: RunRef
) -> None:
    whole = submitted(run)
    cloud_of(plane, portal).apply(whole)
    following.until(lambda: len(following.of(run, "Running")) == 6)
    before = everything(plane, run)
    with next_release(plane, portal) as later:
        # Only the password changes.
        later.apply(of_next_release(whole))
        after = everything(plane, run)
        assert (uids(after), specs(after)) == (uids(before), specs(before))
        assert "after" in secret_of(plane, run, names.registries_name(run))[".dockerconfigjson"]
        assert changes(following) == []

        # Deleted objects come back as they were.
        server = names.role_name(run, "server")
        deleted = [
            ("Service", names.base_name(run)),
            ("Service", names.endpoint_name(run, "web")),
            ("NetworkPolicy", names.base_name(run)),
            ("StatefulSet", server),
        ]
        hidden = [("Secret", names.secret_name(run)), ("Secret", names.registries_name(run))]
        for kind, name in [*deleted, *hidden]:
            plane.request("DELETE", path_of(kind, run.namespace, name))
        following.until(lambda: len(changes(following)) == len(deleted))
        following.until(lambda: len(following.of(run, "Running")) == 4)
        later.apply(of_next_release(whole))
        following.until(lambda: len(following.of(run, "Running")) == 6)
        repaired = everything(plane, run)
        assert specs(repaired) == specs(before)
        assert "after" in secret_of(plane, run, names.registries_name(run))[".dockerconfigjson"]
        assert {"access-key-0", "secret-key-0", "proof"} <= secret_of(plane, run, names.secret_name(run)).keys()
        others = [key for key in before if key not in deleted and not key[1].startswith(server)]
        assert [uids(repaired)[key] for key in others] == [uids(before)[key] for key in others]

        # A controller of the next release, which sees this run for the first time, has nothing to repair.
        with Following(later) as newer:
            newer.until(lambda: len(newer.of(run, "Running")) == 6)
            later.apply(of_next_release(whole))
            newer.until_idle()
            assert versions(everything(plane, run)) == versions(repaired)
            assert changes(newer) == []
        later.delete(run)
    following.until(lambda: following.is_gone(run))


def test_the_worker_of_another_release_completes_a_launch_as_it_was_begun(
    plane: Plane, portal: str, following: Following, run: RunRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker ends between the owner and everything else. The second looked for the owner before that."""
    whole, first = submitted(run), cloud_of(plane, portal)
    monkeypatch.setattr(first._client, "apply_all", lambda made: [])
    first.apply(whole)
    with next_release(plane, portal) as later:
        owner_of, looks = launch.owner_of, [None]
        monkeypatch.setattr(launch, "owner_of", lambda *asked: looks.pop() if looks else owner_of(*asked))
        later.apply(of_next_release(whole))
        following.until(lambda: len(following.of(run, "Running")) == 6)
        found = everything(plane, run)
        assert found["ConfigMap", names.owner_name(run)]["data"].items() >= SHARED.items()
        (container,) = found["Deployment", names.role_name(run, "ps")]["spec"]["template"]["spec"]["containers"]
        assert not {"RELEASE", "PORTAL_NEW"} & {each["name"] for each in container["env"]}
        later.delete(run)
    following.until(lambda: following.is_gone(run))


def test_a_worker_of_the_release_before_repairs_a_run_of_the_next_one(
    plane: Plane, portal: str, following: Following, run: RunRef
) -> None:
    """They work side by side in a rolling upgrade. The older one takes no key away that only the next release knows."""
    whole = submitted(run)
    with next_release(plane, portal) as later:
        later.apply(of_next_release(whole))
    following.until(lambda: len(following.of(run, "Running")) == 6)
    before = everything(plane, run)
    older = cloud_of(plane, portal)
    older.apply(whole)
    after = everything(plane, run)
    assert (uids(after), specs(after)) == (uids(before), specs(before))
    assert secret_of(plane, run, names.secret_name(run)).keys() >= {"variable-LATER", "access-key-0", "proof"}
    assert changes(following) == []
    older.delete(run)
    following.until(lambda: following.is_gone(run))


def test_a_run_whose_objects_cannot_be_read_goes_on_and_gets_new_passwords(
    plane: Plane, portal: str, following: Following, run: RunRef
) -> None:
    whole, cloud = submitted(run), cloud_of(plane, portal)
    cloud.apply(whole)
    following.until(lambda: len(following.of(run, "Running")) == 6)
    before = everything(plane, run)
    with pytest.raises(CloudRefused, match="Start it anew"):
        cloud.apply(replace(of_next_release(whole), proof="another"))
    after = everything(plane, run)
    assert (uids(after), specs(after)) == (uids(before), specs(before))
    assert "after" in secret_of(plane, run, names.registries_name(run))[".dockerconfigjson"]
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


@pytest.mark.parametrize("gateway", ["traefik", "nginx"])
def test_what_a_gateway_routes_to_stays_as_it_was_started(
    plane: Plane, portal: str, following: Following, run: RunRef, gateway: Literal["traefik", "nginx"]
) -> None:
    """An application and the replicas of a service: routes lead to the ports of pods that the release before made."""
    opened = Settings(
        portal=portal,
        storage_networks=NODES,
        gateway=gateway,
        gateway_namespace="gateway",
        gateway_portal="http://portal.example.com:8080",
        router_namespace="routers",
    )
    moved = replace(opened, gateway_portal="https://new.example.com", gateway_namespace="other", ingress_class="other")
    whole = plan(
        role("notebook", restart="Always", gpus=0, endpoints=(endpoint("web", 8080),)),
        role("server", 2, restart="Always", gpus=0, endpoints=(Endpoint("predict", 8500),)),
        run=run,
        shared=SHARED,
        proof="of-the-cluster",
    )
    first = with_settings(plane, opened)
    first.apply(whole)
    following.until(lambda: len(following.of(run, "Running")) == 3)
    before, routes = everything(plane, run), annotations(plane, run)
    assert len(routes) == (1 if gateway == "traefik" else 2)
    with next_release(plane, portal):
        later = with_settings(plane, moved)
        later.apply(of_next_release(whole))
        following.until_idle()
        after = everything(plane, run)
        assert versions(after) == versions(before), "nothing is written anew"
        assert (uids(after), specs(after), annotations(plane, run)) == (uids(before), specs(before), routes)

        deleted = [
            key for key in before if key[0] == "Ingress" or (key[0] == "Service" and key[1] != names.base_name(run))
        ]
        for kind, name in deleted:
            plane.request("DELETE", path_of(kind, run.namespace, name))
        following.until(lambda: len(changes(following)) == len(deleted))
        later.apply(of_next_release(whole))
        repaired = everything(plane, run)
        assert (specs(repaired), annotations(plane, run)) == (specs(before), routes)
        pods_of = [key for key in before if key not in deleted]
        assert [uids(repaired)[key] for key in pods_of] == [uids(before)[key] for key in pods_of]

        # A run that starts now has the routes of this release.
        started = replace(run, id=run.id + 1, number=run.number + 1)
        later.apply(replace(of_next_release(whole), run=started))
        following.until(lambda: len(following.of(started, "Running")) == 3)
        newer = annotations(plane, started)
        assert len(newer) == len(routes)
        assert all(each["example.com/release"] == "next" for each in newer.values())
        later.delete(started)
        later.delete(run)
    following.until(lambda: following.is_gone(run) and following.is_gone(started))


def annotations(plane: Plane, run: RunRef) -> dict[str, dict[str, str]]:
    """Returns the annotations of the run's Ingresses by name."""
    found = plane.request("GET", path_of("Ingress", run.namespace), labelSelector=names.selector(run_id=run.id))[
        "items"
    ]
    return {each["metadata"]["name"]: each["metadata"].get("annotations", {}) for each in found}


def with_settings(plane: Plane, settings: Settings) -> KubernetesCloud:
    return KubernetesCloud(CountingClient.connect(str(portal_kubeconfig(plane))), settings)
