"""Saved environments in containers of a real node, with the cloud alone. Each pod installs them from an index with a password,
through the proxy pod of docker/kubernetes/packages; tasks cannot write to them; and a failed installation reports its cause."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from clusters.clouds.drivers.base import NOT_MADE, Environment, ImageRef, RolePlan, RunRef
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.frameworks.programs import text
from tests.index import PASSWORD, Index
from tests.kube import images
from tests.kube.following import Following, cloud_of
from tests.kube.node import Node
from tests.kube.plans import plan, role, run_ref
from tests.kube.test_deployment import filled_in, kubectl
from tests.kube.test_node_cloud import UNTIL_TOLD, output

pytestmark = [
    pytest.mark.kube,
    pytest.mark.node,
    pytest.mark.timeout(600),
    pytest.mark.images("jupyter", "rclone", "portal"),
]

JUPYTER = ImageRef("jupyter", images.TAGS["jupyter"], "", "")
PACKAGES = "gpu-cloud-packages"
INSTALL = text("install.py")
SAYS = "python -c 'import greeting; print(greeting.TEXT)'; touch $VIRTUAL_ENV/x 2>&1; env; " + UNTIL_TOLD


@pytest.fixture(scope="module")
def index(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """An index with a password. The proxy in front of it is applied as an administrator does."""
    for name in ("jupyter", "rclone", "portal"):
        node.import_image(images.image(name))
    folder = filled_in(tmp_path_factory.mktemp("packages")) / "packages"
    with closing(Index(node.gateway)) as index:
        (folder / "index.env").write_text(f"PORTAL_PACKAGE_INDEX={index.url}\n")
        for words in (
            ["apply", "--server-side", "-k", str(folder)],
            ["rollout", "status", "deploy/packages", "-n", PACKAGES],
        ):
            done = kubectl(node.plane, *words)
            assert done.returncode == 0, done.stderr
        yield index
    node.plane.request("DELETE", f"/api/v1/namespaces/{PACKAGES}")


@pytest.fixture
def cloud(node: Node, index: Index) -> KubernetesCloud:
    cloud = cloud_of(node.plane, f"portal-{secrets.token_hex(4)}")
    cloud._settings = replace(cloud._settings, package_index=f"http://packages.{PACKAGES}.svc:3141/simple")
    return cloud


@contextmanager
def launched(cloud: KubernetesCloud, run: RunRef, environment: Environment, *roles: RolePlan) -> Iterator[Following]:
    with Following(cloud) as following:
        cloud.apply(plan(*roles, run=run, image=JUPYTER, environment=environment))
        yield following
        cloud.delete(run)
        following.until(lambda: following.is_gone(run), 120)


def shell(script: str, **changes: object) -> RolePlan:
    return role("master", argv=("bash", "-c", script), gpus=0, **changes)


def saved(lock: str, script: str = "") -> Environment:
    return Environment("torch:1", f"{lock}{script}", f"{lock}\n", script, INSTALL)


def test_a_task_starts_from_an_environment_that_it_cannot_change_and_no_password_is_anywhere(
    node: Node, cloud: KubernetesCloud, index: Index
) -> None:
    run, torch = (
        run_ref(f"line-{secrets.token_hex(4)}"),
        saved(index.add("greeting", "1.0", greeting="TEXT = 'hello'"), "pip -V"),
    )
    with launched(cloud, run, torch, shell(SAYS)) as following:
        following.until(lambda: following.of(run, "Running") or following.of(run, "Failed"), 120)
        code, _, errors = output(cloud.exec(run, "master", 0, ["python", "-c", "import greeting"]))
        assert code == 0, errors
        # Its exit code may be lost: the task ends at once, and all processes of its container with it.
        output(cloud.exec(run, "master", 0, ["touch", "/tmp/go"]))
        following.until(lambda: following.of(run, "Succeeded"), 60)
        said = cloud.log(run, "master", 0, attempt=0).data.decode()
        assert said.startswith("hello\n"), said
        assert "Read-only file system" in said
        (pod,) = node.plane.request("GET", f"/api/v1/namespaces/{run.namespace}/pods")["items"]
        path = f"/api/v1/namespaces/{run.namespace}/pods/{pod['metadata']['name']}/log"
        everything = [said, json.dumps(pod), cloud._client.open(path, container="environment").read().decode()]
        kinds = (f"/api/v1/namespaces/{run.namespace}/{kind}" for kind in ("configmaps", "secrets", "events"))
        everything += [json.dumps(node.plane.request("GET", each)) for each in kinds]
        assert "greeting==1.0" in everything[2]
        assert not [text for text in everything if PASSWORD in text]


def test_what_a_run_requires_is_installed_by_the_pip_of_its_image(cloud: KubernetesCloud, index: Index) -> None:
    """pip installs through the proxy pod, in an init container with a read-only file system."""
    run = run_ref(f"line-{secrets.token_hex(4)}")
    index.add("leaf", "1.5", leaf="TEXT = 'leaf'")
    index.add("greeting", "2.0", ["leaf"], greeting="import leaf; TEXT = 'hello ' + leaf.TEXT")
    required = saved("# requirements\ngreeting>=2")
    with launched(cloud, run, required, shell("python -c 'import greeting; print(greeting.TEXT)'")) as following:
        following.until(lambda: following.of(run, "Succeeded") or following.of(run, "Failed"), 120)
        assert cloud.log(run, "master", 0, attempt=0).data.decode() == "hello leaf\n"


@pytest.mark.parametrize("restart", ["OnFailure", "Always"])
def test_one_that_cannot_be_made_starts_nothing_and_names_the_package(
    cloud: KubernetesCloud, index: Index, restart: str
) -> None:
    run = run_ref(f"line-{secrets.token_hex(4)}")
    absent = index.add("greeting", "1.0", greeting="TEXT = 'hello'").replace("greeting", "absent")
    with launched(cloud, run, saved(absent), shell("echo started", restart=restart, retries=0)) as following:

        def why() -> str:
            found = [each for each in following.tasks.values() if each.run_id == run.id]
            return next((each.message for each in found if each.reason == NOT_MADE), "")

        following.until(lambda: bool(why()), 120)
        assert "absent" in why()
        assert "Save the environment anew" in why()
        assert not cloud.log(run, "master", 0, attempt=0).data
