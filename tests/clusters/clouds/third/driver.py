"""A cloud in the memory of this process, with only what every driver must have. Its tasks run from when they are applied until
their run is deleted."""

from __future__ import annotations

import datetime as dt
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from clusters.clouds.drivers.base import (
    Access,
    Batch,
    Capacity,
    Cloud,
    CloudError,
    CloudRefused,
    LogChunk,
    Node,
    Plan,
    RunFound,
    RunGone,
    RunRef,
    Seen,
    StorageSeen,
    TaskSeen,
)


class Machine:
    """The actual state, shared by all connections."""

    def __init__(self) -> None:
        self.plans: dict[int, Plan] = {}
        self.news: list[Seen] = []
        self.changed = threading.Condition()


MACHINES: defaultdict[str, Machine] = defaultdict(Machine)


class ThirdCloud(Cloud):
    kind = "third"
    title = "Third"
    is_remote = True
    software = "environment"
    mounts = frozenset({"s3"})
    longest_address = 30
    asks_for_addresses = False
    needs_namespace = False

    def __init__(self, name: str, machine: Machine) -> None:
        self.name = name
        self._machine = machine

    @classmethod
    def connect(cls, access: Access) -> Self:
        if access.credentials != "secret":
            raise CloudError(f"{access.name} does not know these credentials.")
        return cls(access.name, MACHINES[access.settings["machine"]])

    @classmethod
    def closed_networks(cls, stored: Mapping[str, Any]) -> Iterable[str]:
        return ("93.184.216.0/24",)

    def reserve(self, run: RunRef, counts: Mapping[str, int]) -> dict[tuple[str, int], str]:
        return {(role, n): f"{role}-{n}.{run.id}.third:2222" for role, count in counts.items() for n in range(count)}

    def apply(self, plan: Plan) -> None:
        if any(mount.source.kind not in self.mounts for mount in plan.mounts):
            raise CloudRefused("Only S3 is mounted here.")
        with self._machine.changed:
            if plan.run.id not in self._machine.plans:
                self._machine.plans[plan.run.id] = plan
                started = dt.datetime.now(dt.UTC)
                tasks = self._tasks(plan, phase="Running", scheduled_at=started, began_at=started, started_at=started)
                self._tell(RunFound(plan.run.id, plan.run), StorageSeen(plan.run.id, "none"), *tasks)

    def delete(self, run: RunRef, *, over: bool = False) -> None:
        with self._machine.changed:
            plan = self._machine.plans.pop(run.id, None)
            ended = dt.datetime.now(dt.UTC)
            tasks = self._tasks(plan, phase="Failed", reason="Stopped", finished_at=ended) if plan else []
            self._tell(*tasks, RunGone(run.id))

    def _tasks(self, plan: Plan, **facts: Any) -> list[TaskSeen]:
        return [
            TaskSeen(plan.run.id, role.role, n, 0, f"{self.name}/{plan.run.id}/{role.role}-{n}", node="one", **facts)
            for role in plan.roles
            for n in range(role.count)
        ]

    def _tell(self, *news: Seen) -> None:
        self._machine.news += news
        self._machine.changed.notify_all()

    def list(self) -> Batch:
        with self._machine.changed:
            here = [each for each in self._machine.news if each.run_id in self._machine.plans]
            return Batch(str(len(self._machine.news)), tuple(here))

    def watch(self, since: str) -> Iterator[Batch]:
        told = int(since)
        while True:
            with self._machine.changed:
                if len(self._machine.news) == told:
                    self._machine.changed.wait(5)
                news = self._machine.news[told:]
            told += len(news)
            yield Batch(str(told), tuple(news))

    def acknowledge(self, items: Sequence[Seen]) -> None:
        """Keeps all news."""

    def capacity(self) -> Capacity:
        return Capacity((Node("one", "", 0, 0, 64_000, 64_000),))

    def log(self, run: RunRef, role: str, index: int, *, attempt: int, offset: int = 0, **_: Any) -> LogChunk:
        return LogChunk(b"hello\n"[offset:], 6, run.id not in self._machine.plans)

    def follow(self, run: RunRef, role: str, index: int, **asked: Any) -> Iterator[LogChunk]:
        yield self.log(run, role, index, **asked)
