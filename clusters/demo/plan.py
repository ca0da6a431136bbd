"""The generated runs of a demonstration: which pods ran when, for whom, on how many GPUs of a pool that is never
overbooked. The same day gives the same history."""

from __future__ import annotations

import datetime as dt
import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal

from billing.metering.segments import PodState, floor
from billing.periods import DAY
from clusters.frameworks import FRAMEWORKS

# The space keeps it distinct: a registered cloud's name cannot have one.
CLOUD = "generated history"
DAYS = 63
# Path, title, namespace.
LINES = (
    ("example.search", "Search", "search"),
    ("example.maps", "Maps", "maps"),
    ("example.speech", "Speech", "speech"),
)
H200, A100, L4 = "H200", "A100", "L4"
PER_HOUR = {H200: Decimal("4.2"), A100: Decimal("2.4"), L4: Decimal("0.8")}
# GPUs by model: (from the start, after MORE_AFTER days).
POOL = {H200: (16, 16), A100: (16, 24), L4: (16, 16)}
MORE_AFTER = 35
LAUNCH = dt.timedelta(seconds=4)


@dataclass(frozen=True)
class Team:
    """One appcode of the history: its usual jobs, and their number per working day."""

    code: str
    line: str
    users: tuple[str, ...]
    model: str
    framework: str
    jobs: tuple[str, ...]
    daily: float
    parameter_servers: bool = False


TEAMS = (
    Team("ranking", LINES[0][0], ("ana", "chen"), H200, "tensorflow", ("ranker", "embeddings"), 4, True),
    Team("ads", LINES[0][0], ("dara",), A100, "tensorflow", ("click-model", "bids"), 3, True),
    Team("vision", LINES[1][0], ("ben", "emi"), A100, "pytorch", ("segmentation", "lanes"), 4),
    Team("routing", LINES[1][0], ("femi",), L4, "tensorflow", ("travel-time",), 2),
    Team("asr", LINES[2][0], ("gita", "hugo"), H200, "pytorch", ("acoustic", "decoder"), 3),
)  # fmt: skip
# Permanent services: appcode, cluster, framework, model, GPUs.
SERVICES = (
    ("ads", "ads-serving", "serving", L4, 4),
    ("asr", "asr-serving", "serving", A100, 2),
)


@dataclass(frozen=True)
class Pod:
    """A generated pod. `reserved` is when it got its GPUs, before its image was pulled."""

    role: str
    index: int
    gpus: int
    cores: int
    reserved: dt.datetime
    started: dt.datetime
    ended: dt.datetime
    phase: str = "Succeeded"
    estimated: bool = False


@dataclass(frozen=True)
class Job:
    """A generated run."""

    team: str
    cluster: str
    number: int
    user: str
    framework: str
    model: str
    outcome: str
    pods: tuple[Pod, ...] = field(default=())

    @property
    def consumer(self) -> str:
        return f"{self.cluster} {self.number}"[-40:]

    @property
    def ended(self) -> dt.datetime:
        return max(pod.ended for pod in self.pods)

    def uid(self, pod: Pod) -> str:
        return f"{self.cluster}-{self.number}-{pod.role}-{pod.index}"[-80:]

    def _serves(self, pod: Pod) -> bool:
        """Whether the pod only serves the others. A framework that the portal does not know has no such roles."""
        return self.framework in FRAMEWORKS and FRAMEWORKS[self.framework].role(pod.role).kept_alive

    def states(self, appcode_id: int) -> Iterator[PodState]:
        """The states that a cloud would have reported: running, and the end."""
        for pod in self.pods:
            running = PodState(
                uid=self.uid(pod),
                cloud=CLOUD,
                appcode_id=appcode_id,
                consumer=self.consumer,
                labels={
                    "cluster": self.cluster, "run": str(self.number), "role": pod.role, "index": str(pod.index), "attempt": "0",
                    "framework": self.framework, "user": self.user, **({"serves": "yes"} if self._serves(pod) else {}),
                },
                phase="Running",
                gpus=pod.gpus,
                gpu_model=self.model if pod.gpus else "",
                cpu_milli=pod.cores * 1000,
                memory_mb=pod.cores * 4096,
                scheduled_at=pod.reserved,
                started_at=pod.started,
            )  # fmt: skip
            yield running
            yield replace(running, phase=pod.phase, finished_at=pod.ended, estimated=pod.estimated)


def begins(now: dt.datetime) -> dt.datetime:
    """The first second of the history."""
    return floor(now).replace(hour=0, minute=0, second=0) - DAYS * DAY


def ends(now: dt.datetime) -> dt.datetime:
    """The end of the last full hour."""
    return floor(now).replace(minute=0, second=0)


