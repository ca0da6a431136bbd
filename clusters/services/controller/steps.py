"""The values of `rollout.py`: the state of a service that it reads, and the steps that it returns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clusters.router.rows import DEAD

# Time without a heartbeat after which a router counts as dead, and its requests in flight as gone.
ROUTER_DEAD = dt.timedelta(seconds=DEAD)
STARTING, SERVING, DRAINING = "starting", "serving", "draining"


@dataclass(frozen=True)
class Revision:
    id: int
    number: int
    weight: int = 0
    mirrored: bool = False
    drain: dt.timedelta = dt.timedelta(seconds=30)
    wanted: int = 0


@dataclass(frozen=True)
class Replica:
    """A replica that is not gone. `answers` is its address while its program answers. `over`: its run has ended. `ending`: its
    run was asked to end. `fails` says why it does not start, `waits` what it waits for if that is room."""

    id: int
    slot: int
    revision: int
    state: str = STARTING
    address: str = ""
    answers: str = ""
    over: bool = False
    ending: bool = False
    fails: str = ""
    waits: str = ""
    message: str = ""
    left_at: int = 0
    drain_until: dt.datetime | None = None

    @property
    def lives(self) -> bool:
        return not self.over and not self.ending and self.state != DRAINING

    @property
    def up(self) -> bool:
        return self.lives and bool(self.answers)


@dataclass(frozen=True)
class Way:
    """A rollout. `lasts` is the duration of its comparison, which begins when its replicas answer."""

    id: int
    kind: str
    phase: str
    to: int
    from_: int | None = None
    weight: int = 100
    by_hand: bool = False
    judge_at: dt.datetime | None = None
    lasts: dt.timedelta = dt.timedelta(minutes=10)
    began: dt.datetime | None = None
    finished: dt.datetime | None = None
    message: str = ""


@dataclass(frozen=True)
class RouterSeen:
    """What a router reports of this service. `flying` has its requests in flight, by replica."""

    seen_at: dt.datetime
    route: int
    flying: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """A service. `wanted` is the number of replicas that should answer, `rollout` the live one, `last` the last one that ended.
    `resting` has the revisions whose next replica must not start yet, with the failure, `refused` those without a possible
    replica, with the reason. `freed`: a replica has just ended, and its room may not have been assigned yet."""

    wanted: int
    route: int = 1
    ended: bool = False
    phase: str = "Starting"
    message: str = ""
    revisions: Sequence[Revision] = ()
    replicas: Sequence[Replica] = ()
    rollout: Way | None = None
    last: Way | None = None
    keep_warm: dt.timedelta = dt.timedelta(0)
    when_full: str = "wait"
    resting: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    freed: bool = False


@dataclass(frozen=True)
class Gone:
    """The replica's run is over; its slot may be used again."""

    replica: int
    why: str = ""


@dataclass(frozen=True)
class Lose:
    """The replica served, but its program stopped answering."""

    replica: int


@dataclass(frozen=True)
class Serve:
    replica: int
    address: str


@dataclass(frozen=True)
class Leave:
    """The replica gets no more requests, and ends when it has answered the earlier ones, or at `until`."""

    replica: int
    until: dt.datetime


@dataclass(frozen=True)
class End:
    replica: int


@dataclass(frozen=True)
class Start:
    slot: int
    revision: int


@dataclass(frozen=True)
class Weigh:
    revision: int
    weight: int
    mirrored: bool = False


@dataclass(frozen=True)
class Want:
    revision: int
    count: int


@dataclass(frozen=True)
class Advance:
    """A rollout gets another phase or message. `judge_at` is set when its comparison begins."""

    rollout: int
    phase: str
    sentence: str = ""
    judge_at: dt.datetime | None = None


@dataclass(frozen=True)
class Phase:
    """Sets the phase of the service."""

    phase: str
    message: str


Step = Gone | Lose | Serve | Leave | End | Start | Weigh | Want | Advance | Phase
# Steps that change routes, of which routers are notified.
ROUTED = (Lose, Serve, Leave, Weigh)
