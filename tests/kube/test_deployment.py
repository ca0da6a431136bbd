"""docker/kubernetes and docker/compose.yaml are accepted as written and then work.

On the test plane everything is really applied, and simulated nodes admit, schedule and "run" the pods.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusters.clouds.drivers.kubernetes.render import names
from clusters.router import database_feed, http_server, proxy
from clusters.router.admission import LONGEST_WAIT
from clusters.services.manifest import ServiceSpec
from tests.kube.binary import binary
from tests.kube.plane import Plane, condition

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "kubernetes"
NAMESPACE = "gpu-cloud"
HOST = "portal.example.org"
NGINX = "nginx.ingress.kubernetes.io"
# Selects what a restore needs first (docs/deployment.md).
WITHOUT_PROGRAMS = "!app.kubernetes.io/name"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane of its own: roles are not namespaced, and those of the shared plane belong to other tests."""
    plane = Plane(tmp_path_factory.mktemp("plane"))
    plane.start()
    try:
        plane.add_nodes(2)
        yield plane
        plane.check()
    finally:
        plane.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_in(tmp_path_factory.mktemp("docker"))


def filled_in(parent: Path) -> Path:
    """Returns a copy of docker/kubernetes with its placeholders filled in."""
    copy = parent / "kubernetes"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("secrets.env"))
    shutil.copy(copy / "secrets.env.example", copy / "secrets.env")
    settings = copy / "portal.env"
    settings.write_text(settings.read_text().replace("portal.example.com", HOST))
    return copy


def kubectl(plane: Plane | None, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    config = [f"--kubeconfig={plane.kubeconfig}"] if plane else []
    argv = [str(binary()), "kubectl", *config, *arguments]
    return subprocess.run(argv, input=given, capture_output=True, text=True, timeout=60, check=False)


def rendered(folder: Path) -> list[dict[str, Any]]:
    done = kubectl(None, "kustomize", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def pod_specs(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in objects:
        if each["kind"] in ("Deployment", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


@pytest.mark.kube
def test_only_the_ingress_controller_reaches_web_servers_and_routers(tmp_path: Path) -> None:
    copy = filled_in(tmp_path)
    settings = copy / "portal.env"
    settings.write_text(settings.read_text().replace("=ingress-nginx", "=traefik"))
    policies = {each["metadata"]["name"]: each["spec"] for each in rendered(copy) if each["kind"] == "NetworkPolicy"}
    assert policies["closed"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    controller = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["traefik"]}
    for name in ("web", "router"):
        assert policies[name] == {
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"namespaceSelector": {"matchExpressions": [controller]}}],
                    "ports": [{"port": "http", "protocol": "TCP"}],
                }
            ],
        }


@pytest.mark.kube
def test_the_host_is_said_once_and_settings_reach_every_program(folder: Path) -> None:
    objects = rendered(folder)
    by_kind = {each["kind"]: each for each in objects}
    ingresses = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Ingress"}
    hosts = {"portal": HOST, "uploads": HOST, "services": f"*.serve.{HOST}"}
    assert {name: each["rules"][0]["host"] for name, each in ingresses.items()} == hosts
    assert {name: each["tls"][0]["hosts"] for name, each in ingresses.items()} == {
        name: [host] for name, host in hosts.items()
    }
    for kind in ("ConfigMap", "Secret"):
        name = by_kind[kind]["metadata"]["name"]
        assert name.startswith("portal-")
        for role, spec in pod_specs(objects):
            for container in (*spec.get("initContainers", []), *spec["containers"]):
                named = [next(iter(each.values()))["name"] for each in container["envFrom"]]
                assert (name in named) is ((kind, role) != ("Secret", "router")), role


@pytest.mark.kube
def test_a_router_has_the_database_and_no_other_secret_and_longer_to_end_than_it_takes(folder: Path) -> None:
    spec = dict(pod_specs(rendered(folder)))["router"]
    (container,) = spec["containers"]
    secret = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each]
    assert [(each["name"].rpartition("-")[0], each["key"]) for each in secret] == [("portal", "DATABASE_URL")]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] >= pause + http_server.GRACE + database_feed.LAST
    ingress = next(each for each in rendered(folder) if each["metadata"]["name"] == "services")["metadata"]
    assert int(ingress["annotations"][f"{NGINX}/proxy-body-size"].rstrip("m")) * 2**20 >= proxy.MAX_BODY
    longest = ServiceSpec.model_fields["request_seconds"].metadata
    most = next(each.le for each in longest if hasattr(each, "le"))
    assert int(ingress["annotations"][f"{NGINX}/proxy-read-timeout"]) >= most + LONGEST_WAIT


@pytest.mark.kube
def test_every_program_is_confined_alike_and_only_some_may_talk_to_the_api_server(folder: Path) -> None:
    specs = dict(pod_specs(rendered(folder)))
    assert set(specs) == {"web", "worker", "beat", "controller", "router", "migrate"}
    for name, spec in specs.items():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is (name not in ("beat", "router"))
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


