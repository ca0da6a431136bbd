"""The endpoints of one run: whether each answers, asked as the kubelet asks a container's readiness probe, and whether it works.

An endpoint is asked from the moment when its task runs until it has answered once, or for as long as it warms up; from then on it
is ready until the task ends or the run is to end, whichever is told first: nobody is to be sent to a program that is about to go.
One that says whether it works is asked that as long as it is ready, and only changes are told.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Sequence
from typing import Protocol

from clusters.clouds.drivers import entrance
from clusters.clouds.drivers.base import ActivitySeen, Endpoint, EndpointSeen
from clusters.clouds.drivers.base.activity import Activity, after, read
from clusters.clouds.drivers.base.asking import MOST_SAID, answer
from clusters.clouds.drivers.local.agent.machine import PartOf
from clusters.clouds.drivers.local.agent.tasks import Task
from clusters.clouds.drivers.local.network.network import Network

# Seconds: between two questions at first and at most, and how long an answer is waited for.
SHORTEST, LONGEST, PATIENCE = 0.05, 1.0, 5.0
# Between them lies so much of the time that it has taken until then: who starts long may be noticed a little late.
SHARE = 0.1


class ServedBy(PartOf, Protocol):
    """What endpoints know of their run: also the tasks that serve, and how they are reached."""

    @property
    def tasks(self) -> Sequence[Task]: ...
    @property
    def network(self) -> Network: ...
    @property
    def deleted_at(self) -> float | None: ...


class Endpoints:
    def __init__(self, run: ServedBy) -> None:
        self.run = run
        self.names = {each.name: (role.role, each) for role in run.plan.roles for each in role.endpoints}
        # By name: the attempt that is asked or has answered, and what asks it.
        self._attempts: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, EndpointSeen] = {}
        self._activity: ActivitySeen | None = None

    @property
    def seen(self) -> list[EndpointSeen | ActivitySeen]:
        """What was last told of each."""
        return [*self._told.values(), *([self._activity] if self._activity else [])]

    def look(self) -> None:
        """Begins or ends to ask, after whatever has happened to the run."""
        for name, (role, endpoint) in self.names.items():
            task = next(each for each in self.run.tasks if each.key == (role, 0))
            lives = self.run.deleted_at is None and not self.run.machine.leaving and task.runs
            if name in self._attempts and (not lives or self._attempts[name] != task.attempt):
                del self._attempts[name]
                if asking := self._asking.pop(name, None):
                    asking.cancel()
                if name in self._told and self._told[name].ready:
                    self._tell(EndpointSeen(self.run.ref.id, name, False))
                if endpoint.activity and self.run.deleted_at is None:
                    self._tell_activity(Activity(since=time.time()))
            if lives and name not in self._attempts:
                self._attempts[name] = task.attempt
                if endpoint.activity:
                    # Also after a restart of the agent: what an earlier one knew is as old as that.
                    self._tell_activity(Activity(since=time.time()))
                self._asking[name] = asyncio.get_running_loop().create_task(self._ask(name, endpoint))

    async def _ask(self, name: str, endpoint: Endpoint) -> None:
        address, loop = self.run.network.address(endpoint), asyncio.get_running_loop()
        began = loop.time()
        since: float | None = None
        while True:
            since = (since or loop.time()) if await self._answers(address, endpoint.health) else None
            if since is not None and loop.time() - since >= endpoint.warm_up_seconds:
                break
            await asyncio.sleep(min(LONGEST, max(SHORTEST, SHARE * (loop.time() - began))))
        self._tell(EndpointSeen(self.run.ref.id, name, True, address))
        if endpoint.activity:
            await self._follow(address, endpoint.activity)
        self._asking.pop(name, None)

    async def _follow(self, address: str, path: str) -> None:
        """Asks until it is cancelled."""
        known, machine = Activity(since=time.time()), self.run.machine
        while True:
            status, body = await _get(address, path, MOST_SAID, self.run.plan.proof)
            at = time.time()
            gpus = [gpu for task in self.run.tasks for gpu in task.view().gpus]
            look = read(body, at, machine.meter.busy(gpus, machine.gpus.simulated, at)) if status == 200 else None
            known = after(known, look, at)
            self._tell_activity(known)
            await asyncio.sleep(machine.activity_seconds)

    async def _answers(self, address: str, path: str) -> bool:
        """Whether a GET of `path` is answered, and not with an error of the server."""
        return 100 <= (await _get(address, path, 0, self.run.plan.proof))[0] < 500

    def _tell_activity(self, known: Activity) -> None:
        told = self._activity
        if told is None or told.state != known.state:
            since = dt.datetime.fromtimestamp(known.since, dt.UTC)
            self._activity = ActivitySeen(self.run.ref.id, known.state, since, known.why)
            self.run.machine.emit(self._activity)

    def _tell(self, seen: EndpointSeen) -> None:
        self._told[seen.name] = seen
        self.run.machine.emit(seen)


async def _get(address: str, path: str, most: int, proof: str) -> tuple[int, bytes]:
    """The status of an answer, 0 when there is none, and at most so many bytes of what it says."""
    host, _, port = address.rpartition(":")
    # Of the older protocol comes what is said in one piece, until the connection is closed.
    version = "1.0" if most else "1.1"
    proven = f"{entrance.HEADER}: {proof}\r\n"
    request = f"GET {path} HTTP/{version}\r\nHost: localhost\r\n{proven}Connection: close\r\n\r\n"
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(host, int(port), limit=MOST_SAID)
            return await answer(reader, writer, request.encode(), most)
    except (OSError, ValueError):  # TimeoutError is an OSError; ValueError: a line without end
        return 0, b""
