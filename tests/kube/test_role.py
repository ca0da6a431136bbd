"""The portal's ClusterRole grants what the portal does and nothing else: runs and volumes from start to end, compared with
the audit log.

All tests of this folder use these rights, which shows that none is missing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from clusters.clouds.drivers.base import CloudError, Mount, NfsSource, RunChanged, RunRef
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.api.lookup import CLASSES, look_up
from clusters.clouds.drivers.kubernetes.api.preflight import Right, inspect, rights_of
from clusters.clouds.drivers.kubernetes.api.probe import FACT
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names, pods
from clusters.clouds.drivers.kubernetes.repair.upkeep import PLACES
from clusters.clouds.drivers.kubernetes.settings import GPU, Settings
from portal.up.services import Service
from tests.kube import kueue
from tests.kube.following import ROLE, Following, portal_kubeconfig
from tests.kube.plane import Object, Plane
from tests.kube.plans import data, endpoint, plan, role, run_ref, volume
from tests.kube.test_kueue import Portal, end
from tests.kube.test_native_gangs import API, EVERYWHERE

pytestmark = pytest.mark.kube

USER = "gpu-cloud-portal"
# Rights that the API server checks in addition to the request's own, so no log shows them: connecting to run a command, and
# blocking the deletion of an owner.
BESIDE = {
    Right("", "pods/exec", "create"),
    Right("", "configmaps/finalizers", "update"),
    # Only with an older Kubernetes; test_kueue.py uses it.
    Right("batch", "jobs/status", "patch"),
}


class Audited(Plane):
    """Audits the portal's calls, and is as strict about owner references as some distributions."""

    def _apiserver(self) -> Service:
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "users": [USER]}, {"level": "None"}],
        }
        (self.folder / "audit-policy.yaml").write_text(json.dumps(policy))
        service = super()._apiserver()
        more = (
            f"--audit-policy-file={self.folder / 'audit-policy.yaml'}",
            f"--audit-log-path={self.log_of_portal}",
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        )
        return replace(service, argv=(*service.argv, *more))

    @property
    def log_of_portal(self) -> Path:
        return self.folder / "audit.log"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    plane = Audited(tmp_path_factory.mktemp("audited"), gangs=EVERYWHERE)
    plane.start()
    try:
        plane.add_nodes(1)
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="module")
def cloud(audited: Audited) -> KubernetesCloud:
    quota, label = {"count/pods": "100"}, f"test-{secrets.token_hex(4)}"
    settings = Settings(portal=label, quota=quota, gateway="traefik", gateway_namespace="traefik")
    return KubernetesCloud(Client.connect(str(portal_kubeconfig(audited))), settings)


def test_every_right_is_used(audited: Audited, cloud: KubernetesCloud) -> None:
    with Following(cloud) as following:
        live(audited, cloud, following)
    used = {right for line in audited.log_of_portal.read_text().splitlines() for right in used_in(json.loads(line))}
    assert set(rights_of(yaml.safe_load(ROLE.read_text()))) - used == BESIDE


def live(plane: Plane, cloud: KubernetesCloud, following: Following) -> None:
    """Does everything that a portal ever does in a cluster."""
    assert cloud.preflight(["ops"]).facts[FACT]["enforced"]
    names_all = replace(
        cloud._settings, kueue_queue="gpus", **{**dict.fromkeys(CLASSES, "mine"), "storage_classes": ("mine",)}
    )
    with kueue.installed(plane):
        assert set(look_up(cloud._client, names_all, ()).wrong) == set(CLASSES)
        live_in_a_queue(plane, cloud)
    plane.lose_node(*plane.add_nodes(1))
    run = run_ref("ops")
    board = (endpoint("board", 6006),)
    roles = (
        role("master"),
        role("ps", restart="Always", gpus=0, endpoints=board),
        role("evaluator", 2, restart="Always", gpus=0),
    )
    mounts = (*data(), Mount("/elearn/more", True, NfsSource("nfs.example", "/data")))
    cloud.apply(plan(*roles, run=run, mounts=mounts, gang=API))
    following.until(lambda: len(following.of(run, "Running")) == 4)
    # A simulated node has no logs and no programs.
    for ask in (lambda: cloud.log(run, "master", 0, attempt=0), lambda: cloud.exec(run, "master", 0, ["true"])):
        with suppress(CloudError):
            ask()
    wanted = volume("ops")
    cloud.apply_volume(wanted)
    cloud.delete_volume(wanted.volume)
    plane.request("POST", "/api/v1/namespaces/ops/pods", stray(cloud, run_ref("ops")))
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))
    plane.until("/api/v1/namespaces/ops/configmaps", lambda found: names.owner_name(run) not in found)
    plane.until("/api/v1/namespaces/ops/pods", lambda found: "stray" not in found, seconds=60)
    # An administrator removed the quota from the settings.
    KubernetesCloud(cloud._client, replace(cloud._settings, quota=None)).apply_volume(wanted)
    cloud.delete_volume(wanted.volume)