@pytest.mark.kube
def test_everything_is_accepted_without_a_warning(plane: Plane, folder: Path) -> None:
    done = kubectl(plane, "apply", "--server-side", "-f", str(folder / "namespace.yaml"))
    assert (done.returncode, done.stderr) == (0, "")
    done = kubectl(plane, "apply", "--server-side", "--dry-run=server", "-k", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(rendered(folder))
    # Check that a warning would be visible here.
    loose = (folder / "web.yaml").read_text().replace("runAsNonRoot: true, ", "")
    done = kubectl(
        plane, "apply", "--server-side", "--dry-run=server", f"--namespace={NAMESPACE}", "-f", "-", given=loose
    )
    assert "would violate PodSecurity" in done.stderr


@pytest.mark.kube
def test_settings_come_without_programs_for_a_restore_and_the_backup_of_the_docs_is_accepted(
    plane: Plane, folder: Path
) -> None:
    """Else the Job `migrate` would fill the database before the restore."""
    assert kubectl(plane, "apply", "--server-side", "-f", str(folder / "namespace.yaml")).returncode == 0
    apply = ("apply", "--server-side", "--dry-run=server")
    done = kubectl(plane, *apply, "-k", str(folder), "--selector", WITHOUT_PROGRAMS)
    assert (done.returncode, done.stderr) == (0, "")
    kinds = {line.partition("/")[0].partition(".")[0] for line in done.stdout.splitlines()}
    assert {"configmap", "secret", "serviceaccount"} <= kinds
    assert not {"deployment", "job"} & kinds
    docs = (ROOT / "docs" / "deployment.md").read_text()
    assert docs.count(f"--selector '{WITHOUT_PROGRAMS}'") == 2
    found = re.search(r"(?:    .*\n)+", docs[docs.index("    apiVersion: batch/v1\n    kind: CronJob") :])
    assert found
    cron_job = textwrap.dedent(found[0])
    assert "manage.py backup " in cron_job, "what the restore of the docs replaces"
    done = kubectl(plane, *apply, "-f", "-", given=cron_job)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.kube
def test_the_package_index_of_tasks_is_confined_and_only_business_lines_reach_it(plane: Plane, tmp_path: Path) -> None:
    copy = filled_in(tmp_path) / "packages"
    shutil.copy(copy / "index.env.example", copy / "index.env")
    objects = {each["kind"]: each for each in rendered(copy)}
    ((_, pod),) = pod_specs(list(objects.values()))
    (container,) = pod["containers"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    # The cluster's settings name the Service's port, and the NetworkPolicy of a run opens the pod's.
    (port,) = {each["containerPort"] for each in container["ports"]} | {
        each["port"] for each in objects["Service"]["spec"]["ports"]
    }
    assert container["args"][-1] == str(port)
    (rule,) = objects["NetworkPolicy"]["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchExpressions": [{"key": names.PORTAL, "operator": "Exists"}]}}]
    done = kubectl(plane, "apply", "--server-side", "-k", str(copy))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.kube
def test_its_pods_are_admitted_and_a_second_apply_changes_nothing(plane: Plane, folder: Path) -> None:
    for _ in range(2):
        done = kubectl(plane, "apply", "--server-side", "-k", str(folder))
        assert (done.returncode, done.stderr) == (0, "")
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    plane.until(
        deployments,
        lambda found: len(found) == 5 and all(condition(each, "Available") == "True" for each in found.values()),
    )
    for each in plane.request("GET", deployments)["items"]:
        assert each["metadata"]["generation"] == 1
    pods = plane.until(f"/api/v1/namespaces/{NAMESPACE}/pods", lambda pods: len(pods) >= 10)
    assert {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods.values()} == {
        "web", "worker", "beat", "controller", "router", "migrate",
    }  # fmt: skip
    # NetworkPolicy, disruption budget and Service select the pods by their labels.
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    plane.until(
        budgets, lambda found: all(found[name]["status"].get("expectedPods") == 2 for name in ("web", "router"))
    )


@pytest.mark.kube
def test_the_account_has_the_rights_that_it_asks_for(plane: Plane, folder: Path) -> None:
    """What a pod of the account can do: list pods everywhere, but not, for example, read a Secret."""
    assert kubectl(plane, "apply", "--server-side", "-k", str(folder)).returncode == 0
    account = f"system:serviceaccount:{NAMESPACE}:portal"
    plane.until_allowed(account, "list", "pods")
    mine = f"--as={account}"
    assert kubectl(plane, "auth", "can-i", "list", "pods", "--all-namespaces", mine).stdout == "yes\n"
    assert kubectl(plane, "auth", "can-i", "get", "secrets", f"--namespace={NAMESPACE}", mine).stdout == "no\n"
