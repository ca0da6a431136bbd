"""The whole portal for tests: `manage.py up` with its own data folder and port, as a newcomer starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from portal.network.outgoing import SETTING
from portal.up.services import dies_with_parent, free_port
from tests.index import Index

ROOT = Path(__file__).resolve().parent.parent
# Settings of this test run's own servers; the portal under test starts its own servers.
INNER = ("DATABASE_URL", "REDIS_URL", "LOCAL_CLOUD_", "PORTAL_", "DJANGO_")
# Settings of a portal whose runs are on a Kubernetes cluster: no disk has so much room that the demonstration's example would
# begin to train on this machine.
ELSEWHERE = {"LOCAL_CLOUD_FREE_DISK_GB": "1000000"}


def environment(data: Path, port: int, **more: str) -> dict[str, str]:
    """A newcomer's environment: only these settings, and the ports opened for test servers."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(INNER)}
    return env | {"PORTAL_DATA": str(data), "PORTAL_PORT": str(port), SETTING: os.environ.get(SETTING, ""), **more}


def up_once(data: Path, port: int, *prefix: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs `manage.py up` where it should refuse to start."""
    argv = [*prefix, sys.executable, "manage.py", "up"]
    return subprocess.run(
        argv, cwd=ROOT, env=environment(data, port, **more), capture_output=True, text=True, timeout=120, check=False
    )


def listening(process: int, number: signal.Signals, seconds: float = 30) -> None:
    """Waits until the process handles this signal; before that, the signal would end it (`man 5 proc`, SigCgt)."""
    end = time.monotonic() + seconds
    while True:
        status = Path(f"/proc/{process}/status").read_text()
        (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught, 16) >> (number - 1) & 1:
            return
        assert time.monotonic() < end, f"process {process} does not listen for {number.name}"
        time.sleep(0.005)


class Portal:
    """One running portal. `url` has no trailing slash; `start` and `stop` may be repeated and keep the data.

    The portal and all it runs end when the process that started it ends.
    """

    # The package index of its tasks; only `portal_up` sets it.
    index: Index

    def __init__(self, data: Path, **more: str) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        self.origin = f"http://portal.localhost:{self.port}"
        self._more = more
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> Path:
        """Starts the portal; returns its output file at once."""
        out = self.data.parent / f"{self.data.name}.out"
        with out.open("wb") as file:
            self.process = subprocess.Popen(
                dies_with_parent([sys.executable, "manage.py", "up"], "TERM"),
                cwd=ROOT,
                env=environment(self.data, self.port, **self._more),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return out

    def start(self, seconds: float = 480) -> None:
        """Waits until the portal reports that it is ready. Stops a portal that is late: it would slow down the next test."""
        out = self.launch()
        assert self.process is not None
        end = time.monotonic() + seconds
        try:
            while "Ctrl-C stops everything" not in out.read_text():
                assert self.process.poll() is None, f"manage.py up ended:\n{out.read_text()}"
                assert time.monotonic() < end, f"manage.py up took too long:\n{out.read_text()}"
                time.sleep(0.05)
        except AssertionError:
            if self.process.poll() is None:
                self.stop(signal.SIGTERM)
            raise

    def end_show1(self) -> None:
        """Ends the demonstration's own cluster, which would train for minutes."""
        alice, show1 = Client(self, "alice"), "/appcodes/ops-demo/clusters/show1"
        if alice.call("GET", show1)["status"]["phase"] not in ("Succeeded", "Failed", "Stopped"):
            alice.call("POST", f"{show1}/disable")

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stops the portal; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(150)

    @property
    def credentials(self) -> dict[str, Any]:
        """`{"url", "users": {"alice": {"password", "token", "role"}, …}}`."""
        found: dict[str, Any] = json.loads((self.data / "credentials.json").read_text())
        return found

    def secret(self, name: str) -> str:
        lines = (self.data / "secrets.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[name]

    def programs(self) -> dict[int, str]:
        """The programs under the supervisor: process id → command line."""
        assert self.process is not None
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                found[child.pid] = " ".join(child.cmdline())
            except psutil.Error:
                continue
        return {pid: line for pid, line in found.items() if line}

    def left(self) -> list[str]:
        """All processes on this machine that belong to this data folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if self.owns(process):
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
        return found

    def owns(self, process: psutil.Process) -> bool:
        """True if its command line, folder or environment names this data folder. Raises psutil.Error."""
        words = [*process.cmdline(), process.cwd(), *process.environ().values()]
        return any(str(self.data) in word for word in words)

    def get(self, path: str = "/", host: str | None = None) -> int:
        """The status of a page, or 0 if there is no answer."""
        request = urllib.request.Request(self.url + path, headers={"Host": host} if host else {})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


class Client:
    """REST client for a user of the demonstration. Raises HTTPError with the answer's body as a note."""

    def __init__(self, portal: Portal, person: str) -> None:
        self.url = f"{portal.url}/api/v1"
        self.token = portal.credentials["users"][person]["token"]

    def call(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            error.add_note(error.read().decode())
            raise

    def create(self, appcode: str, name: str, **spec: object) -> str:
        """Posts a cluster; returns its path."""
        manifest = {"kind": "cluster", "metadata": {"name": name, "appcode": appcode}, "spec": spec}
        self.call("POST", f"/appcodes/{appcode}/clusters", manifest)
        return f"/appcodes/{appcode}/clusters/{name}"


def eventually(condition: Any, seconds: float = 60) -> bool:
    """True if the condition becomes true in time."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds:
            return False
        time.sleep(pause(waited))
    return True


def pause(waited: float) -> float:
    """Seconds until the next look, after so many seconds of waiting. Most looks are requests to the portal: twenty a second
    would keep half a core busy while a long wait goes on."""
    return min(max(0.05, waited / 10), 0.5)
