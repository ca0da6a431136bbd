"""Applications on Kubernetes as users meet them: real JupyterLab in a container of a real node, a Traefik of that cluster
in front, the whole portal and a real browser. Also TensorBoard of a run that trains there and stores its output in S3.

The cluster has its own domain, because the portal's domain leads to this machine's gateway.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, expect, sync_playwright
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from portal.up import services
from portal.up.services import Service, free_port
from tests.browser import ARGUMENTS, SOON
from tests.e2e.test_tensorboard import STEPS, TRAIN
from tests.index import PASSWORD, TREE, Index, mirror
from tests.kube import images
from tests.kube.following import hand_over, portal_kubeconfig
from tests.kube.node import Node
from tests.kube.test_ingress import KINDS, NAMESPACE, define, path_of
from tests.kube.test_main_job import manage, s3  # noqa: F401  the fixture
from tests.running import ELSEWHERE, ROOT, Client, Portal, eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kube,
    pytest.mark.node,
    pytest.mark.timeout(900),
    pytest.mark.images("jupyter", "tensorflow", "rclone"),
]

DOMAIN, LABEL = "apps.training.localhost", "notebook-lab-ops-demo"
MIDDLEWARES = ROOT / "docker" / "kubernetes" / "applications" / "traefik" / "middlewares.yaml"
LATE = 4 * SOON
PATH = "/appcodes/ops-demo/applications/lab"


@dataclass
class World:
    portal: Portal
    node: Node
    alice: Client
    index: Index

    @property
    def host(self) -> str:
        return f"{LABEL}.{DOMAIN}:{self.portal.port}"

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.alice.call("GET", PATH)["status"]
        return found

    def works(self, state: str) -> bool:
        """Returns True if the condition "Working" has this state: True, False or Unknown."""
        (known,) = (each for each in self.status()["conditions"] if each["type"] == "Working")
        return bool(known["status"] == state)

    def until_ready(self) -> None:
        def ready() -> bool:
            found = self.status().get("endpoints", [])
            return bool(found) and all(each["ready"] for each in found)

        assert eventually(ready, 300), self.status()


@pytest.fixture(scope="module")
def world(node: Node, s3: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:  # noqa: F811
    packages, index = free_port(), Index()
    for name in ("jupyter", "tensorflow", "rclone"):
        node.import_image(images.image(name))
    folder = tmp_path_factory.mktemp("applications")
    store = {f"PORTAL_S3_{name}": value for name, value in s3.items()}
    portal = Portal(folder / "var", PORTAL_ACTIVITY_SECONDS="2", PORTAL_PACKAGE_INDEX=index.url, **store, **ELSEWHERE)
    portal.start()
    portal.end_show1()
    wanted = {
        "gateway": "traefik",
        "gateway_namespace": "traefik",
        "gateway_address": f"http://{node.gateway}:{portal.port}",
        "apps_domain": DOMAIN,
        "portal": "applications",
        "storage_networks": f"[{node.gateway}/32]",
        "package_index": f"http://{node.gateway}:{packages}/simple",
        "environment_class": "environments",
    }
    settings = [word for name, value in wanted.items() for word in ("--set", f"{name}={value}")]
    config = str(portal_kubeconfig(node.plane))
    manage(portal, "register_kubernetes", "training", "--kubeconfig", config, *settings, "--default")
    hand_over(node.plane, "applications", "ops")
    shared = [_volume(node, "environments", "ReadWriteMany") for _ in ("an environment", "plugins")]
    disks = [_volume(node, "homes", "ReadWriteOnce"), *shared]
    traefik = services.running([_traefik(node, portal, folder)], services.private_folder(folder / "log"), os.environ)
    with traefik, closing(index), mirror(index, packages):
        yield World(portal, node, Client(portal, "alice"), index)
    assert portal.stop() == 0
    for disk in disks:
        shutil.rmtree(disk)


def _volume(node: Node, storage_class: str, mode: str) -> Path:
    """Returns the folder behind the volume of the only claim of this class."""
    disk = Path("/var/tmp") / f"{storage_class}-{secrets.token_hex(4)}"  # the node has its own /tmp
    disk.mkdir()
    os.chown(disk, 1000, 1000)
    facts = {
        "capacity": {"storage": "20Gi"},
        "accessModes": [mode],
        "storageClassName": storage_class,
        "hostPath": {"path": str(disk)},
    }
    node.plane.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": disk.name}, "spec": facts})
    return disk


def _traefik(node: Node, portal: Portal, folder: Path) -> Service:
    """Returns the cluster's ingress controller with the Middlewares of docker/kubernetes. It runs next to the portal,
    reaches it at its own address, and proves its identity as the portal's gateway does."""
    routes = json.loads((portal.data / "gateway" / "routes.yaml").read_text())["http"]
    (server,) = routes["services"]["portal"]["loadBalancer"]["servers"]
    for kind in KINDS:
        define(node.plane, kind)
    node.plane.apply(
        f"/api/v1/namespaces/{NAMESPACE}", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    for each in yaml.safe_load_all(MIDDLEWARES.read_text()):
        each["metadata"]["namespace"] = NAMESPACE
        spec = each["spec"]
        if "chain" in spec:
            spec["chain"]["middlewares"] = [{"name": "proof@file"}, {"name": "applications-who"}]
        if "errors" in spec:
            continue
        if "forwardAuth" in spec:
            spec["forwardAuth"]["address"] = f"{server['url']}/gateway/judge"
        node.plane.apply(path_of(each), each, force="true")
    rule = "HostRegexp(`^[a-z0-9-]+[.]" + DOMAIN.replace(".", "[.]") + "$`)"
    waits = {"rule": rule, "priority": 1, "service": "portal", "middlewares": ["proof"]}
    files = services.private_folder(folder / "routes")
    dynamic = {
        "routers": {"waits": waits},
        "middlewares": {"proof": routes["middlewares"]["proof"]},
        "services": routes["services"],
    }
    (files / "portal.yaml").write_text(json.dumps({"http": dynamic}))
    static = {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "log": {"level": "INFO", "noColor": True},
        "entryPoints": {
            "web": {"address": f"{node.gateway}:{portal.port}", "http": {"aliasHeadersStrategy": "delete"}}
        },
        "providers": {
            "providersThrottleDuration": "100ms",
            "file": {"directory": str(files)},
            "kubernetesIngress": {"allowEmptyServices": False},
            "kubernetesCRD": {},
        },
    }
    (folder / "traefik.yaml").write_text(json.dumps(static))
    argv = (services.program("traefik"), f"--configFile={folder / 'traefik.yaml'}")
    return Service("traefik", argv, env={"KUBECONFIG": str(node.plane.kubeconfig)})


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[Browser]:
    """Starts a browser that resolves the cluster's domain to its gateway."""
    leads = f"--host-resolver-rules=MAP *.{DOMAIN} {world.node.gateway}"
    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS, leads], timeout=4 * SOON)
        yield browser
        browser.close()


