"""A real node agent and a real S3 server, with helpers for tests."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from clusters.clouds.drivers.base import (
    Batch,
    CloudError,
    ImageRef,
    Mount,
    Plan,
    RolePlan,
    RunGone,
    RunRef,
    S3Source,
    Seen,
    StorageSeen,
    TaskSeen,
)
from clusters.clouds.drivers.local.agent import disks
from clusters.clouds.drivers.local.client import LocalCloud
from clusters.clouds.drivers.local.task.processes import is_locked
from portal.network.outgoing import SETTING
from portal.up.services import dies_with_parent
from tests import ports

ROOT = Path(__file__).resolve().parents[4]
USER = 54_321
# Seconds. Deadlines only catch what is broken: the machine may have one busy core.
PATIENCE = 60.0
# The proof that opens the entrances of these tests' runs.
PROOF = "the-proof-of-a-cluster"
_numbers = itertools.count(1)
# Run by root first: hides the cgroups behind an empty folder, in the agent's own mount namespace. An ordinary user can't write
# cgroups of version 1 anyway.
NO_CGROUPS = """
import ctypes
if os.geteuid() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0
    assert libc.mount(b"none", b"/", None, 0x4C000, None) == 0  # MS_REC | MS_SLAVE and not shared with anybody
    assert libc.mount(b"tmpfs", b"/sys/fs/cgroup", b"tmpfs", 0, None) == 0
