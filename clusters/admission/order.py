"""In which order runs start, and by which right: their level. Pure.

An appcode's own runs are in order of class and age; what fits its quota in this order is inside the quota. Between appcodes, runs
inside a quota come first, then those that borrow, then spare ones; among equals the business line, and in it the appcode, that
holds least of what it deserves (`shares.py`). The size of a run does not count, so large runs are not passed over for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heapreplace
from typing import Generic, Literal, Protocol, TypeVar

from clusters.admission.shares import Want, deserved

PriorityClass = Literal["urgent", "normal", "spare"]
FIRST: Mapping[str, int] = {"urgent": 0, "normal": 1, "spare": 2}
# Shares are compared in whole parts of this.
_PARTS = 1_000_000


class Level(IntEnum):
    """A run may take GPUs back from runs of lower levels."""

    SPARE = 0
    BORROWED = 1
    QUOTA = 2


@dataclass(frozen=True)
class Share:
    """GPUs of an appcode: its quota, and what its runs hold on all clouds: inside it (`held`), beyond it (`borrowed`), and in
    the class spare. `used`: decayed GPU-seconds."""

    quota: int
    held: int = 0
    borrowed: int = 0
    spare: int = 0
    line: str = ""
    limit: int = 0
    weight: int = 1
    used: int = 0


class Sized(Protocol):
    """A run, or what one asks for."""

    @property
    def gpus(self) -> int: ...
    @property
    def appcode(self) -> str: ...
    @property
    def priority_class(self) -> PriorityClass: ...


A = TypeVar("A", bound=Sized)


def levels(runs: Sequence[A], quota: int, held: int = 0, *, waiting: bool = False) -> list[tuple[A, Level]]:
    """Levels of the runs of one appcode, oldest first, of whose quota `held` is used. Sorted by class. Where they wait, later
    ones do not take the quota that an earlier one waits for, and none is before an urgent one."""
    found, blocked = [], False
    for run in sorted(runs, key=lambda run: FIRST[run.priority_class]):
        level = Level.SPARE if run.priority_class == "spare" else Level.BORROWED
        if level and not blocked and held + run.gpus <= quota:
            level, held = Level.QUOTA, held + run.gpus
        elif level and not run.gpus:
            level = Level.QUOTA
        else:
            blocked |= waiting and level == Level.BORROWED and (run.gpus <= quota or run.priority_class == "urgent")
        found.append((run, level))
    return found


def in_order(asks: Sequence[A], shares: Mapping[str, Share], capacity: int) -> Iterable[tuple[A, Level]]:
    """`capacity`: all GPUs of the cloud. An appcode without a share has an endless quota."""
    if not shares:
        return [(ask, Level.SPARE if ask.priority_class == "spare" else Level.QUOTA) for ask in _spare_last(asks)]
    return _Queues(asks, shares, capacity).in_order()


def _spare_last(asks: Sequence[A]) -> Sequence[A]:
    return sorted(asks, key=lambda ask: ask.priority_class == "spare")


# Level, line's and appcode's part of what they deserve, age: the smallest is next.
_Key = tuple[int, int, int, int]


class _Queues(Generic[A]):
    """A queue per appcode and level. The key of a queue only grows, since what was asked before is counted as held."""

    def __init__(self, asks: Sequence[A], shares: Mapping[str, Share], capacity: int) -> None:
        self._shares = shares
        by_appcode: dict[str, list[A]] = {}
        for ask in asks:
            by_appcode.setdefault(ask.appcode, []).append(ask)
        self._age = {id(ask): age for age, ask in enumerate(asks)}
        self._queues: dict[tuple[str, Level], list[A]] = {}
        wants = {}
        for appcode, share in shares.items():
            own = by_appcode.get(appcode, [])
            for ask, level in levels(own, share.quota, share.held, waiting=True):
                self._queues.setdefault((appcode, level), []).append(ask)
            asked = sum(ask.gpus for ask in own if ask.priority_class != "spare")
            holds = share.held + share.borrowed
            limit = max(share.quota, share.limit)
            wants[appcode] = Want(share.line, share.quota, limit, share.weight, share.used, holds + asked)
        for appcode in by_appcode.keys() - shares.keys():
            self._queues[appcode, Level.QUOTA] = by_appcode[appcode]
        # Spare runs share by weight alone: nobody deserves them.
        self._due = {False: deserved(wants, capacity), True: {name: share.weight for name, share in shares.items()}}
        self._due_of_line = {False: Counter[str](), True: Counter[str]()}
        for is_spare, due in self._due.items():
            for appcode, gpus in due.items():
                self._due_of_line[is_spare][shares[appcode].line] += gpus
        # By whether they are spare, what each appcode and line holds.
        self._held = {False: Counter[str](), True: Counter[str]()}
        self._held_by_line = {False: Counter[str](), True: Counter[str]()}
        for appcode, share in shares.items():
            self._count(appcode, share.held + share.borrowed, is_spare=False)
            self._count(appcode, share.spare, is_spare=True)

    def in_order(self) -> Iterable[tuple[A, Level]]:
        heap = [(self._key(*of, 0), of, 0) for of in self._queues]
        heapify(heap)
        while heap:
            key, (appcode, level), n = heap[0]
            if (now := self._key(appcode, level, n)) > key:
                heapreplace(heap, (now, (appcode, level), n))
                continue
            queue = self._queues[appcode, level]
            ask = queue[n]
            self._count(appcode, ask.gpus, is_spare=level == Level.SPARE)
            if n + 1 < len(queue):
                heapreplace(heap, (self._key(appcode, level, n + 1), (appcode, level), n + 1))
            else:
                heappop(heap)
            yield ask, level

    def _count(self, appcode: str, gpus: int, *, is_spare: bool) -> None:
        if share := self._shares.get(appcode):
            self._held[is_spare][appcode] += gpus
            self._held_by_line[is_spare][share.line] += gpus

    def _key(self, appcode: str, level: Level, n: int) -> _Key:
        share, age = self._shares.get(appcode), self._age[id(self._queues[appcode, level][n])]
        if share is None:
            return -level, 0, 0, age
        spare = level == Level.SPARE
        line = _part(self._held_by_line[spare][share.line], self._due_of_line[spare][share.line])
        return -level, line, _part(self._held[spare][appcode], self._due[spare][appcode]), age


def _part(held: int, due: int) -> int:
    """Those that deserve nothing are not before those that hold what they deserve."""
    return held * _PARTS // due if due else (held + 1) * _PARTS