def test_a_notebook_in_a_pod_is_opened_used_stopped_and_found_again(world: World, browser: Browser) -> None:
    alice, portal = world.alice, world.portal
    volume = {"storage_class": "homes", "size": "1Gi"}
    home = {"metadata": {"name": "lab-home", "appcode": "ops-demo"}, "spec": {"volume": volume}}
    alice.call("POST", "/appcodes/ops-demo/datastores", home)
    image = next(each["name"] for each in alice.call("GET", "/images")["items"] if each["name"].startswith("jupyter"))
    path = alice.create(
        "ops-demo", "lab", framework="jupyter", image=image, home="lab-home", roles={"notebook": {"flavor": "small"}}
    )
    (endpoint,) = world.status()["endpoints"]
    assert endpoint == {"name": "notebook", "url": f"http://{world.host}/", "ready": False}

    with browser.new_context() as context:
        page = context.new_page()
        # Until the notebook answers, its address shows a waiting page that opens it as soon as possible.
        page.goto(f"http://{world.host}/lab")
        page.locator("[name=login]").fill("alice")
        page.locator("[name=password]").fill(portal.credentials["users"]["alice"]["password"])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector(".jp-Launcher", timeout=LATE)
        world.until_ready()
        me = "async () => (await (await fetch('/api/me')).json()).identity.username"
        assert page.evaluate(me) == "alice"
        body = json.dumps({"type": "file", "format": "text", "content": "kept"})
        put = "async body => (await fetch('/api/contents/kept.txt', {method: 'PUT', body})).status"
        assert page.evaluate(put, body) == 201

        # A program with the token runs a cell, as a desktop editor does; another token gives no access.
        token = alice.call("POST", f"{PATH}/access/refresh")["token"]
        start = "async () => (await (await fetch('/api/kernels', {method: 'POST'})).json()).id"
        channels = f"ws://{world.host}/api/kernels/{page.evaluate(start)}/channels?session_id=editor"
        assert ran(world, channels, token, "import os; print(6 * 7, os.getuid())") == "42 1000\n"
        with pytest.raises(InvalidStatus):
            opened(world, channels, "another")

        # The portal polls its activity through the same gateway. The cell ends when the test creates /tmp/go.
        assert eventually(lambda: world.works("False"), 120), world.status()
        waits = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.1)"
        with opened(world, channels, token) as kernel:
            kernel.send(executing(waits))
            assert eventually(lambda: world.works("True"), 60), world.status()
            assert "A cell runs." in [each["message"] for each in world.status()["conditions"]]

        # A terminal in the container, through the portal.
        terminal = f"ws://localhost:{portal.port}/api/v1{path}/runs/1/tasks/notebook/0/terminal"
        with connect(terminal, additional_headers={"Authorization": f"Bearer {alice.token}"}) as shell:
            shell.send(b"touch /tmp/go; cat /elearn/home/kept.txt; echo $((6*7))-$(id -u)\n")
            shown, end = b"", time.monotonic() + 60
            while b"kept42-1000" not in shown:
                assert time.monotonic() < end, shown
                said = shell.recv(timeout=60)
                shown += said if isinstance(said, bytes) else b""

        assert eventually(lambda: world.works("False"), 120), world.status()

        # Another user's browser gets no access.
        with browser.new_context() as others:
            stranger = others.new_page()
            stranger.goto(f"http://{world.host}/lab")
            stranger.locator("[name=login]").fill("mallory")
            stranger.locator("[name=password]").fill(portal.credentials["users"]["mallory"]["password"])
            stranger.get_by_role("button", name="Sign in").click()
            expect(stranger.get_by_text("nothing at this address that you may open")).to_be_visible()

        # A request in progress is still answered: the gateway drops the pod before the pod gets SIGTERM.
        pod = world.node.plane.request("GET", "/api/v1/namespaces/ops/pods")["items"][0]
        alice.call("POST", f"{path}/disable")
        assert eventually(lambda: not world.status()["endpoints"][0]["ready"], 30)
        assert pod["metadata"]["uid"] in world.node.pods_alive()
        assert eventually(lambda: world.status()["phase"] == "Stopped", 60)
        page.goto(f"http://{world.host}/lab")
        expect(page.get_by_role("status")).to_contain_text("lab: Stopped")

        # The home folder survives. An open page is no activity, so the end is announced.
        manifest = alice.call("GET", path)
        alice.call("PUT", path, {**manifest, "spec": {**manifest["spec"], "idle": {"policy": "stop", "after": 60}}})
        alice.call("POST", f"{path}/deploy")
        page.goto(f"http://{world.host}/lab")
        page.wait_for_selector("text=kept.txt", timeout=LATE)
        assert eventually(lambda: "IdleStop" in [each["type"] for each in world.status()["conditions"]], 120), (
            world.status()
        )
        alice.call("POST", f"{path}/disable")
        assert eventually(lambda: world.status()["phase"] == "Stopped", 60)