def live_in_a_queue(plane: Plane, cloud: KubernetesCloud) -> None:
    """Does everything that concerns Kueue."""
    kueue.make_flavor(plane, {"kubernetes.io/os": "linux"})
    wanted = plan(role("master"), role("ps", restart="Always", gpus=0), run=run_ref("queued"))
    name = names.workload_name(wanted.run)
    with (
        kueue.place_asked(plane),
        Portal(KubernetesCloud(cloud._client, replace(cloud._settings, kueue_queue="gpus"))) as following,
    ):
        following.start(wanted)
        # It waits until its place was looked up.
        following.until(lambda: (upkeep := following.cloud._upkeep) and PLACES in upkeep._not_before)
        with kueue.Kueue(plane, "queued", {GPU: 8}) as queue:
            following.until(lambda: len(following.of(wanted.run, "Running")) == 2)
            queue.until(name, "PodsReady")
            kueue.make_flavor(plane, {"kubernetes.io/arch": "amd64"})
            queue.evict(name)
            queue.until(name, "QuotaReserved", "False")
            queue.until(name, "PodsReady")
            queue.finish(name)
            following.until(
                lambda: RunChanged(wanted.run.id, f"Workload {name} was deleted by hand.") in following.told
            )
            queue.until(name, "PodsReady")
        end(following, wanted.run)


def stray(cloud: KubernetesCloud, run: RunRef) -> Object:
    """Returns a pod of a run as the portal would create it, but without owner."""
    whole = plan(role("master", gpus=0), run=run)
    template = pods.template(whole, whole.roles[0], cloud._settings, index="")
    return {"metadata": {"name": "stray", "labels": template["metadata"]["labels"]}, "spec": template["spec"]}


def used_in(event: Object) -> Iterator[Right]:
    about = event.get("objectRef")
    if about is None or event.get("responseStatus", {}).get("code") == 403:
        return
    resource = "/".join(filter(None, [about["resource"], about.get("subresource")]))
    yield Right(about.get("apiGroup", ""), resource, event["verb"])
    if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201:
        # A server-side apply that created the object.
        yield Right(about.get("apiGroup", ""), resource, "create")


def test_what_no_log_shows_is_asked_for_all_the_same(audited: Audited, cloud: KubernetesCloud) -> None:
    run, refused = run_ref("beside"), run_ref("beside")
    with Following(cloud) as following:
        cloud.apply(plan(role("master"), run=run))
        following.until(lambda: len(following.of(run, "Running")) == 1)
        with pytest.raises(CloudError, match="is forbidden"):
            without(audited, Right("", "pods/exec", "create"), cloud._settings).exec(run, "master", 0, ["true"])
        with pytest.raises(CloudError, match="cannot set blockOwnerDeletion"):
            without(audited, Right("", "configmaps/finalizers", "update"), cloud._settings).apply(
                plan(role("master"), run=refused)
            )
        for each in (run, refused):
            cloud.delete(each)
        following.until(lambda: following.is_gone(run) and following.is_gone(refused))


def without(plane: Plane, right: Right, settings: Settings) -> KubernetesCloud:
    """Returns the cloud of a portal with all rights but this one."""
    narrow = yaml.safe_load(ROLE.read_text())
    for rule in narrow["rules"]:
        if right.resource in rule["resources"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != right.verb]
    narrow["rules"] = [rule for rule in narrow["rules"] if rule["verbs"]]
    user, group = f"without-{right.verb}", "rbac.authorization.k8s.io"
    narrow["metadata"]["name"] = user
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    plane.request("POST", f"/apis/{group}/v1/clusterroles", narrow)
    plane.request("POST", f"/apis/{group}/v1/clusterrolebindings", binding)
    client = Client.connect(str(plane.kubeconfig_for(user)))
    deadline = time.monotonic() + 60
    # The authorizer learns of it through a watch.
    while inspect(client, rights_of(yaml.safe_load(ROLE.read_text()))).missing != (right,):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return KubernetesCloud(client, settings)
