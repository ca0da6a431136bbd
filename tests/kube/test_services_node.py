"""Services in containers of a real node: two pods serve a TensorFlow model while one is deleted, one is killed, and the
next version takes over and is rolled back. Every request is answered, and the cost equals containerd's records.

The router runs beside the portal and reaches pods at their own addresses.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from billing.money import UNIT
from clusters.clouds.drivers.kubernetes.render.endpoints import FIRST_PORT
from tests.e2e import test_services
from tests.e2e.test_services import BODY, CODE, SERVICE, nobody_else_comes_in, processes_of
from tests.kube import images
from tests.kube.following import hand_over, portal_kubeconfig
from tests.kube.node import Node
from tests.kube.test_main_job import ask, client, manage, s3  # noqa: F401  the fixture
from tests.running import ELSEWHERE, Portal, eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kube,
    pytest.mark.node,
    pytest.mark.timeout(900),
    pytest.mark.images("tensorflow", "rclone"),
]

# Two models whose answers differ.
MODELS = """
import sys
import tensorflow as tf

for number in (1, 2):
    model = tf.Module()
    model.w = tf.Variable(tf.fill([64, 10], number / 64))

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="image")])
    def serve(image):
        return {"scores": image @ model.w}

    tf.saved_model.save(model, f"{sys.argv[1]}/{number}", signatures={"serving_default": serve})
"""
PATH = "/v1/models/answers:predict"
# Five of them fit on two cores.
FLAVOR = "Flavor.objects.create(name='tiny-1-gpu', title='Tiny', cpu_milli=350, memory_mb=1280, gpus=1)"
SPEC: dict[str, Any] = {
    "model": "answers@champion",
    "image": "tensorflow-2-21",
    "flavor": "tiny-1-gpu",
    "replicas": {"least": 2, "most": 2},
    "rollout": {"kind": "rolling", "follow": "automatic", "keepWarm": 600},
}


class World(test_services.World):
    """The same world with pods."""

    def __init__(self, portal: Portal, node: Node) -> None:
        super().__init__(portal)
        self.node = node

    def registered(self, s3: dict[str, str], folder: Path) -> None:  # noqa: F811
        """Registers both versions, which are created on this machine."""
        argv = [sys.executable, "-c", MODELS, str(folder)]
        subprocess.run(argv, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=True, capture_output=True)
        self.alice.call("POST", f"{CODE}/models", {"metadata": {"name": "answers"}})
        bucket = client(s3)
        for number in (1, 2):
            for path in (folder / str(number)).rglob("*"):
                if path.is_file():
                    bucket.upload_file(str(path), "demo-output", f"answers/{path.relative_to(folder)}")
            said = {"datastore": "demo-output", "path": f"answers/{number}", "sample": json.loads(BODY)}
            self.alice.call("POST", f"{CODE}/models/answers/versions", {"spec": said})
        for number in (1, 2):
            ready = lambda number=number: self._state(number) == "Ready"  # noqa: E731
            assert eventually(ready, 60), self._state(number)

    def _state(self, number: int) -> str:
        return str(self.alice.call("GET", f"{CODE}/models/answers/versions/{number}")["status"]["state"])

    def last(self) -> tuple[int, str]:
        """Returns the revision that the last rollout leads to, and its phase."""
        found = self.status()["rollouts"][0]
        return found["to"], found["phase"]

    def answer(self, token: str) -> float:
        """Returns the model's answer to the request."""
        status, said = self.asked(PATH, json.loads(BODY), f"Bearer {token}")
        return round(said["predictions"][0][0], 2) if status == 200 else -1.0

    def pods(self) -> dict[str, dict[str, Any]]:
        """Returns the pods that should continue, by the address at which each answers."""
        found = self.node.plane.request("GET", "/api/v1/namespaces/ops/pods")["items"]
        alive = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        return {f"{each['status'].get('podIP')}:{FIRST_PORT}": each for each in alive}

    def route(self) -> list[str]:
        where = "state = 'serving' AND r.weight > 0"
        rows = "clusters_replica p JOIN clusters_revision r ON r.id = p.revision_id"
        return [found for (found,) in ask(self.portal, f"SELECT address FROM {rows} WHERE {where} ORDER BY slot")]