def test_one_click_shows_what_a_run_in_containers_stores_in_s3(world: World, browser: Browser) -> None:
    alice, portal = world.alice, world.portal
    image = next(
        each["name"] for each in alice.call("GET", "/images")["items"] if each["name"].startswith("tensorflow")
    )
    roles = {"master": {"flavor": "small"}}
    path = alice.create("ops-demo", "learn", image=image, command=TRAIN, output="demo-output", roles=roles)
    host = f"tensorboard-tb-learn-1-ops-demo.{DOMAIN}:{portal.port}"
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{portal.origin}/clusters/ops-demo/learn/metrics")
        page.locator("[name=login]").fill("alice")
        page.locator("[name=password]").fill(portal.credentials["users"]["alice"]["password"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".chart h2")).to_have_text("loss", timeout=LATE)  # the first steps are stored
        with context.expect_page() as opening:
            page.get_by_role("button", name="TensorBoard ▸").click()
        board = opening.value
        board.wait_for_url(f"http://{host}/**", timeout=LATE)
        expect(board.get_by_text("learn/1/summaries").first).to_be_visible(timeout=LATE)
        expect(board.get_by_text("loss").first).to_be_visible(timeout=LATE)
        first = board.evaluate(STEPS)["learn/1/summaries"]
        assert eventually(lambda: board.evaluate(STEPS)["learn/1/summaries"] > first + 5, 60)

        # Only the sidecar that follows the bucket has its keys, and files that TensorBoard does not show were not fetched.
        pods = world.node.plane.request("GET", "/api/v1/namespaces/ops/pods")["items"]
        (pod,) = (each for each in pods if "tb-learn-1" in each["metadata"]["name"])
        assert "SECRET" not in json.dumps(pod["spec"]["containers"])
        terminal = (
            f"ws://localhost:{portal.port}/api/v1/appcodes/ops-demo/clusters/tb-learn-1/runs/1/tasks/board/0/terminal"
        )
        with connect(terminal, additional_headers={"Authorization": f"Bearer {alice.token}"}) as shell:
            shell.send(b"ls /elearn/runs/learn/1/ | cat; echo end-$((6*7))\n")
            shown = b""
            while b"end-42" not in shown:
                said = shell.recv(timeout=60)
                shown += said if isinstance(said, bytes) else b""
        assert b"summaries" in shown
        assert b"ckpt-0" not in shown
    for each in (path, "/appcodes/ops-demo/clusters/tb-learn-1"):
        alice.call("POST", f"{each}/disable")
        assert eventually(lambda each=each: alice.call("GET", each)["status"]["phase"] == "Stopped", 120)


