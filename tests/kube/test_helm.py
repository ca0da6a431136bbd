"""docker/helm: the chart makes the objects of docker/kubernetes, and Helm installs, upgrades and removes it.

docker/kubernetes is the source: it runs on the real node, and the portal compares its rights with it. The chart repeats it as
templates; the comparison here names the first object in which the two differ.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from portal import __version__
from tests.kube import stages
from tests.kube.helm import program
from tests.kube.plane import Object, Plane, condition
from tests.kube.test_deployment import FOLDER, HOST, NAMESPACE, ROOT, filled_in, kubectl, rendered

pytestmark = pytest.mark.kube

CHART = ROOT / "docker" / "helm"
# Of Helm alone; the other labels are those of docker/kubernetes.
HELM_LABELS = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
}
SECRET_KEY = "0123456789abcdef" * 4
Helm = Callable[..., subprocess.CompletedProcess[str]]
Key = tuple[str, str, str]  # kind, namespace, name


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    folder = tmp_path_factory.mktemp("helm")
    # Whatever repositories and plugins the machine's own Helm has.
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}

    def run(*arguments: str, values: dict[str, Any] | None = None, plane: Plane | None = None) -> Any:
        argv = [str(program()), *arguments]
        if values is not None:
            (folder / "values.yaml").write_text(yaml.safe_dump(values))
            argv += ["--values", str(folder / "values.yaml")]
        if plane:
            argv += ["--kubeconfig", str(plane.kubeconfig), "--namespace", NAMESPACE]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=400, check=False)

    return run


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One of its own, for the same reason as that of test_deployment."""
    plane = Plane(tmp_path_factory.mktemp("plane"))
    plane.start()
    try:
        plane.add_nodes(2)
        done = kubectl(plane, "apply", "--server-side", "-f", str(FOLDER / "namespace.yaml"))
        assert (done.returncode, done.stderr) == (0, "")
        yield plane
        plane.check()
    finally:
        plane.stop()


def env_file(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def filled_in_values() -> dict[str, Any]:
    """The same as `with_key` writes."""
    (image,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["images"]
    secret = env_file(FOLDER / "secrets.env.example") | {"PORTAL_SECRET_KEY": SECRET_KEY}
    return {"origin": f"https://{HOST}", "image": {"tag": image["newTag"]}, "secret": {"values": secret}}


def with_key(parent: Path) -> Path:
    folder = filled_in(parent)
    secrets = folder / "secrets.env"
    secrets.write_text(secrets.read_text().replace("PORTAL_SECRET_KEY=", f"PORTAL_SECRET_KEY={SECRET_KEY}"))
    return folder


def templated(helm: Helm, values: dict[str, Any]) -> list[Object]:
    done = helm("template", "gpu-cloud", str(CHART), f"--namespace={NAMESPACE}", values=values)
    assert (done.returncode, done.stderr) == (0, "")
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def by_key(objects: list[Object]) -> dict[Key, Object]:
    """Without what says which tool made an object: hashes in names, the chart's labels and checksums."""
    found: dict[Key, Object] = {}
    for each in objects:
        each = _without_hashes(each)
        meta = each["metadata"]
        meta.setdefault("namespace", NAMESPACE)
        meta["labels"] = {name: value for name, value in meta["labels"].items() if name not in HELM_LABELS}
        annotations = each.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {})
        if annotations.pop("checksum/settings", None) and not annotations:
            del each["spec"]["template"]["metadata"]["annotations"]
        if each["kind"] == "Secret":  # kustomize breaks the lines of base64
            each["data"] = {name: base64.b64decode(value) for name, value in each["data"].items()}
        key = each["kind"], meta["namespace"], meta["name"]
        assert key not in found
        found[key] = each
    return found


def _without_hashes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_hashes(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_hashes(each) for each in value]
    return re.sub(r"^(portal|index|migrate)-[0-9a-z]{10}$", r"\1", value) if isinstance(value, str) else value


def assert_same(chart: dict[Key, Object], base: dict[Key, Object]) -> None:
    # Helm makes the namespace of a release, or finds it there.
    del base["Namespace", NAMESPACE, NAMESPACE]
    assert set(chart) == set(base)
    for key, each in base.items():
        assert chart[key] == each, f"docker/helm and docker/kubernetes differ in {key}"


def test_it_makes_the_objects_of_docker_kubernetes(helm: Helm, tmp_path: Path) -> None:
    assert_same(by_key(templated(helm, filled_in_values())), by_key(rendered(with_key(tmp_path))))


def test_so_do_its_options(helm: Helm, tmp_path: Path) -> None:
    """Applications, the package index and the admission policy."""
    folder = with_key(tmp_path)
    kustomization = folder / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("# components:", "components:"))
    shutil.copy(folder / "packages/index.env.example", folder / "packages/index.env")
    admission = list(yaml.safe_load_all((folder / "admission.yaml").read_text()))
    for each in admission:
        each["metadata"]["labels"] = {"app.kubernetes.io/part-of": "gpu-cloud"}
    values = {
        **filled_in_values(),
        "applications": {"enabled": True, "traefik": True},
        "packages": {"enabled": True, "values": env_file(folder / "packages/index.env")},
        "admission": {"enabled": True},
    }
    chart = by_key(templated(helm, values))
    base = by_key(rendered(folder) + rendered(folder / "packages") + admission)
    for objects in (chart, base):
        for each in objects["ValidatingAdmissionPolicy", NAMESPACE, "gpu-cloud"]["spec"]["variables"]:
            each["expression"] = " ".join(each["expression"].split())
    assert_same(chart, base)


