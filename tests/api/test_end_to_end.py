"""The main workflow over REST, as in a script, against the whole portal: server, worker, controller, node agent, gateway."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, Portal, eventually

OPS = "/appcodes/ops-demo/clusters"
ENDED = ("Succeeded", "Failed", "Stopped")
# Quotes, newlines, $() and Unicode must arrive unchanged; the other tasks wait for the master, which ends the run.
COMMAND = """printf '%s\\n' "it's \\"$GREETING\\"" '$(date)' 'ünï 🚀' "$PORTAL_ROLE-$TASK_INDEX"
if [ "$PORTAL_ROLE" != master ]; then exec sleep 600; fi
for n in 1 2 3; do echo "tick $n"; sleep 2; done"""


class Client:
    """A REST client from one person's token and urllib."""

    def __init__(self, portal: Portal, person: str) -> None:
        self.url = f"{portal.url}/api/v1"
        self.token = portal.credentials["users"][person]["token"]

    def open(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return answer

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        try:
            with self.open(method, path, body) as answer:
                text, status, kind = answer.read(), answer.status, answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            with error:
                text, status, kind = error.read(), error.code, error.headers["Content-Type"]
        return status, json.loads(text) if "json" in kind else text.decode()

    def phase(self, name: str) -> str:
        return str(self("GET", f"{OPS}/{name}")[1]["status"]["phase"])


@pytest.fixture
def bob(portal_up: Portal) -> Iterator[Client]:
    """Deletes the clusters of a test that failed: they would hold GPUs that other tests need."""
    client = Client(portal_up, "bob")
    yield client
    for each in client("GET", f"{OPS}?search=rest-")[1]["items"]:
        assert client("DELETE", f"{OPS}/{each['metadata']['name']}")[0] == 202


def manifest(name: str, command: str, flavor: str, ps: int = 0, workers: int = 0, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "cluster",
        "metadata": {"name": name, "appcode": "ops-demo"},
        "spec": {
            "image": "tensorflow-2-21",
            "command": command,
            "roles": {
                "master": {"flavor": flavor},
                "ps": {"flavor": "small", "count": ps},
                "worker": {"flavor": flavor, "count": workers},
            },
            **spec,
        },
    }


def test_from_post_to_a_finished_metered_run(bob: Client) -> None:
    body = manifest("rest-run", COMMAND, "middle-1-gpu", ps=1, workers=2, env={"GREETING": "$$HOME | = x"})
    status, made = bob("POST", OPS, body)
    assert (status, made["status"]["phase"]) == (201, "Queued"), made
    path = f"{OPS}/rest-run"
    log = f"{path}/runs/1/tasks/master/0/log"

    # Follow the log from before the run starts until it ends: every line must arrive when it is written.
    lines: list[tuple[float, bytes]] = []
    with bob.open("GET", f"{log}?follow=true") as stream:
        assert stream.headers["Content-Type"] == "text/plain; charset=utf-8"
        lines = [(time.monotonic(), line) for line in stream]
    text = b"".join(line for _, line in lines).decode()
    assert text == 'it\'s "$HOME | = x"\n$(date)\nünï 🚀\nmaster-0\ntick 1\ntick 2\ntick 3\n'
    assert lines[-1][0] - lines[0][0] > 1.5

    assert eventually(lambda: bob.phase("rest-run") in ENDED, 120)
    _, read = bob("GET", path)
    status = read["status"]
    assert (status["phase"], status["message"], status["run"]) == ("Succeeded", "The master has finished.", 1)
    assert read["spec"]["command"] == COMMAND
    assert status["started"] < status["finished"]

    tasks = bob("GET", f"{path}/runs/1/tasks")[1]["items"]
    assert [(task["role"], task["index"], len(task["gpus"])) for task in tasks] == [
        ("master", 0, 1), ("ps", 0, 0), ("worker", 0, 1), ("worker", 1, 1),
    ]  # fmt: skip
    assert tasks[0]["exitCode"] == 0
    assert len({gpu for task in tasks for gpu in task["gpus"]}) == 3
    assert all(task["node"] and task["started"] and task["finished"] and not task["restarts"] for task in tasks)

    assert bob("GET", f"{log}?tail=1") == (200, "tick 3\n")
    assert bob("GET", f"{log}?tail=0") == (200, "")
    offset = len(text.encode()) - len("tick 3\n")
    assert bob("GET", f"{log}?offset={offset}") == (200, "tick 3\n")
    assert bob("GET", f"{log}?follow=1&offset={offset}") == (200, "tick 3\n")
    assert bob("GET", f"{log}?attempt=1")[0] == 404
    assert bob("GET", f"{path}/runs/1/tasks/worker/1/log?tail=1") == (200, "worker-1\n")

    _, usage = bob("GET", f"{path}/usage")
    assert usage["gpuSeconds"] == status["gpuSeconds"] == sum(row["gpuSeconds"] for row in usage["segments"])
    assert usage["gpuSeconds"] >= 9
    assert usage["cost"] == status["cost"]
    assert float(usage["cost"]["amount"]) > 0
    assert all(row["ended"] for row in usage["segments"])

    status_code, again = bob("POST", f"{path}/deploy")
    assert (status_code, again["status"]["run"]) == (202, 2)
    assert bob("DELETE", path)[0] == 202
    assert bob("GET", path)[0] == 404


def test_disable_and_cancel(bob: Client, portal_up: Portal) -> None:
    # The demonstration's cluster would hold GPUs for minutes. Other tests show what it has printed until here.
    assert eventually(lambda: "loss = " in bob("GET", f"{OPS}/show1/runs/1/tasks/master/0/log")[1], 600)
    portal_up.end_show1()
    assert eventually(lambda: bob.phase("show1") in ENDED, 120)
    # Together they need more GPUs than exist: the second waits in the queue and can be cancelled.
    assert bob("POST", OPS, manifest("rest-long", "exec sleep 600", "large-8-gpu"))[0] == 201
    assert eventually(lambda: bob.phase("rest-long") == "Running", 120)
    assert bob("POST", f"{OPS}/rest-long/cancel")[0] == 409
    assert bob("POST", OPS, manifest("rest-wait", "exec sleep 600", "large-8-gpu"))[0] == 201
    assert eventually(lambda: bob("GET", f"{OPS}/rest-wait")[1]["status"]["reason"] != "", 60)
    waiting = bob("GET", f"{OPS}/rest-wait")[1]["status"]
    assert (waiting["phase"], waiting["gpuSeconds"]) == ("Queued", 0), waiting
    assert waiting["message"]
    assert bob("POST", f"{OPS}/rest-wait/cancel")[0] == 202
    assert bob("POST", f"{OPS}/rest-wait/cancel")[0] == 202
    assert eventually(lambda: bob.phase("rest-wait") == "Stopped", 60)
    # Usage counts whole seconds: a task that begins and ends within one costs nothing.
    assert eventually(lambda: bob("GET", f"{OPS}/rest-long")[1]["status"]["gpuSeconds"] > 0, 60)
    assert bob("POST", f"{OPS}/rest-long/disable")[0] == 202
    assert eventually(lambda: bob.phase("rest-long") == "Stopped", 90)
    assert bob("GET", f"{OPS}/rest-long")[1]["status"]["message"] == "Stopped by bob."
    first = bob("GET", f"{OPS}/rest-long")[1]["status"]["gpuSeconds"]
    time.sleep(1.1)  # one second in which nothing may be metered any more
    assert bob("GET", f"{OPS}/rest-long")[1]["status"]["gpuSeconds"] == first > 0
    for name in ("rest-long", "rest-wait"):
        assert bob("DELETE", f"{OPS}/{name}")[0] == 202


def test_one_person_cannot_take_all_streams(bob: Client, portal_up: Portal) -> None:
    assert bob("POST", OPS, manifest("rest-logs", "echo here; exec sleep 600", "small"))[0] == 201
    log = f"{OPS}/rest-logs/runs/1/tasks/master/0/log?follow=1"
    assert eventually(lambda: bob("GET", log.removesuffix("?follow=1")) == (200, "here\n"), 120)
    streams = []

    def follow() -> bool:
        try:
            stream = bob.open("GET", log)
        except urllib.error.HTTPError as error:
            with error:
                refused = json.loads(error.read())
            assert (error.code, refused["type"]) == (503, "urn:problem-type:portal:unavailable")  # noqa: PT017
            assert "4 logs" in refused["detail"]
            return False
        streams.append(stream)
        assert stream.readline() == b"here\n"
        return True

    try:
        # Four per process and two processes; the kernel chooses which process accepts a connection.
        while len(streams) < 9 and follow():
            pass
        assert 4 <= len(streams) <= 8
        # Other people, and all other requests, are not affected.
        with Client(portal_up, "victor").open("GET", log) as other:
            assert other.readline() == b"here\n"
        assert bob("GET", "/me")[0] == 200
        # A client that hangs up frees its place although the log is silent: the gateway passes the disconnect on.
        for _ in range(9):
            while streams:
                streams.pop().close()
            assert eventually(follow)
        # The streams end with the task, and their places are free again.
        ends: list[bytes] = []
        readers = [threading.Thread(target=lambda each=each: ends.append(each.read())) for each in streams]
        for reader in readers:
            reader.start()
        assert bob("POST", f"{OPS}/rest-logs/disable")[0] == 202
        for reader in readers:
            reader.join(90)
        assert ends == [b""]
    finally:
        for stream in streams:
            stream.close()
    assert eventually(lambda: bob("GET", log) == (200, "here\n"), 60)
    assert bob("DELETE", f"{OPS}/rest-logs")[0] == 202


def test_twenty_posts_a_second_are_accepted(bob: Client) -> None:
    names = [f"rest-burst-{n}" for n in range(20)]
    answers: list[int] = []

    def post(name: str) -> None:
        answers.append(bob("POST", OPS, manifest(name, "true", "small", scheduleAfter="2999-01-01T00:00:00Z"))[0])

    begin = time.monotonic()
    posts = [threading.Thread(target=post, args=[name]) for name in names]
    for n, each in enumerate(posts):
        time.sleep(max(0.0, begin + n / 20 - time.monotonic()))  # posts at a fixed rate
        each.start()
    for each in posts:
        each.join()
    assert answers == [201] * 20
    for name in names:
        assert bob("DELETE", f"{OPS}/{name}")[0] == 202


def typed(portal: Portal, folder: Path, *pages: str) -> str:
    """Runs the commands of these documentation pages in order, unchanged, and returns what they print."""
    texts = [(ROOT / "docs" / page).read_text() for page in pages]
    blocks = [block for text in texts for block in re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    script = "set -euo pipefail\n" + "\necho\n".join(blocks)
    env = {**os.environ, "PORTAL_DATA": str(portal.data), "PORTAL_PORT": str(portal.port)}
    done = subprocess.run(
        ["bash", "-c", script], env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# A second try would only find that the names of the first are taken.
@pytest.mark.flaky(reruns=0)
def test_the_commands_of_the_guide_to_rest_work_as_they_stand(portal_up: Portal, tmp_path: Path) -> None:
    portal_up.index.add("cowsay", "6.1", cowsay="def cow(text): print('a cow says', text)")
    said = typed(portal_up, tmp_path, "api.md", "runs.md", "data.md")
    assert "a cow says hello" in said, "what a manifest requires is not there"
    assert "I am master 0" in said
    assert "digits" in said, "the input data is not in the log"
    assert '"exitCode":0' in said.replace(" ", "")


@pytest.mark.flaky(reruns=0)
@pytest.mark.parametrize(
    ("pages", "last"),
    [
        (("models.md", "services.md"), '"predictions"'),
        (("applications.md",), "notebook-lab-ops-demo.apps.localhost"),
        (("tensorflow.md",), "predict\tSucceeded"),
    ],
    ids=["services", "applications", "tensorflow"],
)
def test_the_commands_of_the_documentation_work_as_they_stand(
    portal_up: Portal, tmp_path: Path, pages: tuple[str, ...], last: str
) -> None:
    assert last in typed(portal_up, tmp_path, *pages)
