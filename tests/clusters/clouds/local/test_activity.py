"""Whether a notebook is busy, as a real agent learns it from a real JupyterLab: mistakes here kill work or never stop anything.

That work counted until its end shows in the start of the idleness reported afterwards. All tests share one notebook."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.sync.client import ClientConnection, connect

from clusters.clouds.drivers.base import ActivitySeen, Endpoint, EndpointSeen, LocalSource, Mount, RolePlan, RunRef
from clusters.clouds.drivers.base.activity import QUIET_LOOKS
from clusters.frameworks.jupyter import HOME, Jupyter
from clusters.manifest.cluster import ClusterSpec
from tests.clusters.clouds.local.agents import PROOF, Agent, Agents, Home

PERIOD = 0.5
# Seconds within which a wrong report would come.
LONG = 2 * QUIET_LOOKS * PERIOD
PROVEN = {"X-Portal-Gateway": PROOF, "X-Portal-User": "alice"}
SPEC = {"framework": "jupyter", "image": "x", "home": "h", "roles": {"notebook": {"flavor": "f"}}}


@dataclass
class Notebook:
    agent: Agent
    run: RunRef

    @property
    def told(self) -> list[ActivitySeen]:
        return [each for each in self.agent.seen if isinstance(each, ActivitySeen) and each.run_id == self.run.id]

    @property
    def address(self) -> str:
        def answers() -> str:
            seen = [each for each in self.agent.seen if isinstance(each, EndpointSeen) and each.run_id == self.run.id]
            return seen[-1].address if seen and seen[-1].ready else ""

        return str(self.agent.until(answers))

    def until(self, state: str, why: str = "") -> ActivitySeen:
        """The last report or the next one, once it has this state. For “idle” only a report that nothing has ended counts."""
        known = max(0, len(self.told) - 1)

        def is_so() -> ActivitySeen | None:
            found = self.told[-1:] if state == "idle" else self.told[known:]
            return next((each for each in found if each.state == state and why in each.why), None)

        found: ActivitySeen = self.agent.until(is_so)
        return found

    def rests_after(self, begin: dt.datetime, over: dt.datetime) -> ActivitySeen:
        """Waits for a report of idleness since `over`; asserts that none says it began during the work, after `begin`."""

        def rests() -> ActivitySeen | None:
            last = self.told[-1] if self.told else None
            return last if last and last.state == "idle" and last.since >= over else None

        found: ActivitySeen = self.agent.until(rests)
        assert not [each for each in self.told if each.state == "idle" and begin < each.since < over]
        return found

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json", **PROVEN})
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        assert answer.status < 300, (answer.status, said)
        return json.loads(said) if said else None

    @contextmanager
    def kernel(self) -> Iterator[ClientConnection]:
        name = self.ask("POST", "/api/kernels", {"name": "python3"})["id"]
        with connect(f"ws://{self.address}/api/kernels/{name}/channels", additional_headers=PROVEN) as socket:
            answered(socket, execute(socket, "1"))
            yield socket
        self.ask("DELETE", f"/api/kernels/{name}")

    @contextmanager
    def terminal(self) -> Iterator[ClientConnection]:
        name = self.ask("POST", "/api/terminals", {})["name"]
        with connect(f"ws://{self.address}/terminals/websocket/{name}", additional_headers=PROVEN) as socket:
            yield socket
        self.ask("DELETE", f"/api/terminals/{name}")


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def send(socket: ClientConnection, kind: str, channel: str = "shell", **content: Any) -> str:
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": kind,
        "session": "s",
        "username": "u",
        "version": "5.3",
        "date": "",
    }
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": channel}
    socket.send(json.dumps(message))
    return str(header["msg_id"])


def execute(socket: ClientConnection, code: str) -> str:
    return send(socket, "execute_request", code=code, silent=False, allow_stdin=False)


def answered(socket: ClientConnection, request: str) -> dt.datetime:
    """Waits until the kernel has finished a request; returns the time."""
    while True:
        said = json.loads(socket.recv(60))
        of = said["parent_header"].get("msg_id")
        if of == request and said["content"].get("execution_state") == "idle":
            return now()


def typed(socket: ClientConnection, line: str, until: str) -> dt.datetime:
    """Types a line and waits until the terminal shows `until`; returns the time."""
    socket.send(json.dumps(["stdin", line + "\r"]))
    shown = ""
    while until not in shown:
        said = json.loads(socket.recv(60))
        shown += said[1] if said[0] == "stdout" else ""
    return now()


@pytest.fixture(scope="module")
def lab(native_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    agents = Agents(native_home)
    files = tmp_path_factory.mktemp("home")
    for folder in (files, *list(files.parents)[:2]):
        folder.chmod(0o777)
    try:
        yield start(agents("--activity-seconds", str(PERIOD)), files)
    finally:
        agents.close()


def start(agent: Agent, files: Path) -> Notebook:
    driver, spec = Jupyter(), ClusterSpec.model_validate(SPEC)
    launch = driver.launch(spec, "notebook", {("notebook", 0): "127.0.0.1:1"}, {})
    served = tuple(
        Endpoint(each.name, each.port, each.health, each.activity) for each in driver.endpoints(spec, "notebook")
    )
    role = RolePlan("notebook", 1, launch.argv, launch.env, 1000, 1024, 0, "", "Always", 0, served)
    return Notebook(agent, agent.apply(role, mounts=(Mount(HOME, False, LocalSource(str(files), str(files))),)))


@pytest.fixture
def notebook(lab: Notebook) -> Notebook:
    """The notebook, reported as idle."""
    lab.until("idle")
    return lab


def test_its_clock_begins_when_it_answers_and_not_when_it_was_used_last(lab: Notebook) -> None:
    began = now()
    lab.address  # noqa: B018  waits until it answers
    told = lab.until("idle")
    assert lab.told[0].state == "unknown"
    assert told.since > began - dt.timedelta(seconds=60)
    assert told.since >= lab.told[0].since


def test_a_long_cell_that_prints_nothing_is_work_whatever_else_its_kernel_answers(notebook: Notebook) -> None:
    with notebook.kernel() as socket:
        begin, request = now(), execute(socket, f"import time; time.sleep({LONG})")
        notebook.until("busy")
        # The page's memory display sends these, and after each one Jupyter itself reports “idle”.
        usage = [send(socket, "usage_request", "control") for _ in range(3)]
        over = answered(socket, request)
        assert usage
        notebook.rests_after(begin, over)


def test_cells_go_on_when_nobody_is_connected(notebook: Notebook) -> None:
    with notebook.kernel() as socket:
        begin, request = now(), execute(socket, f"import time; time.sleep({LONG})")
        notebook.until("busy")
        name = notebook.ask("GET", "/api/kernels")[0]["id"]
        socket.close()
        with connect(f"ws://{notebook.address}/api/kernels/{name}/channels", additional_headers=PROVEN) as again:
            over = answered(again, request)
        notebook.rests_after(begin, over)


def test_what_somebody_started_in_a_terminal_is_work_and_a_prompt_is_not(notebook: Notebook) -> None:
    with notebook.terminal() as socket:
        begin = typed(socket, "echo a-$((1+1))", "a-2")
        begin = notebook.rests_after(begin, begin).since
        over = typed(socket, f"sleep {LONG}; echo b-$((1+1))", "b-2")
        notebook.rests_after(begin, over)
        assert "sleep runs in a terminal." in [each.why for each in notebook.told]


def test_what_a_kernel_left_running_computes_and_so_works(notebook: Notebook) -> None:
    """The cell itself ends at once."""
    end = f"end = time.time() + {LONG}"
    burn = f"import time; {end}\nwhile time.time() < end: pass"
    with notebook.kernel() as socket:
        begin = now()
        answered(socket, execute(socket, f"import subprocess; child = subprocess.Popen(['python', '-c', {burn!r}])"))
        notebook.rests_after(begin, begin + dt.timedelta(seconds=LONG))


def test_open_connections_and_pages_that_ask_by_themselves_are_no_work(notebook: Notebook) -> None:
    stop = threading.Event()
    with notebook.kernel() as socket:

        def pages() -> None:
            """What JupyterLab and editors send while they are open, only more often."""
            while not stop.wait(PERIOD):
                socket.ping()
                send(socket, "kernel_info_request")
                send(socket, "usage_request", "control")
                notebook.ask("GET", "/api/kernels")
                notebook.ask("GET", "/api/status")

        asking = threading.Thread(target=pages)
        asking.start()
        try:
            begin = now()
            idle = notebook.rests_after(begin, begin)
            moved = notebook.ask("GET", "/api/status")["last_activity"]
        finally:
            stop.set()
            asking.join()
    # Jupyter's own last_activity is fooled by these requests.
    assert dt.datetime.fromisoformat(moved) > idle.since


def test_one_cell_after_the_other_is_work_though_no_look_meets_one(notebook: Notebook) -> None:
    stop = threading.Event()
    with notebook.kernel() as socket:
        begin = now()
        for _ in range(3 * QUIET_LOOKS):
            over = answered(socket, execute(socket, "1"))
            stop.wait(PERIOD)  # like a person between cells
        notebook.rests_after(begin, over)


def test_a_server_that_does_not_answer_is_unknown_and_begins_anew(notebook: Notebook) -> None:
    before = notebook.until("idle")
    status = json.loads((notebook.agent.task_folder(notebook.run, "notebook-0-0") / "status.json").read_text())
    [server] = psutil.Process(status["init"]).children()
    server.send_signal(signal.SIGSTOP)
    try:
        lost = notebook.until("unknown", "does not say")
    finally:
        server.send_signal(signal.SIGCONT)
    assert notebook.until("idle").since >= lost.since > before.since


def test_what_an_agent_knew_counts_nothing_after_its_restart(notebook: Notebook) -> None:
    before = notebook.until("idle")
    notebook.agent.signal(signal.SIGKILL)
    notebook.agent.start()
    unknown = notebook.until("unknown", "being looked at")
    assert notebook.until("idle").since >= unknown.since > before.since
