"""From training to serving. A hook registers a run's output, an alias names the version, and a service
answers its own callers over both protocols. A better version arrives as a canary, is promoted and rolled back, at 20 requests a
second. Every request is answered, even while a replica is killed and the portal is paused.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.chain import ONE
from tests.load import Load
from tests.running import Client, Portal, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e]

# The model's answers are multiples of its number of training steps, which tells the versions apart. A Python class starts in a
# second; SavedModels are served in tests/kube/test_services_node.py and by the commands of docs/services.md.
TRAIN = """mkdir /elearn/output/model && cat > /elearn/output/model/model.py <<'END'
class Model:
    inputs = [("image", "FP32", (-1, 64))]
    outputs = [("scores", "FP32", (-1, 10))]

    def __init__(self, folder):
        pass

    def predict(self, inputs):
        return {"scores": inputs["image"][:, :10] * STEPS}
END"""
TOLD = """python - <<'END'
import json, pathlib
said = {"path": "model", "format": "python", "sample": {"instances": [[0.5] * 64]}}
pathlib.Path("/elearn/output/model-version.json").write_text(json.dumps(said))
END"""
HOOK = {"name": "save", "command": TOLD, "model": "answers", "flavor": "small"}
CODE = "/appcodes/ops-demo"
SERVICE = f"{CODE}/services/answers"
BODY = json.dumps({"instances": [[0.1] * 64]}).encode()


class World:
    def __init__(self, portal: Portal) -> None:
        self.portal, self.alice = portal, Client(portal, "alice")

    def trained(self, run: int, steps: int) -> None:
        """Runs the cluster for the `run`-th time; the hook registers the output as version `run` of the model."""
        spec = {
            **ONE,
            "command": TRAIN.replace("STEPS", str(steps)),
            "roles": {"master": {"flavor": "middle"}},
            "hooks": [HOOK],
        }
        body = {"kind": "cluster", "metadata": {"name": "learns", "appcode": "ops-demo"}, "spec": spec}
        if run == 1:
            self.alice.call("POST", f"{CODE}/clusters", body)
        else:
            self.alice.call("PUT", f"{CODE}/clusters/learns", body)
            self.alice.call("POST", f"{CODE}/clusters/learns/deploy")

        def state() -> str:
            try:
                return str(self.alice.call("GET", f"{CODE}/models/answers/versions/{run}")["status"]["state"])
            except urllib.error.HTTPError:
                return ""

        assert eventually(lambda: state() == "Ready", 240), self.alice.call("GET", f"{CODE}/clusters/learns")

    def names(self, version: int, reason: str) -> None:
        self.alice.call("PUT", f"{CODE}/models/answers/aliases/champion", {"version": version, "reason": reason})

    def delete(self, path: str) -> None:
        headers = {"Authorization": f"Bearer {self.alice.token}"}
        with urllib.request.urlopen(
            urllib.request.Request(self.alice.url + path, method="DELETE", headers=headers)
        ) as answer:
            assert answer.status == 204

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.alice.call("GET", SERVICE)["status"]
        return found

    def until(self, phase: str, kind: str, seconds: float = 240) -> dict[str, Any]:
        """Waits until the last rollout has this phase, and returns the status."""
        last = lambda: self.status()["rollouts"][0]  # noqa: E731
        assert eventually(lambda: (last()["kind"], last()["phase"]) == (kind, phase), seconds), self.status()
        return self.status()

    @property
    def host(self) -> str:
        return str(self.status()["address"]).removeprefix("http://").rstrip("/")

    def asked(self, path: str, body: object, authorization: str) -> tuple[int, Any]:
        headers = {"Host": self.host, "Content-Type": "application/json", "Authorization": authorization}
        request = urllib.request.Request(f"{self.portal.url}{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def load(self, token: str, per_second: float = 20) -> Load:
        headers = {"Host": self.host, "Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        return Load(f"{self.portal.url}/v1/models/answers:predict", headers, BODY, per_second)

    def pids(self, *names: str) -> list[int]:
        """Returns the pids of these programs of the portal and of their children."""
        return [pid for pid, line in self.portal.programs().items() if any(name in line for name in names)]


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stops the processes (SIGSTOP) for the duration of the block."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def world(portal_up: Portal) -> World:
    return World(portal_up)


def test_from_training_to_a_better_version_under_load(world: World) -> None:
    alice = world.alice
    world.trained(1, 3)
    world.names(1, "The first one")
    spec = {
        "model": "answers@champion", "image": "tensorflow-2-21", "flavor": "middle", "replicas": {"least": 2, "most": 2},
        "rollout": {"follow": "automatic", "kind": "canary", "weight": 30, "minutes": 60, "promote": "by-hand", "keepWarm": 120},
    }  # fmt: skip
    alice.call("POST", f"{CODE}/services", {"metadata": {"name": "answers"}, "spec": spec})
    world.until("Promoted", "rolling")
    token = alice.call("POST", f"{SERVICE}/tokens", {"name": "tests"})["token"]

    assert eventually(
        lambda: world.asked("/v1/models/answers:predict", json.loads(BODY), f"Bearer {token}")[0] == 200, 10
    )
    first = world.asked("/v1/models/answers:predict", json.loads(BODY), f"Bearer {token}")
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 64], "data": [0.1] * 64}
    second = world.asked("/v2/models/answers/infer", {"inputs": [tensor]}, f"Bearer {token}")
    assert first[1]["predictions"][0] == pytest.approx(second[1]["outputs"][0]["data"], abs=1e-5)
    nobody_else_comes_in(world, token)

    with world.load(token) as load:
        time.sleep(3)
        _a_replica_is_killed(world, load)
        world.trained(2, 300)
        world.names(2, "Trained for longer")
        assert eventually(lambda: (world.status()["rollout"] or {}).get("phase") == "Comparing", 240), world.status()
        canary = time.perf_counter()
        time.sleep(8)
        compared = world.status()
        # From here on the portal's own processes are not needed to answer a request.
        with stopped(world.pids("gunicorn", "celery", "manage.py controller")):
            time.sleep(5)
        assert eventually(lambda: bool(world.status()), 30)
        alice.call("POST", f"{SERVICE}/promote")
        world.until("Promoted", "canary")
        better = world.asked("/v1/models/answers:predict", json.loads(BODY), f"Bearer {token}")
        alice.call("POST", f"{SERVICE}/rollback", {"reason": "To see how long that takes"})
        same = lambda: world.asked("/v1/models/answers:predict", json.loads(BODY), f"Bearer {token}") == first  # noqa: E731
        assert eventually(same, 10)
        time.sleep(3)
    assert better[1]["predictions"] != first[1]["predictions"]
    assert load.came(since=canary) == Counter({"200": len([each for each in load.asked if each.due >= canary])})
    weights = {each["number"]: each["weight"] for each in compared["revisions"]}
    assert weights == {1: 70, 2: 30}
    assert world.alice.call("GET", f"{CODE}/models/answers/aliases/champion")["version"] == 1
    _what_it_cost_is_the_sum_of_its_tasks(world)
    # Version 1 has an alias, and version 2 is kept warm.
    with pytest.raises(urllib.error.HTTPError, match="409"):
        alice.call("DELETE", f"{CODE}/models/answers/versions/1")
    host = world.host
    world.delete(SERVICE)
    gone = urllib.request.Request(
        f"{world.portal.url}/v1/models/answers", headers={"Host": host, "Authorization": f"Bearer {token}"}
    )

    def refused() -> bool:
        # Routers hear of it a moment later.
        try:
            urllib.request.urlopen(gone, timeout=10).close()
        except urllib.error.HTTPError as error:
            return error.code == 404
        return False

    assert eventually(refused, 10)


def nobody_else_comes_in(world: World, token: str) -> None:
    path, body = "/v1/models/answers:predict", json.loads(BODY)
    other = {
        "metadata": {"name": "others"},
        "spec": {"model": "answers/1", "image": "tensorflow-2-21", "flavor": "middle"},
    }
    other["spec"]["replicas"] = {"least": 0, "most": 1}  # type: ignore[index]
    world.alice.call("POST", f"{CODE}/services", other)
    strange = world.alice.call("POST", f"{CODE}/services/others/tokens", {"name": "tests"})["token"]
    for authorization in ("", f"Bearer {strange}", f"Bearer x{token[1:]}", f"Bearer {world.alice.token}"):
        assert world.asked(path, body, authorization)[0] == 401, authorization[:12]
    world.delete(f"{CODE}/services/others")
    mallory = Client(world.portal, "mallory")
    for method, where in (("GET", SERVICE), ("POST", f"{SERVICE}/rollback"), ("GET", f"{SERVICE}/tokens")):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            mallory.call(method, where)


def _a_replica_is_killed(world: World, load: Load) -> None:
    """Only the requests in progress on it may be lost, and a new replica starts automatically."""
    before = len(load.asked)
    for pid in processes_of(world.status()["eachReplica"][0]["cluster"]):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: world.status()["serving"] == 2, 120), world.status()
    lost = Counter(each.came for each in load.asked[before:])
    assert sum(count for came, count in lost.items() if came != "200") <= 8, lost


def processes_of(cluster: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PORTAL_CLUSTER") == cluster and "python" in process.name():
                found.append(process.pid)
        except psutil.Error:
            continue
    assert found
    return found


def _what_it_cost_is_the_sum_of_its_tasks(world: World) -> None:
    status = world.status()
    parts = world.alice.call("GET", f"{CODE}/clusters?partOf=services/answers")["items"]
    used = [world.alice.call("GET", f"{CODE}/clusters/{each['metadata']['name']}/usage") for each in parts]
    seconds = sum(segment["gpuSeconds"] for each in used for segment in each["segments"])
    assert status["gpuSeconds"] == seconds