def test_what_was_installed_in_a_pod_is_saved_and_others_start_from_it(world: World) -> None:
    alice, node = world.alice, world.node
    world.index.add("greeting", "1.0", greeting="TEXT = 'hello from the index'")
    alice.call("POST", f"{PATH}/deploy")
    world.until_ready()
    token = alice.call("POST", f"{PATH}/access/refresh")["token"]

    def cell(code: str) -> str:
        """Returns what the code wrote in a new kernel."""
        headers = {"Authorization": f"token {token}", "Host": world.host}
        address = f"http://{node.gateway}:{world.portal.port}/api/kernels"
        with urllib.request.urlopen(urllib.request.Request(address, b"", headers, method="POST"), timeout=60) as answer:
            kernel = json.load(answer)["id"]
        return ran(world, f"ws://{world.host}/api/kernels/{kernel}/channels?session_id=editor", token, code)

    installs = (
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'pip', 'install', 'greeting'], capture_output=True, text=True)\n"
        "print(done.returncode, done.stderr)"
    )
    assert cell(installs).startswith("0 ")
    kept = alice.call("POST", f"{PATH}/environment", {"metadata": {"name": "hello"}})
    assert [each["name"] for each in kept["status"]["packages"]] == ["greeting"]
    alice.call("POST", f"{PATH}/disable")
    assert eventually(lambda: world.status()["phase"] == "Stopped", 60)

    # A task's own installations go into a layer of their own, and the saved environment is read-only.
    command = "at=$(python -c 'import greeting, numpy; print(greeting.__file__)') && ! touch ${at%/*}/x"
    spec: dict[str, Any] = {"image": kept["spec"]["image"], "environment": "hello", "command": command}
    greets = alice.create("ops-demo", "greets", roles={"master": {"flavor": "small"}}, retries=0, **spec)

    def found() -> dict[str, Any]:
        return dict(alice.call("GET", greets)["status"])

    assert eventually(lambda: found()["phase"] in ("Succeeded", "Failed"), 180), found()
    assert found()["phase"] == "Succeeded", found()
    # The next run, a notebook, finds the environment without an index; its own layer is empty.
    world.index.files.clear()
    lab = alice.call("GET", PATH)
    alice.call("PUT", PATH, {"metadata": lab["metadata"], "spec": {**lab["spec"], "environment": "hello"}})
    alice.call("POST", f"{PATH}/deploy")
    world.until_ready()
    place, text = cell("import greeting; print(greeting.__file__, greeting.TEXT)").split(" ", 1)
    assert (place.startswith("/elearn/environments/"), text) == (True, "hello from the index\n")
    everything = [
        kept,
        *(node.plane.request("GET", f"/api/v1/namespaces/ops/{each}") for each in ("pods", "configmaps")),
    ]
    assert PASSWORD not in json.dumps(everything)
    for log in (world.portal.data / "log").iterdir():
        assert PASSWORD not in log.read_text(errors="replace"), log
    alice.call("POST", f"{PATH}/disable")
    assert eventually(lambda: world.status()["phase"] == "Stopped", 60)


