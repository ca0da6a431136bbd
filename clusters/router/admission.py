"""Picks the replica for a request, or queues the request until a replica of its service has room.

A router counts only its own requests in flight, and remembers for a moment which replicas refused. A request that ends frees its
place for the first one in the queue. A service without replicas (asleep, starting, in transition) is treated as full.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusters.router.histograms import PANIC, STABLE, InFlight
from clusters.router.table import Replica, Revision, Service, Table, Turns, least

# Requests that may queue for one service in one router.
MOST_WAITING = 100
# Seconds.
LONGEST_WAIT = 30.0
LEFT_OUT = 1.0


@dataclass(frozen=True)
class Place:
    service: int
    revision: Revision
    replica: Replica


class NoPlace(Exception):
    """No replica had room. `full`: the queue was full; otherwise the wait timed out."""

    def __init__(self, *, full: bool) -> None:
        super().__init__()
        self.full = full


class Gone(Exception):
    """The service was deleted or stopped while the request waited."""


class Hall:
    """`routers`: number of living routers, this one included. `wanted`: services with waiting requests and no live replica."""

    def __init__(self) -> None:
        self.table = Table()
        self.routers = 1
        self.wanted: set[int] = set()
        self.asked = asyncio.Event()
        self._began = time.monotonic()
        self._busy: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._flights: dict[int, InFlight] = {}
        self._queues: dict[int, deque[asyncio.Future[Place]]] = {}
        self._turns: defaultdict[int, Turns] = defaultdict(Turns)
        # Requests routed per revision: rotates among replicas with equally few requests.
        self._led: Counter[int] = Counter()
        self._out: dict[int, float] = {}

    def swap(self, table: Table) -> None:
        """Replaces the routing table. New places follow the new table; queued requests are served again."""
        self.table = table
        for state in (self._turns, self._flights):
            for gone in [each for each in state if each not in table.by_id]:
                del state[gone]
        for service in list(self._queues):
            self._serve(service)

    def come(self, service: int, by: int) -> None:
        """Adds `by` to the requests of a service that this router holds, routed or waiting."""
        flight = self._flights.get(service)
        if flight is None:
            flight = self._flights[service] = InFlight(self._began)
        flight.change(by, time.monotonic())

    async def place(self, service: int, until: float, *, again: bool = False) -> Place:
        """Returns a place at a replica, waiting until the loop time `until` if necessary. `again`: a replica refused the
        request, so it goes before all waiting requests and ignores the queue limit. Raises NoPlace and Gone."""
        queue = self._queues.get(service)
        if (again or not queue) and (found := self._find(service)):
            return found
        if queue is None:
            queue = self._queues[service] = deque()
        if len(queue) >= MOST_WAITING and not again:
            raise NoPlace(full=True)
        waits: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        (queue.appendleft if again else queue.append)(waits)
        self._tell(service)
        try:
            async with asyncio.timeout_at(until):
                return await waits
        except TimeoutError:
            if waits.done() and not waits.cancelled() and not waits.exception():
                return waits.result()
            raise NoPlace(full=False) from None
        except asyncio.CancelledError:
            if waits.done() and not waits.cancelled() and not waits.exception():
                self.leave(waits.result())
            raise
        finally:
            if waits in queue:
                queue.remove(waits)
            if not queue and self._queues.get(service) is queue:
                del self._queues[service]
                self.wanted.discard(service)

    def copy(self, service: int, answered: Revision) -> Place | None:
        """Returns a place for the mirrored copy of an answered request, or None. Uses the shadow as of now."""
        known = self.table.by_id.get(service)
        shadow = known.shadow if known else None
        if known is None or shadow is None or shadow.id == answered.id:
            return None
        return self._at(known, shadow, self._open(known, shadow))

    def call(self, service: int) -> None:
        """Wakes a service on behalf of a caller that does not queue."""
        self.wanted.add(service)
        self.asked.set()

    def leave(self, place: Place) -> None:
        busy = self._busy[place.service]
        busy[place.replica.id] -= 1
        if busy[place.replica.id] <= 0:
            del busy[place.replica.id]
        if place.service in self._queues:
            self._serve(place.service)

    def leave_out(self, place: Place) -> None:
        """Excludes a replica that refused for LEFT_OUT seconds."""
        self._out[place.replica.id] = time.monotonic() + LEFT_OUT
        asyncio.get_running_loop().call_later(LEFT_OUT + 0.01, self._serve, place.service)

    def take_wanted(self) -> list[int]:
        """Returns the services that need replicas. Keeps only those with queued requests for the next call."""
        found = sorted(self.wanted)
        self.wanted &= self._queues.keys()
        return found

    def report(self) -> dict[str, Any]:
        """Returns the state of all services for this router's row."""
        now, found = time.monotonic(), {}
        for number, service in self.table.by_id.items():
            flight = self._flights.get(number)
            found[str(number)] = {
                "route": service.route,
                "inFlight": {str(replica): count for replica, count in self._busy.get(number, {}).items()},
                "waiting": len(self._queues.get(number, ())),
                "stable": round(flight.average(STABLE, now), 2) if flight else 0.0,
                "panic": round(flight.average(PANIC, now), 2) if flight else 0.0,
            }
        return found

    def _serve(self, service: int) -> None:
        """Gives free places to queued requests, in order."""
        queue = self._queues.get(service)
        known = self.table.by_id.get(service)
        while queue:
            if queue[0].done():
                queue.popleft()
            elif known is None or not known.running:
                queue.popleft().set_exception(Gone())
            elif found := self._find(service):
                queue.popleft().set_result(found)
            else:
                self._tell(service)
                return

    def _tell(self, service: int) -> None:
        known = self.table.by_id.get(service)
        if known and not known.live and service not in self.wanted:
            self.wanted.add(service)
            self.asked.set()
        elif known and known.live:
            self.wanted.discard(service)

    def _find(self, service: int) -> Place | None:
        known = self.table.by_id.get(service)
        if known is None or not known.running:
            raise Gone
        live = known.live
        usable = {each.id: (each, replicas) for each in live if (replicas := self._open(known, each))}
        if not usable:
            return None
        chosen = self._turns[service].next(live)
        found = usable.get(chosen.id) or max(usable.values(), key=lambda each: each[0].weight)
        return self._at(known, *found)

    def _open(self, service: Service, revision: Revision) -> list[Replica]:
        """Returns the replicas of a revision that have room and did not refuse within the last LEFT_OUT seconds."""
        busy, most = self._busy[service.id], service.most(self.routers)
        now = time.monotonic() if self._out else 0.0
        return [
            each for each in revision.replicas if busy.get(each.id, 0) < most and self._out.get(each.id, 0.0) <= now
        ]

    def _at(self, service: Service, revision: Revision, replicas: Sequence[Replica]) -> Place | None:
        self._led[revision.id] += 1
        busy = self._busy[service.id]
        chosen = least(replicas, busy, self._led[revision.id])
        if chosen is None:
            return None
        busy[chosen.id] += 1
        return Place(service.id, revision, chosen)

    def sweep(self) -> None:
        """Forgets expired refusals and counters of services and revisions that no longer exist."""
        now = time.monotonic()
        self._out = {each: until for each, until in self._out.items() if until > now}
        for gone in [each for each, busy in self._busy.items() if not busy and each not in self.table.by_id]:
            del self._busy[gone]
        known = {revision.id for service in self.table.by_id.values() for revision in service.revisions}
        for gone in self._led.keys() - known:
            del self._led[gone]
