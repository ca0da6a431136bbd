"""The agent's view of a run's network: a process that holds it (holder.py) from the first task to the last."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from clusters.clouds.drivers.base import Endpoint, RolePlan
from clusters.clouds.drivers.local.agent import uids
from clusters.clouds.drivers.local.agent.machine import Machine, PartOf
from clusters.clouds.drivers.local.data.files import read_json, write_json
from clusters.clouds.drivers.local.network import holder, outward
from clusters.clouds.drivers.local.network import outside as network_outside
from clusters.clouds.drivers.local.task import processes

TRY_AGAIN = 5.0
# Written by the holder: ports of this machine's loopback by endpoint.
ENDPOINTS = "endpoints.json"
LOST = "The process that held the network of this run was lost, so its tasks were ended; they start again."
OTHERS_FIRST = (
    "Waits until the runs of another appcode are over: this machine cannot keep appcodes apart, so one at a time runs here. "
    "An administrator can allow more (PORTAL_SHARED_MACHINE)."
)
INSIDE = "Tasks reach the tasks of their own run and nothing else: no other run, no server, no internet."
PACKAGES = "They install packages from the index of this portal."
OUTSIDE = "Tasks reach the tasks of their own run and public addresses (IPv4); no other run and nothing private."
NO_PASTA = (
    "An administrator opened the internet to tasks, but pasta (Debian package passt) is not installed on this machine."
)
SHARED = "they reach each other and every server that listens on it."


class NetworkOf(PartOf, Protocol):
    """What a network needs of its run, including whether tasks live and how to end them."""

    @property
    def alive(self) -> bool: ...
    def stop_tasks(self, reason: str, message: str = "") -> None: ...


class Network:
    """`ready`: tasks may start. Without isolated networks (`Machine.shares_network`) there is nothing to hold."""

    def __init__(self, run: NetworkOf) -> None:
        self.run = run
        self.folder = run.folder / "network"
        self.process: processes.Detached | None = None
        self.problem = ""
        self.waits = False

    @property
    def place(self) -> str:
        """The network in a task's spec; "" means this machine's network."""
        return "" if self.run.machine.shares_network else str(self.folder)

    @property
    def idle(self) -> bool:
        return self.process is None

    def resume(self) -> None:
        """Finds the holder after a restart of the agent."""
        if self.folder.is_dir():
            self.process = processes.Detached.adopt(self.folder, self._ended, self._started)

    def ready(self) -> bool:
        """Returns whether tasks can join; starts the holder if necessary.

        Living tasks keep a namespace whose holder was lost, but new tasks could not join them there, so they are ended.
        """
        if self.run.machine.shares_network:
            return True
        if self.process is not None:
            return self.process.pidfd >= 0
        if self.run.alive:
            self.run.stop_tasks("Disrupted", LOST)
        elif not self.waits:
            self.folder.mkdir(exist_ok=True)
            (self.folder / "status.json").unlink(missing_ok=True)
            endpoints = {each.name: each.port for role in self.run.plan.roles for each in role.endpoints}
            told = {"endpoints": endpoints, "proof": self.run.plan.proof}
            write_json(self.folder / "spec.json", self._spec() | told)
            self.process = processes.Detached.launch(holder.__file__, self.folder, self._ended, self._started)
        return False

    def own(self, role: RolePlan) -> dict[str, Any] | None:
        """Returns the spec of a private network for a task of independent copies, so that all of them may listen on the same
        port; None if the task joins the run's network."""
        return self._spec() if role.is_apart and self.place else None

    def _spec(self) -> dict[str, Any]:
        told = spec(self.run.machine, outside=self.run.machine.outside)
        if any(mount.stream_key for mount in self.run.plan.mounts):
            told["stream"] = str(self.run.folder / "storage" / outward.INPUT_SOCKET)
        return told

    def address(self, endpoint: Endpoint) -> str:
        """Returns where this machine's gateway reaches the endpoint. Requires a living holder."""
        port = (read_json(self.folder / ENDPOINTS) or {})[endpoint.name] if self.place else endpoint.port
        return f"127.0.0.1:{port}"

    def stop(self) -> None:
        """Ends the holder. Only when no task lives."""
        if self.process is not None:
            self.process.send(signal.SIGTERM)

    def _started(self) -> None:
        self.problem = ""
        self.run.machine.wake(self.run.ref.id)

    def _ended(self) -> None:
        self.process = None
        status = read_json(self.folder / "status.json")
        self.problem = f"{status['error']} It is tried again." if status else ""
        if self.problem:
            self.waits = True
            asyncio.get_running_loop().call_later(TRY_AGAIN, self._again)
        self.run.machine.wake(self.run.ref.id)

    def _again(self) -> None:
        self.waits = False
        self.run.machine.wake(self.run.ref.id)


def spec(machine: Machine, *, outside: bool) -> dict[str, Any]:
    """Returns a holder's spec. As root, pasta and its holder become an ordinary user, because pasta talks to tasks."""
    own = {"endpoints": {}, "packages": machine.packages}
    if not outside:
        return {"outside": None, **own}
    uid = None if os.geteuid() else machine.first_uid + uids.HOLDER
    return {
        **own,
        "outside": {
            "pasta": machine.pasta,
            "uid": uid,
            "script": network_outside.__file__,
            "flags": network_outside.FLAGS,
        },
    }


@contextmanager
def held(folder: Path, told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Provides a temporary network: yields its place in a task's spec, and the error if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    processes.end(folder)  # left by an agent that was killed here
    (folder / "status.json").unlink(missing_ok=True)
    write_json(folder / "spec.json", told)
    processes.start(holder.__file__, folder)
    try:
        yield str(folder), (read_json(folder / "status.json") or {"error": ""})["error"]
    finally:
        processes.end(folder)


def note(machine: Machine) -> str:
    """Returns what people must know about the network of tasks here."""
    if not machine.shares_network:
        packages = PACKAGES if machine.packages and machine.has_index else ""
        return " ".join(filter(None, (OUTSIDE if machine.outside else INSIDE, packages, machine.no_outside)))
    return f"{sharing(machine)} Tasks share this machine's network: {SHARED} {machine.shares_network}"


def sharing(machine: Machine) -> str:
    """Returns the consequence of appcodes that cannot be isolated."""
    if machine.may_share:
        return "An administrator lets several appcodes run here all the same."
    return "Only one appcode at a time runs here, until an administrator allows more (PORTAL_SHARED_MACHINE)."
