"""docker/kubernetes/admission.yaml unchanged: only the portal and Kubernetes may write the portal's objects.

Uses a control plane of its own, whose controllers have separate accounts, as in every real cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from clusters.clouds.drivers.kubernetes.api.client import JSON, MERGE, Client, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Refused
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings
from portal.up.services import Service
from tests.kube.following import Following
from tests.kube.plane import Object, Plane
from tests.kube.plans import plan, role, run_ref, volume
from tests.kube.test_deployment import kubectl
from tests.kube.test_plane import pod as any_pod

pytestmark = pytest.mark.kube

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes"
SPACE = "line"


class WithAccounts(Plane):
    """Each controller uses its own service account, and kwok, which plays the kubelets, is in the group of nodes."""

    def _controller_manager(self) -> Service:
        service = super()._controller_manager()
        return replace(service, argv=(*service.argv, "--use-service-account-credentials"))

    def _kwok(self) -> Service:
        service, kubelet = super()._kwok(), self.kubeconfig_for("kwok", ["system:masters", "system:nodes"])
        argv = [f"--kubeconfig={kubelet}" if each.startswith("--kubeconfig=") else each for each in service.argv]
        return replace(service, argv=tuple(argv))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithAccounts]:
    plane = WithAccounts(tmp_path_factory.mktemp("guarded"))
    plane.start()
    try:
        plane.add_nodes(1)
        for file in ("namespace.yaml", "clusterrole.yaml", "account.yaml", "admission.yaml"):
            done = kubectl(plane, "apply", "--server-side", "-f", str(FOLDER / file))
            assert (done.returncode, done.stderr) == (0, "")
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def portal(guarded: WithAccounts) -> KubernetesCloud:
    """Returns the cloud with the account of docker/kubernetes."""
    guarded.until_allowed("system:serviceaccount:gpu-cloud:portal", "list", "pods")
    account = guarded.kubeconfig_for_account("gpu-cloud", "portal")
    return KubernetesCloud(Client.connect(str(account)), Settings(portal=f"test-{secrets.token_hex(4)}"))


@pytest.fixture
def mallory(guarded: WithAccounts) -> Client:
    """Returns a client to which RBAC allows everything."""
    return Client.connect(str(guarded.kubeconfig_for("mallory", ["system:masters"])))


def labelled(thing: Object, portal: KubernetesCloud) -> Object:
    return {**thing, "metadata": {**thing["metadata"], "labels": {names.PORTAL: portal._settings.portal}}}


def test_a_run_lives_and_ends_and_nobody_else_writes_what_belongs_to_it(
    guarded: WithAccounts, portal: KubernetesCloud, mallory: Client
) -> None:
    guarded.make_namespace(SPACE, {names.PORTAL: portal._settings.portal})
    pods = path_of("Pod", SPACE)
    guarded.until_admitted(pods, labelled(any_pod("tried"), portal), "is not written by admin")
    scratch = volume(SPACE)
    run = run_ref(SPACE)
    roles = (role("master"), role("ps", restart="Always", gpus=0), role("evaluator", 2, restart="Always", gpus=0))
    with Following(portal) as following:
        # Everything that Kubernetes creates for it: pods of a Job, a Deployment and a StatefulSet; a volume.
        portal.apply(plan(*roles, run=run))
        portal.apply_volume(scratch)
        following.until(lambda: len(following.of(run)) == 4)

        def is_refused(method: str, path: str, body: Object | None = None) -> None:
            with pytest.raises(Refused, match="what belongs to the portal is not written by mallory") as refused:
                mallory.request(method, path, body=body, content_type=MERGE if method == "PATCH" else JSON)
            assert refused.value.status == 403

        name = names.base_name(run)
        one = next(iter(guarded.request("GET", pods)["items"]))["metadata"]["name"]
        is_refused("POST", pods, labelled(any_pod("mine"), portal))
        for path in (f"{pods}/{one}", path_of("NetworkPolicy", SPACE, "gpu-cloud"), path_of("Service", SPACE, name)):
            is_refused("DELETE", path)
        less = {"metadata": {"labels": {names.PORTAL: None}}}
        for kind, its in (("Job", f"{name}-master"), ("Deployment", f"{name}-ps"), ("ConfigMap", f"{name}-run")):
            is_refused("PATCH", path_of(kind, SPACE, its), less)
        # Anyone may write other objects.
        mallory.request("POST", path_of("ConfigMap", SPACE), body={"metadata": {"name": "mine"}})
        mallory.request("DELETE", path_of("ConfigMap", SPACE, "mine"))
        portal.delete(run)
        following.until(lambda: following.is_gone(run))
        guarded.until(path_of("ConfigMap", SPACE), lambda found: names.owner_name(run) not in found)
    portal.delete_volume(scratch.volume)
    guarded.until(path_of("PersistentVolumeClaim", SPACE), lambda found: not found)


def test_its_account_is_the_one_of_the_deployment() -> None:
    policy, _ = yaml.safe_load_all((FOLDER / "admission.yaml").read_text())
    account, _ = yaml.safe_load_all((FOLDER / "account.yaml").read_text())
    (users,) = (each["expression"] for each in policy["spec"]["variables"] if each["name"] == "users")
    assert f"'system:serviceaccount:{account['metadata']['namespace']}:{account['metadata']['name']}'" in users