def plan(now: dt.datetime) -> list[Job]:
    """All runs of the history; none lasts beyond `ends`. A run waits until the pool has room for it."""
    first, last = begins(now), ends(now)
    chance = random.Random(f"{first:%F}")  # noqa: S311  the same history every time
    room = _Room(first)
    jobs = [_service(place, first, last, chance) for place in SERVICES]
    for _, _, _, model, gpus in SERVICES:
        room.take(model, gpus, last)
    wanted = sorted(_wanted(first, last, chance), key=lambda each: (each[0], each[1].code))
    numbers: dict[str, int] = {}
    for asked_at, team in wanted:
        job = _job(team, asked_at, last, numbers, room, chance)
        if job is not None:
            jobs.append(job)
    return jobs


class _Room:
    """The GPUs of the pool over time. Requests are served in order."""

    def __init__(self, first: dt.datetime) -> None:
        self.more = first + MORE_AFTER * DAY
        self.held: dict[str, list[tuple[dt.datetime, int]]] = {model: [] for model in POOL}
        self.since: dict[str, dt.datetime] = dict.fromkeys(POOL, first)

    def take(self, model: str, gpus: int, until: dt.datetime) -> None:
        heapq.heappush(self.held[model], (until, gpus))

    def when(self, model: str, gpus: int, asked_at: dt.datetime) -> dt.datetime:
        """The time at which `gpus` are free, in order of request."""
        at = max(asked_at, self.since[model])
        held = self.held[model]
        while True:
            while held and held[0][0] <= at:
                heapq.heappop(held)
            if sum(count for _, count in held) + gpus <= POOL[model][at >= self.more]:
                self.since[model] = at
                return at
            at = held[0][0]


def _wanted(first: dt.datetime, last: dt.datetime, chance: random.Random) -> Iterator[tuple[dt.datetime, Team]]:
    """Run requests by time and team: fewer on weekends, growing by the week, mostly in the daytime."""
    for day in range(DAYS + 1):
        midnight = first + day * DAY
        usual = (0.35 if midnight.weekday() >= 5 else 1.0) * (0.75 + 0.5 * day / DAYS)
        for team in TEAMS:
            for _ in range(int(team.daily * usual + chance.random())):
                at = midnight + dt.timedelta(hours=min(max(chance.gauss(13, 4.5), 0), 23.9))
                if at < last:
                    yield floor(at), team


def _service(
    place: tuple[str, str, str, str, int], first: dt.datetime, last: dt.datetime, chance: random.Random
) -> Job:
    code, cluster, framework, model, gpus = place
    user = next(team for team in TEAMS if team.code == code).users[0]
    started = first + dt.timedelta(seconds=chance.randrange(20, 60))
    pods = tuple(Pod("server", n, 1, 2, first, started, last) for n in range(gpus))
    return Job(code, cluster, 1, user, framework, model, "Stopped", pods)


def _job(
    team: Team, asked_at: dt.datetime, last: dt.datetime, numbers: dict[str, int], room: _Room, chance: random.Random
) -> Job | None:
    """One run, or None if it would start after `last`. A run that lasts until then is stopped."""
    workers, each = chance.choice([(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (2, 4), (1, 8)])
    begun = room.when(team.model, workers * each, asked_at)
    fetch = chance.randrange(180, 900) if chance.random() < 0.12 else chance.randrange(4, 25)
    started = begun + dt.timedelta(seconds=fetch)
    if started + dt.timedelta(hours=1) > last:
        return None
    length = dt.timedelta(seconds=int(min(max(chance.lognormvariate(9.9, 0.9), 400), 80_000)))
    failed, lost, forgotten = chance.random() < 0.09, chance.random() < 0.012, chance.random() < 0.07
    wanted = floor(started + length * (0.4 if failed else 1))
    ended = min(wanted, last)
    stopped = wanted > last
    room.take(team.model, workers * each, ended)
    cluster = f"{team.code}-{chance.choice(team.jobs)}"
    numbers[cluster] = number = numbers.get(cluster, 0) + 1
    bad = (failed or lost) and not stopped
    pods = [
        Pod(
            "worker", n, each, 4 * each, begun, started + n * LAUNCH / 4, ended - dt.timedelta(seconds=chance.randrange(20)),
            "Failed" if stopped or (bad and (lost or n == 0)) else "Succeeded", estimated=lost and not stopped,
        )
        for n in range(workers)
    ]  # fmt: skip
    if team.parameter_servers and workers > 1:
        # Some were started by hand as services and forgotten.
        late = chance.randrange(2 * 3600, 11 * 3600) if forgotten else 12
        until = min(ended + dt.timedelta(seconds=late), last)
        pods += [Pod("ps", n, 0, 8, begun, started, until) for n in range(2)]
    outcome = "Stopped" if stopped else "Failed" if bad else "Succeeded"
    return Job(team.code, cluster, number, chance.choice(team.users), team.framework, team.model, outcome, tuple(pods))