"""


@dataclass
class Home:
    """Where agents of one kind live: their interpreter and code, and the environment of their tasks."""

    folder: Path
    python: str
    code: Path
    environment: str
    uid: int | None


def role(
    command: str,
    *,
    name: str = "worker",
    count: int = 1,
    gpus: int = 0,
    model: str = "",
    restart: Any = "OnFailure",
    retries: int = 0,
    env: dict[str, str] | None = None,
    cpu_milli: int = 50,
    memory_mb: int = 64,
    at_once: int = 0,
) -> RolePlan:
    argv = ("bash", "-c", command)
    return RolePlan(name, count, argv, env or {}, cpu_milli, memory_mb, gpus, model, restart, retries, at_once=at_once)


@dataclass
class Agent:
    """One node agent and its client. `seen` lists all news so far, in order."""

    home: Home
    folder: Path
    options: tuple[str, ...] = ()
    seen: list[Seen] = field(default_factory=list)
    position: str = ""
    process: subprocess.Popen[bytes] | None = None
    before: str = ""

    @property
    def socket(self) -> Path:
        return self.folder / "agent.sock"

    @property
    def cloud(self) -> LocalCloud:
        return LocalCloud(str(self.socket))

    def start(self) -> Agent:
        argv = [
            self.home.python,
            "-m",
            "clusters.clouds.drivers.local.agent.agent",
            "--dir",
            str(self.folder / "cloud"),
        ]
        argv += ["--socket", str(self.socket), "--ignore-real-gpus", *self.options]
        if self.before:  # Python code that runs first, in the same process
            argv[1:1] = [
                "-c",
                f"import os, sys\n{self.before}\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
            ]
        env = {"PYTHONPATH": str(self.home.code), "PATH": f"{self.home.folder}:{os.environ['PATH']}"}
        env |= {SETTING: os.environ[SETTING]}
        with open(self.folder / "agent.log", "ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent(argv, "TERM"), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=self.folder,
                user=self.home.uid, group=self.home.uid, extra_groups=None if self.home.uid is None else [],
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                batch = self.cloud.list()
                break
            except CloudError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail((self.folder / "agent.log").read_text())
                time.sleep(0.01)
        self.position = self.position or batch.position
        return self

    def signal(self, number: int) -> None:
        """Sends a signal to the agent and waits for its exit."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(60)

    def plan(
        self, *roles: RolePlan, mounts: tuple[Mount, ...] = (), program: str = "", grace: int = 5, **more: Any
    ) -> Plan:
        number = next(_numbers)
        ref = RunRef(number, "ops", "ops-demo", "demo", number)
        image = ImageRef("plain", "", self.home.environment, program)
        return Plan(ref, image, roles, mounts, grace, **{"proof": PROOF, **more})

    def apply(self, *roles: RolePlan, **options: Any) -> RunRef:
        plan = self.plan(*roles, **options)
        self.cloud.apply(plan)
        return plan.run

    def until(self, what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Follows the watch until `what()` returns something; returns that."""
        if result := what():
            return result
        deadline = time.monotonic() + seconds
        for batch in self.cloud.watch(self.position):
            self.position = batch.position
            self.seen += batch.items
            if result := what():
                return result
            if time.monotonic() > deadline:
                break
        return pytest.fail(f"This was not seen; the last news: {self.seen[-8:]}\n{self.log()}")

    def task(self, run: RunRef, name: str = "worker", index: int = 0, attempt: int = 0) -> TaskSeen | None:
        """The latest news of one attempt."""
        wanted = (run.id, name, index, attempt)
        for item in reversed(self.seen):
            if isinstance(item, TaskSeen) and (item.run_id, item.role, item.index, item.attempt) == wanted:
                return item
        return None

    def ended(
        self, run: RunRef, name: str = "worker", index: int = 0, attempt: int = 0, seconds: float = PATIENCE
    ) -> TaskSeen:
        def done() -> TaskSeen | None:
            task = self.task(run, name, index, attempt)
            return task if task and task.phase in ("Succeeded", "Failed") else None

        return self.until(done, seconds)

    def running(self, run: RunRef, name: str = "worker", index: int = 0, attempt: int = 0) -> TaskSeen:
        """The first news of that attempt as running. A short task may have ended in the same batch."""
        wanted = (run.id, name, index, attempt, "Running")

        def was() -> TaskSeen | None:
            tasks = (item for item in reversed(self.seen) if isinstance(item, TaskSeen))
            return next((t for t in tasks if (t.run_id, t.role, t.index, t.attempt, t.phase) == wanted), None)

        return self.until(was)

    def listed(self, run: RunRef) -> list[TaskSeen]:
        """The run's tasks as the current agent lists them, whatever an earlier agent reported."""
        return [item for item in self.cloud.list().items if isinstance(item, TaskSeen) and item.run_id == run.id]

    def storage(self, run: RunRef, state: str, seconds: float = PATIENCE, *, words: str = "") -> StorageSeen:
        """Waits for a state of the run's data whose message has these words."""
        mine = (run.id, state)
        return self.until(
            lambda: next(
                (
                    each
                    for each in self.seen
                    if isinstance(each, StorageSeen) and (each.run_id, each.state) == mine and words in each.message
                ),
                None,
            ),
            seconds,
        )

    def gone(self, run: RunRef, seconds: float = PATIENCE) -> RunGone:
        return self.until(
            lambda: next((s for s in self.seen if isinstance(s, RunGone) and s.run_id == run.id), None), seconds
        )

    def output(self, run: RunRef, name: str = "worker", index: int = 0, attempt: int = 0) -> str:
        return self.cloud.log(run, name, index, attempt=attempt, limit=1 << 24).data.decode()

    def until_output(self, run: RunRef, text: str, name: str = "worker", index: int = 0, attempt: int = 0) -> str:
        """Waits for `text` in a log by polling, as the watch does not report output."""
        deadline = time.monotonic() + PATIENCE
        while text not in (output := self.output(run, name, index, attempt)):
            assert time.monotonic() < deadline, f"{text!r} is not in {output!r}\n{self.log()}"
            time.sleep(0.02)
        return output

    def says(self, command: str, *, at_once: int = 0, **options: Any) -> str:
        """Runs a command as a task that must succeed; returns its output."""
        run = self.apply(role(command, at_once=at_once), **options)
        end = self.ended(run)
        assert end.phase == "Succeeded", (end, self.output(run))
        return self.output(run)

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()[-4000:]

    def task_folder(self, run: RunRef, name: str = "worker-0-0") -> Path:
        return self.folder / "cloud" / "runs" / str(run.id) / "tasks" / name

    def room(self, run: RunRef) -> Path:
        """The folder in which the run's tasks write."""
        return self.folder / "cloud" / "runs" / str(run.id) / "room"

    def until_alone(self, folder: Path) -> None:
        """Waits until the process that owned `folder` has ended, while no agent runs."""
        deadline = time.monotonic() + PATIENCE
        while is_locked(folder):
            assert time.monotonic() < deadline, f"{folder} has still an owner"
            time.sleep(0.01)

    def until_removed(self) -> None:
        """Waits until the files of gone runs are deleted, which happens in the background."""
        deadline = time.monotonic() + PATIENCE
        while os.listdir(self.folder / "cloud" / "trash"):
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def live(self) -> set[int]:
        """The ids of the runs that are not gone."""
        items = self.cloud.list().items
        return {item.run_id for item in items} - {item.run_id for item in items if isinstance(item, RunGone)}

    def end_tasks(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while live := self.live():
            for number in live:
                self.cloud.delete(RunRef(number, "", "", "", 0))
            assert time.monotonic() < deadline, f"{live} did not end\n{self.log()}"
            time.sleep(0.05)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def rest(self) -> None:
        """Ends the tasks and clears `seen`."""
        if self.runs:
            self.end_tasks()
            self.seen.clear()
            self.position = self.cloud.list().position

    def close(self) -> None:
        """Ends the tasks, then the agent, by force if necessary."""
        if self.process is None or not self.runs:
            return
        try:
            self.end_tasks()
            self.signal(signal.SIGTERM)
        finally:
            if self.process.poll() is None:
                self.signal(signal.SIGKILL)
                for lock in self.folder.glob("cloud/runs/*/**/lock"):
                    if is_locked(lock.parent):
                        os.kill(int(lock.read_text()), signal.SIGKILL)


class Agents:
    """make_agent("--gpus", "2") → a started agent, which the fixture stops after the test."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.started: list[Agent] = []

    def __call__(self, *options: str, before: str = "") -> Agent:
        folder = Path(tempfile.mkdtemp(prefix="elearn-agent-"))
        if self.home.uid is not None:
            os.chown(folder, self.home.uid, self.home.uid)
        self.started.append(Agent(self.home, folder, options, before=before))
        return self.started[-1].start()

    def close(self) -> None:
        while self.started:
            agent = self.started.pop()
            try:
                agent.close()
            finally:
                for volume in [*agent.folder.glob("cloud/volumes/*"), *agent.folder.glob("cloud/disks/*")]:
                    disks.detach(volume)
                shutil.rmtree(agent.folder, ignore_errors=True)


class Kept:
    """One agent per home for all tests of a process without special options, because a start takes longer than most tests.

    Each test gets it without tasks or news of earlier tests. An agent that fails to end its tasks is not used again.
    """

    def __init__(self) -> None:
        self._agents: dict[str, Agents] = {}

    def of(self, home: Home) -> Agent:
        agents = self._agents.setdefault(home.python, Agents(home))
        if agents.started and not agents.started[-1].runs:
            agents.close()
        return agents.started[-1] if agents.started else agents()

    def rest(self) -> None:
        for agents in self._agents.values():
            for agent in list(agents.started):
                try:
                    agent.rest()
                except BaseException:
                    agents.close()
                    raise

    def close(self) -> None:
        for agents in self._agents.values():
            agents.close()


@dataclass
class Store:
    """A test's own S3 server, which can be stopped and started."""

    folder: Path
    access_key: str
    secret_key: str
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.port = self.port or ports.free()
        argv = [str(Path(sysconfig.get_path("scripts")) / "rclone"), "serve", "s3", "--config="]
        argv += ["--addr", f"127.0.0.1:{self.port}", str(self.folder)]
        env = {"RCLONE_AUTH_KEY": f'"{self.access_key},{self.secret_key}"', "HOME": "/tmp"}  # a CSV list
        self.process = subprocess.Popen(
            dies_with_parent(argv), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.runs:
            connections = psutil.Process(self.process.pid).net_connections("tcp4")
            if any(each.status == psutil.CONN_LISTEN for each in connections):
                return
            time.sleep(0.02)
        pytest.fail(f"rclone serve s3 did not start at port {self.port}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def upload(self, bucket: str, key: str, text: str, *, new: bool = False) -> None:
        """Uploads over S3: the server caches for a while that a file was not in a folder. `new` creates the bucket first."""
        import boto3

        names = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **names)
        if new:
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key=key, Body=text.encode())

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def source(self, bucket: str, prefix: str = "") -> S3Source:
        return S3Source(self.url, bucket, prefix, self.access_key, self.secret_key)

    def input(self, bucket: str, prefix: str = "") -> Mount:
        return Mount("/elearn/input", True, self.source(bucket, prefix))

    def output(self, bucket: str, prefix: str = "") -> Mount:
        return Mount("/elearn/output", False, self.source(bucket, prefix))


def bad_key(mount: Mount) -> Mount:
    assert isinstance(mount.source, S3Source)
    return replace(mount, source=replace(mount.source, secret_key="0" * 40))


def next_batch(agent: Agent, since: str) -> Batch:
    return next(iter(agent.cloud.watch(since)))