def test_settings_come_without_programs_for_a_restore(helm: Helm) -> None:
    found = [
        each
        for each in templated(helm, filled_in_values())
        if "app.kubernetes.io/name" not in each["metadata"]["labels"]
    ]
    kinds = {each["kind"] for each in found}
    assert {"ConfigMap", "Secret"} <= kinds
    assert not {"Deployment", "Job"} & kinds


def test_its_version_is_that_of_the_portal() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_it_is_linted(helm: Helm) -> None:
    for values in ({}, EVERYTHING):
        done = helm("lint", "--strict", str(CHART), values=values)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stdout


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "PORTAL_SECRET_KEY is missing: name a Secret in secret.existing, or give secret.values.PORTAL_SECRET_KEY"),
        ({"secret": {"existing": "s"}, "replicas": 3}, "replicas"),
        ({"secret": {"existing": "s"}, "settings": {"PORTAL_UPLOAD_MAX_MB": 51200}}, "got number, want string"),
        ({"secret": {"existing": "s"}, "origin": "https://portal.example.org/"}, "origin"),
        ({"secret": {"existing": "s"}, "packages": {"enabled": True}}, "PORTAL_PACKAGE_INDEX is missing"),
    ],
)  # fmt: skip
def test_values_that_make_no_portal_are_refused_with_a_sentence(
    helm: Helm, values: dict[str, Any], sentence: str
) -> None:
    done = helm("template", "gpu-cloud", str(CHART), f"--namespace={NAMESPACE}", values=values)
    assert done.returncode == 1
    assert sentence in done.stderr


