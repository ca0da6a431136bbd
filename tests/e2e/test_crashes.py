"""Crashed and straggling tasks with real TensorFlow, and what their run reports. The all-reduce case, which repeats steps, is in
kube/test_many_runs_node.py."""

from __future__ import annotations

import json
import signal
import urllib.request
from typing import Any

import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, expect

from tests.browser import SOON, signed_in
from tests.running import Client, Portal, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("applications"), pytest.mark.usefixtures("without_show1")]

GPU = {"flavor": "middle-1-gpu"}
# Worker 1 makes a tenth of the steps of the others.
PACE = """
[ "$PORTAL_ROLE" = worker ] || exec sleep 600
pause=0.2; [ "$TASK_INDEX" = 1 ] && pause=2
for step in $(seq 300); do echo "step $step"; sleep $pause; done
"""


class Seen:
    """A run that alice started."""

    def __init__(self, portal: Portal, name: str, **spec: Any) -> None:
        self.portal, self.name, self.alice = portal, name, Client(portal, "alice")
        self.path = self.alice.create("ops-demo", name, image="tensorflow-2-21", **spec)

    @property
    def status(self) -> Any:
        return self.alice.call("GET", self.path)["status"]

    @property
    def log(self) -> str:
        """Returns the master's log of all attempts so far."""
        task = next(iter(self.alice.call("GET", f"{self.path}/runs/1/tasks")["items"]))
        found = ""
        for attempt in range(task["restarts"] + 1):
            address = f"{self.alice.url}{self.path}/runs/1/tasks/master/0/log?attempt={attempt}"
            request = urllib.request.Request(address, headers={"Authorization": f"Bearer {self.alice.token}"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                found += answer.read().decode()
        return found

    @property
    def lines(self) -> int:
        """Lines with steps in the master's log; after every fourth one, the master writes a checkpoint."""
        return self.log.count("global_step/sec")

    def send(self, number: signal.Signals, role: str, index: int) -> None:
        """Sends a signal to the program of a task."""
        mine = {"PORTAL_CLUSTER": self.name, "PORTAL_ROLE": role, "TASK_INDEX": str(index)}
        for process in psutil.process_iter():
            try:
                is_mine = mine.items() <= process.environ().items() and process.cmdline()[1:2] == [
                    f"digits_{self.kind}.py"
                ]
            except psutil.Error:
                continue
            if is_mine:
                return process.send_signal(number)
        raise AssertionError(f"{role}-{index} has no program")

    @property
    def kind(self) -> str:
        return self.name.partition("-")[2]

    def until_over(self) -> Any:
        def over() -> bool:
            return self.status["phase"] in ("Succeeded", "Failed") and self.status["crashes"] is not None

        assert eventually(over, 400), self.status
        assert self.status["phase"] == "Succeeded", self.status
        (crash,) = self.status["crashes"]
        return crash


def trains(portal: Portal, name: str, **roles: Any) -> Seen:
    command = f"python digits_{name.partition('-')[2]}.py --sample --steps 3000"
    run = Seen(portal, name, command=command, output="demo-output", retries=1, roles=roles)
    assert eventually(lambda: run.lines >= 6, 300), run.status
    return run


def test_a_worker_that_was_killed_takes_part_again_and_no_step_is_lost(browser: Browser, portal_up: Portal) -> None:
    run = trains(portal_up, "lost-ps", master=GPU, ps={"flavor": "small", "count": 1}, worker={**GPU, "count": 2})
    run.send(signal.SIGKILL, "worker", 1)
    crash = run.until_over()
    assert (crash["role"], crash["index"], crash["others"], crash["back"]) == ("worker", 1, 0, True)
    assert crash["stepsRepeated"] == 0
    said = f"worker-1 ended by signal 9 at step {crash['step']}, came back, and no step was trained again."
    assert crash["message"] == said
    assert "Continues after step" not in run.log
    with signed_in(browser, portal_up, "alice") as page:
        page.goto(f"{portal_up.origin}/clusters/ops-demo/{run.name}")
        expect(page.locator("#pace")).to_contain_text(said, timeout=SOON)


def test_a_notebook_stage_sets_its_parameters_and_fails_at_the_cell_whose_kernel_is_killed(portal_up: Portal) -> None:
    alice = Client(portal_up, "alice")
    images = [each["name"] for each in alice.call("GET", "/images")["items"]]
    image = next(each for each in images if each.startswith("jupyter"))

    def stage(name: str, last: str, **more: Any) -> dict[str, Any]:
        given = new_code_cell("n = 1", metadata={"tags": ["parameters"]})
        cells = [given, new_code_cell("print('reached', n)"), new_code_cell(last), new_code_cell("print('behind')")]
        notebook = {"path": "look.ipynb", "source": json.dumps(new_notebook(cells=cells)), "parameters": {"n": 42}}
        spec = {"framework": "notebook", "image": image, "output": "demo-output", "notebook": notebook}
        return {"name": name, "spec": {**spec, "roles": {"master": {"flavor": "small"}}, "retries": 0}, **more}

    killed = "import os; os.kill(os.getpid(), 9)"
    stages = [stage("good", "assert n == 42"), stage("dies", killed, after=["good"])]
    manifest = {"kind": "pipeline", "metadata": {"name": "books", "appcode": "ops-demo"}, "spec": {"stages": stages}}
    alice.call("POST", "/appcodes/ops-demo/pipelines", manifest)
    alice.call("POST", "/appcodes/ops-demo/pipelines/books/run", {})

    def status() -> Any:
        return alice.call("GET", "/appcodes/ops-demo/pipelines/books")["status"]

    assert eventually(lambda: status()["phase"] in ("Succeeded", "Failed"), 300), status()
    assert {each["name"]: each["phase"] for each in status()["stages"]} == {"good": "Succeeded", "dies": "Failed"}, (
        status()
    )
    why = "The kernel died in cell 4 of 5; it may have needed more memory."
    assert why in alice.call("GET", "/appcodes/ops-demo/clusters/books-dies")["status"]["message"].partition("\n")[0]
    files = "/appcodes/ops-demo/datastores/demo-output/files"
    written = alice.call("GET", f"{files}/books-dies/1/look.ipynb")["cells"]
    said = [["".join(each.get("text", [])) or each["evalue"] for each in cell["outputs"]] for cell in written]
    assert said == [[], [], ["reached 42\n"], [why], []]


def test_a_task_that_falls_behind_is_named_in_the_document_of_its_run_and_no_list_looks_for_it(
    portal_up: Portal,
) -> None:
    small = {"flavor": "small"}
    run = Seen(portal_up, "lost-pace", command=PACE, roles={"master": small, "worker": {**small, "count": 3}})
    assert eventually(lambda: run.status["stragglers"], 120), run.status
    (slow,) = run.status["stragglers"]
    assert (slow["role"], slow["index"]) == ("worker", 1)
    assert slow["pace"] < slow["median"] / 2
    assert run.alice.call("GET", f"{run.path}/runs/1")["status"]["stragglers"][0]["index"] == 1
    assert run.alice.call("GET", f"{run.path}/runs")["items"][0]["status"]["stragglers"] is None
    run.alice.call("POST", f"{run.path}/disable")