@pytest.fixture(scope="module")
def world(node: Node, s3: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:  # noqa: F811
    for name in ("tensorflow", "rclone"):
        node.import_image(images.image(name))
    folder = tmp_path_factory.mktemp("services")
    portal = Portal(folder / "var", **{f"PORTAL_S3_{name}": value for name, value in s3.items()}, **ELSEWHERE)
    portal.start()
    portal.end_show1()
    wanted = ("portal=services", f"storage_networks=[{node.gateway}/32]", "router_namespace=routers")
    settings = [word for each in wanted for word in ("--set", each)]
    config = str(portal_kubeconfig(node.plane))
    manage(portal, "register_kubernetes", "training", "--kubeconfig", config, *settings, "--default")
    manage(portal, "shell", "-v0", "-c", f"from clusters.models import Flavor; {FLAVOR}")
    # Other tests may have used the same business line on this node.
    hand_over(node.plane, "services", "ops")
    world = World(portal, node)
    world.registered(s3, folder)
    yield world
    assert portal.stop() == 0


def test_nobody_is_left_without_an_answer_whatever_becomes_of_pods_and_versions(world: World) -> None:
    alice = world.alice
    world.names(1, "The first one")
    alice.call("POST", f"{CODE}/services", {"metadata": {"name": "answers"}, "spec": SPEC})
    assert eventually(lambda: world.last() == (1, "Promoted"), 240), world.status()
    assert set(world.route()) <= set(world.pods())
    token = alice.call("POST", f"{SERVICE}/tokens", {"name": "tests"})["token"]
    assert eventually(lambda: world.answer(token) == 0.1, 10)
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 64], "data": [0.1] * 64}
    status, said = world.asked("/v2/models/answers/infer", {"inputs": [tensor]}, f"Bearer {token}")
    assert (status, said["outputs"][0]["data"]) == (200, pytest.approx([0.1] * 10))
    nobody_else_comes_in(world, token)

    with world.load(token, 10) as load:
        time.sleep(2)
        _a_pod_is_deleted(world)
        since = time.perf_counter()
        _a_replica_is_killed(world)
        until = time.perf_counter()
        world.names(2, "It answers twice as much")
        assert eventually(lambda: world.last() == (2, "Promoted"), 240), world.status()
        assert eventually(lambda: world.answer(token) == 0.2, 10)
        alice.call("POST", f"{SERVICE}/rollback", {"reason": "To see how long that takes"})
        assert eventually(lambda: world.answer(token) == 0.1, 10)
        time.sleep(2)
    # Only requests in progress on the killed pod may fail.
    assert set(load.came(since, until)) <= {"200", "502"}
    assert load.came(since, until)["502"] <= 2
    assert load.came(until=since) + load.came(since=until) == Counter(
        {"200": len(load.asked) - load.came(since, until).total()}
    )
    assert alice.call("GET", f"{CODE}/models/answers/aliases/champion")["version"] == 1

    alice.call("POST", f"{SERVICE}/disable")
    assert eventually(lambda: world.status()["phase"] == "Stopped", 120), world.status()
    _what_it_cost_is_what_containerd_saw(world)
    host = world.host
    world.delete(SERVICE)
    assert eventually(lambda: world.portal.get("/v1/models/answers", host) == 404, 10)


def _a_pod_is_deleted(world: World) -> None:
    """Deletes a pod as draining a node does: it leaves the route, ends and is replaced."""
    [first, second] = world.route()
    world.node.plane.request("DELETE", f"/api/v1/namespaces/ops/pods/{world.pods()[first]['metadata']['name']}")
    assert eventually(lambda: first not in world.route(), 10)
    assert eventually(lambda: len(world.route()) == 2, 120), world.status()
    assert second in world.route()


def _a_replica_is_killed(world: World) -> None:
    before = set(world.route())
    for pid in processes_of(world.status()["eachReplica"][0]["cluster"]):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: before != set(world.route()), 30)
    assert eventually(lambda: len(world.route()) == 2, 120), world.status()


def _what_it_cost_is_what_containerd_saw(world: World) -> None:
    """Compares the cost of each version: from the start of a pod's program to the end of its last container."""
    of_ours = """
        JOIN clusters_replica p ON s.consumer = 'run ' || p.run_id JOIN clusters_revision v ON v.id = p.revision_id
        JOIN clusters_service w ON w.id = v.service_id AND w.name = 'answers'
    """
    segments = f"SELECT v.number, s.uid, s.started, s.ended, s.gpus FROM billing_usagesegment s {of_ours}"
    ledger = f"""
        SELECT v.number, sum(e.charge), sum(e.quantity) FILTER (WHERE starts_with(e.sku, 'gpu')) FROM billing_ledgerentry e
        JOIN billing_usagesegment s ON s.id = e.segment_id {of_ours} GROUP BY 1 ORDER BY 1
    """
    assert eventually(lambda: all(ended for _, _, _, ended, _ in ask(world.portal, segments)), 60)
    seconds = Counter[int]()
    for number, uid, started, ended, gpus in ask(world.portal, segments):
        containers = world.node.containers(uid)
        began = min(each.started for each in containers if each.name == "task")
        assert (started, ended) == (began, max(each.finished for each in containers))
        seconds[number] += gpus * int((ended - started).total_seconds())
    assert set(seconds) == {1, 2}
    revisions = lambda: {each["number"]: each for each in world.status()["revisions"]}  # noqa: E731
    told = lambda: {number: each["gpuSeconds"] for number, each in revisions().items()}  # noqa: E731
    posted = lambda: {number: int(found) for number, _, found in ask(world.portal, ledger)}  # noqa: E731
    assert eventually(lambda: told() == posted() == seconds, 60), (told(), posted(), seconds)
    for number, charge, _ in ask(world.portal, ledger):
        assert Decimal(revisions()[number]["cost"]["amount"]) == pytest.approx(
            Decimal(charge) / UNIT, abs=Decimal("1e-6")
        )