# As a house might fill it in: everything of its own, secrets in Secrets, an ingress controller on the network of the nodes.
SCHEDULED = {
    "nodeSelector": {"pool": "portal"},
    "tolerations": [{"key": "portal", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
}
EVERYTHING: dict[str, Any] = {
    "origin": "https://ml.example.org:8443",
    "serveOrigin": "https://models.example.org:8443",
    "image": {"repository": "r.example.org/portal", "tag": "1", "pullPolicy": "Always", "pullSecrets": [{"name": "r"}]},
    "settings": {"PORTAL_STORAGE_URL": "https://s3.example.org", "EMAIL_URL": None},
    "secret": {"existing": "house"},
    "secretRefs": {"DATABASE_URL": {"name": "db-app", "key": "uri"}, "REDIS_URL": {"name": "redis", "key": "url"}},
    "ingress": {
        "className": "public",
        "annotations": {"cert-manager.io/cluster-issuer": "house"},
        "portal": {"tlsSecret": "", "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "8m"}},
        "services": {"annotations": {"nginx.ingress.kubernetes.io/proxy-next-upstream": None}},
    },
    "web": {"replicas": None, "service": {"annotations": {"a": "b"}}, "extraEnv": [{"name": "WEB_CONCURRENCY", "value": "4"}]},
    "worker": {"replicas": 5, "resources": {"limits": {"memory": "2Gi"}}, "nodeSelector": {"pool": "busy"}},
    "migrate": {"register": False},
    **SCHEDULED,
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"c": "d"},
    "podLabels": {"team": "ml"},
    "extraEnv": [{"name": "PGSSLROOTCERT", "value": "/ca/ca.crt"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "serviceAccount": {"annotations": {"e": "f"}},
    "rbac": {"name": "gpu-cloud-two", "nodes": False},
    "networkPolicy": {
        "ingressFrom": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "applications": {"enabled": True},
    "admission": {"enabled": True, "users": ["kueue"], "groups": ["storage"]},
    "packages": {"enabled": True, "existingSecret": "house-index"},
}  # fmt: skip


def test_values_reach_the_objects(helm: Helm) -> None:
    found = by_key(templated(helm, EVERYTHING))
    kinds = {(kind, name): each for (kind, _, name), each in found.items()}
    assert not [name for kind, name in kinds if kind == "Secret"]
    assert kinds["ConfigMap", "portal"]["data"] == {
        "PORTAL_ORIGIN": "https://ml.example.org:8443",
        "PORTAL_APPS_ORIGIN": "https://apps.ml.example.org:8443",
        "PORTAL_SERVE_ORIGIN": "https://models.example.org:8443",
        "PORTAL_INGRESS_NAMESPACE": "ingress-nginx",
        "PORTAL_PROXY_COUNT": "1",
        "PORTAL_STORAGE_URL": "https://s3.example.org",
    }
    web = kinds["Deployment", "web"]["spec"]
    assert "replicas" not in web
    assert kinds["Deployment", "worker"]["spec"]["replicas"] == 5
    for name in ("web", "router", "worker", "beat", "controller", "migrate", "packages"):
        template = kinds["Job" if name == "migrate" else "Deployment", name]["spec"]["template"]
        assert template["metadata"]["annotations"]["c"] == "d"
        assert template["metadata"]["labels"] == {"app.kubernetes.io/name": name, "team": "ml"}
        spec = template["spec"]
        assert {key: spec[key] for key in SCHEDULED} == SCHEDULED | {
            "nodeSelector": {"pool": "busy" if name == "worker" else "portal"}
        }
        assert spec["imagePullSecrets"] == [{"name": "r"}]
        (container,) = spec["containers"]
        assert (container["image"], container["imagePullPolicy"]) == ("r.example.org/portal:1", "Always")
        if name == "packages":
            assert container["envFrom"] == [{"secretRef": {"name": "house-index"}}]
            continue
        env = {each["name"]: each for each in container["env"]}
        assert env["DATABASE_URL"]["valueFrom"] == {"secretKeyRef": {"name": "db-app", "key": "uri"}}
        assert env["PGSSLROOTCERT"]["value"] == "/ca/ca.crt"
        secret = {"secretRef": {"name": "house"}} in container["envFrom"]
        # Strangers reach routers.
        assert (secret, "valueFrom" in env["REDIS_URL"]) == ((False, False) if name == "router" else (True, True))
        assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
    assert {"name": "WEB_CONCURRENCY", "value": "4"} in web["template"]["spec"]["containers"][0]["env"]
    ingresses = {name: each for (kind, name), each in kinds.items() if kind == "Ingress"}
    assert {name: each["spec"]["rules"][0]["host"] for name, each in ingresses.items()} == {
        "portal": "ml.example.org",
        "uploads": "ml.example.org",
        "services": "*.models.example.org",
        "applications": "*.apps.ml.example.org",
        "inside-applications": "*.apps.ml.example.org",
    }
    for name, each in ingresses.items():
        assert each["spec"]["ingressClassName"] == "public"
        assert each["metadata"]["annotations"]["cert-manager.io/cluster-issuer"] == "house"
        assert ("tls" in each["spec"]) is (name not in ("portal", "uploads"))
    assert ingresses["portal"]["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"] == "8m"
    assert "nginx.ingress.kubernetes.io/proxy-next-upstream" not in ingresses["services"]["metadata"]["annotations"]
    assert {name for kind, name in kinds if kind.startswith("ClusterRole")} == {"gpu-cloud-two"}
    policies = {name: kinds["NetworkPolicy", name]["spec"]["ingress"][0]["from"] for name in ("web", "router")}
    assert policies["router"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
    assert [list(peer) for peer in policies["web"]] == [["ipBlock"], ["namespaceSelector"]]
    users, groups = kinds["ValidatingAdmissionPolicy", "gpu-cloud-two"]["spec"]["variables"]
    assert users["expression"].endswith(", 'kueue']")
    assert groups["expression"].endswith(", 'storage']")


def test_whatever_the_values_say_the_api_server_accepts_it_without_a_warning(helm: Helm, plane: Plane) -> None:
    for values in (filled_in_values(), {**EVERYTHING, "packages": {"enabled": False}}):
        # Server-side: with what Helm looks up there.
        done = helm("template", "gpu-cloud", str(CHART), "--dry-run=server", values=values, plane=plane)
        assert (done.returncode, done.stderr) == (0, "")
        done = kubectl(
            plane, "apply", "--server-side", "--dry-run=server", f"--namespace={NAMESPACE}", "-f", "-", given=done.stdout
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


def test_helm_installs_upgrades_and_removes_it(helm: Helm, plane: Plane) -> None:
    # The simulated node ends the Job's pod.
    values = {**filled_in_values(), "migrate": {"podAnnotations": {stages.EXIT_CODE: "0"}}}
    waits = ("--wait", "--wait-for-jobs", "--timeout=300s")
    done = helm("install", "gpu-cloud", str(CHART), *waits, values=values, plane=plane)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"People open https://{HOST}" in done.stdout
    assert "createsuperuser" in done.stdout
    # Only where the namespace does not enforce Pod Security.
    assert "kubectl label" not in done.stdout
    first = generations(plane)
    assert {name: generation for name, (generation, _) in first.items()} == dict.fromkeys(first, 1)
    (job,) = jobs(plane)

    # Nothing has changed: nothing restarts, and the Job that is done stays.
    done = helm("upgrade", "gpu-cloud", str(CHART), *waits, values=values, plane=plane)
    assert (done.returncode, done.stderr) == (0, "")
    assert generations(plane) == first
    assert jobs(plane) == [job]

    # A changed secret setting restarts every program, and migrates anew. What was off can be switched on.
    values["secret"]["values"]["PORTAL_METRICS_TOKEN"] = "changed"
    values |= {"web": {"replicas": 3}, "admission": {"enabled": True}}
    values["packages"] = {"enabled": True, "values": env_file(FOLDER / "packages/index.env.example")}
    done = helm("upgrade", "gpu-cloud", str(CHART), *waits, values=values, plane=plane)
    assert (done.returncode, done.stderr) == (0, "")
    second = generations(plane)
    assert {name: generation for name, (generation, _) in second.items()} == dict.fromkeys(first, 2)
    assert second["web"][1] == 3
    assert len(jobs(plane)) == 1
    assert jobs(plane) != [job]

    # Back to the first values: every program restarts once more, the first Job migrates again, and what was switched on goes.
    done = helm("rollback", "gpu-cloud", "1", *waits, plane=plane)
    assert (done.returncode, done.stderr) == (0, "")
    gone = kubectl(plane, "wait", "--for=delete", "namespace/gpu-cloud-packages", "--timeout=50s")
    assert (gone.returncode, gone.stderr) == (0, "")
    third = generations(plane)
    assert {name: generation for name, (generation, _) in third.items()} == dict.fromkeys(first, 3)
    assert third["web"][1] == first["web"][1]
    assert jobs(plane) == [job]

    done = helm("uninstall", "gpu-cloud", "--wait", "--timeout=300s", plane=plane)
    assert (done.returncode, done.stderr) == (0, "")
    assert not generations(plane)
    made = yaml.safe_dump_all(templated(helm, values))
    left = kubectl(
        plane, "get", f"--namespace={NAMESPACE}", "--ignore-not-found", "--output=name", "-f", "-", given=made
    )
    assert (left.returncode, left.stderr, left.stdout) == (0, "", "")


def generations(plane: Plane) -> dict[str, tuple[int, int]]:
    """(generation, available replicas) of Deployments that are available."""
    found = plane.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    assert all(condition(each, "Available") == "True" for each in found)
    return {
        each["metadata"]["name"]: (each["metadata"]["generation"], each["status"]["availableReplicas"])
        for each in found
    }


def jobs(plane: Plane) -> list[str]:
    """Names of those that are complete; there are no others."""
    found = plane.request("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs")["items"]
    # Helm does not wait for those that it removes.
    found = [each for each in found if "deletionTimestamp" not in each["metadata"]]
    assert all(condition(each, "Complete") == "True" for each in found)
    return [each["metadata"]["name"] for each in found]
