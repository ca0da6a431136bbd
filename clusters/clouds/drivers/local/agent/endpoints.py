"""Health and activity of one run's endpoints, polled as the kubelet polls a readiness probe.

An endpoint is polled from the start of its task until it first answers, and while it warms up. It then counts as ready until the
task ends or the end of the run is requested, whichever is known first, so that nobody is routed to a program that is about to
end. Activity is polled while the endpoint is ready; only changes are reported.
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
from clusters.clouds.drivers.base.probes import MOST_SAID, answer
from clusters.clouds.drivers.local.agent.machine import PartOf
from clusters.clouds.drivers.local.agent.tasks import Task
from clusters.clouds.drivers.local.network.network import Network

# Seconds: the first and the longest pause between polls, and the timeout of a poll.
SHORTEST, LONGEST, PATIENCE = 0.05, 1.0, 5.0
# The pause as a share of the time since the first poll: a slow start may be noticed a little late.
SHARE = 0.1


class ServedBy(PartOf, Protocol):
    """What endpoints need of their run, including its tasks and network."""

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
        # By name: the attempt that is polled or has answered, and its polling task.
        self._attempts: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, EndpointSeen] = {}
        self._activity: ActivitySeen | None = None

    @property
    def seen(self) -> list[EndpointSeen | ActivitySeen]:
        return [*self._told.values(), *([self._activity] if self._activity else [])]

    def look(self) -> None:
        """Starts and stops polling after any change of the run."""
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
                    # Also after a restart of the agent, because earlier knowledge is outdated.
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
        """Polls activity until cancelled."""
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
        """Returns whether a GET of `path` is answered with a status below 500."""
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
    """Returns the status of an answer, 0 if there is none, and at most `most` bytes of its body."""
    host, _, port = address.rpartition(":")
    # HTTP/1.0, so that the answer comes unchunked, until the connection is closed.
    version = "1.0" if most else "1.1"
    proven = f"{entrance.HEADER}: {proof}\r\n"
    request = f"GET {path} HTTP/{version}\r\nHost: localhost\r\n{proven}Connection: close\r\n\r\n"
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(host, int(port), limit=MOST_SAID)
            return await answer(reader, writer, request.encode(), most)
    except (OSError, ValueError):  # TimeoutError is an OSError; ValueError: a line without end
        return 0, b""