def test_a_notebook_of_a_pod_runs_as_a_cluster_and_is_opened_with_its_outputs(world: World) -> None:
    alice = world.alice
    alice.call("POST", f"{PATH}/deploy")
    world.until_ready()
    token = alice.call("POST", f"{PATH}/access/refresh")["token"]

    def contents(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Authorization": f"token {token}", "Host": world.host}
        address = f"http://{world.node.gateway}:{world.portal.port}/api/contents/{path}"
        data, method = (json.dumps(body).encode(), "PUT") if body else (None, "GET")
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer))

    code = new_code_cell("import os, numpy as np; print(int(np.ones(n).sum()), os.getuid())")
    cells = [new_code_cell("n = 1", metadata={"tags": ["parameters"]}), code]
    contents("sum.ipynb", {"type": "notebook", "content": new_notebook(cells=cells)})
    wanted = {"notebook": "sum.ipynb", "parameters": {"n": 42}, "flavor": "small", "output": "demo-output"}
    sums = alice.call("POST", f"{PATH}/run", {"metadata": {"name": "sums"}, "spec": wanted})

    def found() -> dict[str, Any]:
        return dict(alice.call("GET", "/appcodes/ops-demo/clusters/sums")["status"])

    assert eventually(lambda: found()["phase"] in ("Succeeded", "Failed"), 240), found()
    assert (sums["spec"]["home"], found()["phase"]) == (None, "Succeeded"), found()

    # The running notebook does not include that run, so it restarts with what the run stored in S3.
    before = world.status()["run"]
    alice.call("POST", "/appcodes/ops-demo/clusters/sums/notebook", {"application": "lab", "restart": True})
    assert eventually(lambda: world.status()["run"] == before + 1, 120), world.status()
    world.until_ready()
    shown = contents("elearn-runs/sums/1/sum.ipynb")
    outputs = shown["content"]["cells"][-1]["outputs"]
    assert [each["text"] for each in outputs if each["name"] == "stdout"] == ["42 1000\n"]
    alice.call("POST", f"{PATH}/disable")
    assert eventually(lambda: world.status()["phase"] == "Stopped", 60)


def test_a_plugin_over_an_image_that_is_a_container_only_is_in_the_jupyterlab_of_a_pod(world: World) -> None:
    alice, root = world.alice, Client(world.portal, "root")
    world.index.plugin("labtree", labtree=TREE)
    made = f"Image.objects.create(name='pod', title='Pod', container='{images.TAGS['jupyter']}')"
    manage(world.portal, "shell", "-c", f"from clusters.models import Image; {made}")
    lab = alice.call("GET", PATH)
    root.call("PUT", PATH, {"metadata": lab["metadata"], "spec": {**lab["spec"], "image": "pod", "environment": None}})
    root.call("POST", f"{PATH}/deploy")
    world.until_ready()
    # Plugins of the image appear only in that notebook.
    tree = {"metadata": {"name": "tree"}, "spec": {"title": "Tree", "requirements": ["labtree"]}}
    offered = root.call("POST", "/images/pod/plugins", tree)
    assert [each["name"] for each in offered["status"]["packages"]] == ["labtree"]
    root.call("POST", f"{PATH}/disable")
    assert eventually(lambda: world.status()["phase"] == "Stopped", 60)
    spec = {**lab["spec"], "image": "pod", "environment": None, "plugins": ["tree"]}
    alice.call("PUT", PATH, {"metadata": lab["metadata"], "spec": spec})
    alice.call("POST", f"{PATH}/deploy")
    world.until_ready()
    token = alice.call("POST", f"{PATH}/access/refresh")["token"]

    def answer(path: str) -> bytes:
        headers = {"Authorization": f"token {token}", "Host": world.host}
        address = f"http://{world.node.gateway}:{world.portal.port}{path}"
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as found:
            return bytes(found.read())

    assert json.loads(answer("/api/tree"))["tree"] == "tall"
    assert b'"labtree"' in answer("/lab")
    alice.call("POST", f"{PATH}/disable")
    assert eventually(lambda: world.status()["phase"] == "Stopped", 60)


def opened(world: World, url: str, token: str) -> ClientConnection:
    sock = socket.create_connection((world.node.gateway, world.portal.port), 30)
    return connect(url, sock=sock, additional_headers={"Authorization": f"token {token}"})


def executing(code: str) -> str:
    header = {"msg_id": "1", "username": "", "session": "editor", "msg_type": "execute_request", "version": "5.3"}
    empty: dict[str, Any] = {"parent_header": {}, "metadata": {}, "buffers": []}
    return json.dumps({"header": header, **empty, "content": {"code": code, "silent": False}, "channel": "shell"})


def ran(world: World, url: str, token: str, code: str) -> str:
    """Returns what a cell wrote."""
    with opened(world, url, token) as kernel:
        kernel.send(executing(code))
        said = iter(lambda: json.loads(kernel.recv(timeout=60)), None)
        return str(next(each["content"]["text"] for each in said if each["header"]["msg_type"] == "stream"))
