"""In which order runs start, and by which right: their level. Pure.

An appcode's own runs wait in order of class; in a class those of the person come first who holds least of its GPUs, then the
oldest, of spare ones that with the shortest time limit: nobody has a right to spare GPUs, and so all wait less for them. What
fits its quota in order of class and age is inside the quota, and stays so while it runs; so an urgent run that waits is inside it
even if runs of a lower class fill it, of which one borrows then. Between appcodes, runs inside a quota come first, then those
that borrow, then spare ones; among equals the business line, and in it the appcode, that holds least of what it deserves
(`shares.py`). The size of a run does not count, so large runs are not passed over for ever.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heapreplace
from math import inf
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
    the class spare. `used`: decayed GPU-seconds. `people`: who holds how many of them. `urgent`: those of urgent runs, inside the
    quota or beyond it."""

    quota: int
    held: int = 0
    borrowed: int = 0
    spare: int = 0
    line: str = ""
    limit: int = 0
    weight: int = 1
    used: int = 0
    people: tuple[tuple[str, int], ...] = ()
    urgent: int = 0


class Sized(Protocol):
    """A run, or what one asks for."""

    @property
    def gpus(self) -> int: ...
    @property
    def appcode(self) -> str: ...
    @property
    def priority_class(self) -> PriorityClass: ...


class Asked(Sized, Protocol):
    """A run that waits."""

    @property
    def person(self) -> str: ...


class Limited(Asked, Protocol):
    """`ends`: when it would end by its time limit if it started now; None without one."""

    @property
    def ends(self) -> int | None: ...


A = TypeVar("A", bound=Sized)
B = TypeVar("B", bound=Asked)
C = TypeVar("C", bound=Limited)


def levels(
    runs: Sequence[A], quota: int, held: int = 0, urgent: int = 0, *, waiting: bool = False
) -> list[tuple[A, Level]]:
    """Levels of the runs of one appcode, oldest first, of whose quota `held` is used, and `urgent` as urgent ones see it. Sorted
    by class. Where they wait (then as `by_person` orders them), later ones do not take the quota that an earlier one waits for,
    and none is before an urgent one."""
    found, blocked = [], False
    for run in sorted(runs, key=lambda run: FIRST[run.priority_class]):
        level = Level.SPARE if run.priority_class == "spare" else Level.BORROWED
        used = urgent if run.priority_class == "urgent" else held
        if level and not blocked and used + run.gpus <= quota:
            level, held, urgent = Level.QUOTA, held + run.gpus, urgent + run.gpus
        elif level and not run.gpus:
            level = Level.QUOTA
        else:
            blocked |= waiting and level == Level.BORROWED and (run.gpus <= quota or run.priority_class == "urgent")
        found.append((run, level))
    return found


def by_person(runs: Sequence[B], held: Mapping[str, int]) -> list[B]:
    """Waiting runs of one appcode, given oldest first, in the order in which they come. `held`: GPUs by person; what comes before
    counts as held, too. So the many runs of one person do not hold up those of others, and none waits for ever."""
    if len({run.person for run in runs}) < 2:
        return sorted(runs, key=lambda run: FIRST[run.priority_class])
    counts, found = Counter(held), list[B]()
    queues: dict[tuple[int, str], deque[tuple[int, B]]] = {}
    for age, run in enumerate(runs):
        queues.setdefault((FIRST[run.priority_class], run.person), deque()).append((age, run))
    for first in sorted({first for first, _ in queues}):
        mine = {person: queue for (its, person), queue in queues.items() if its == first}
        heap = [(counts[person], queue[0][0], person) for person, queue in mine.items()]
        heapify(heap)
        while heap:
            person = heap[0][2]
            _, run = mine[person].popleft()
            counts[person] += run.gpus
            found.append(run)
            if mine[person]:
                heapreplace(heap, (counts[person], mine[person][0][0], person))
            else:
                heappop(heap)
    return found


def in_order(asks: Sequence[C], shares: Mapping[str, Share], capacity: int) -> Iterable[tuple[C, Level]]:
    """`capacity`: all GPUs of the cloud. `shares`: of all appcodes that ask; without any, nobody has a quota."""
    if not shares:
        return [(ask, Level.SPARE if ask.priority_class == "spare" else Level.QUOTA) for ask in _spare_last(asks)]
    return _Queues(asks, shares, capacity).in_order()


def _spare_last(asks: Sequence[C]) -> Sequence[C]:
    return sorted(asks, key=lambda ask: ask.priority_class == "spare")


def _first(ask: Limited) -> float:
    """Sorts spare runs by their time limits, and leaves the others as they are."""
    if ask.priority_class != "spare":
        return -inf
    return inf if ask.ends is None else ask.ends


class _Queues(Generic[C]):
    """A queue per appcode, per level. What was asked before counts as held."""

    def __init__(self, asks: Sequence[C], shares: Mapping[str, Share], capacity: int) -> None:
        self._shares = shares
        ages = {id(ask): age for age, ask in enumerate(asks)}
        by_appcode: dict[str, list[C]] = {}
        for ask in asks:
            by_appcode.setdefault(ask.appcode, []).append(ask)
        self._queues: dict[Level, dict[str, deque[tuple[int, C]]]] = {level: {} for level in Level}
        for appcode, own in by_appcode.items():
            share = shares[appcode]
            turns = by_person(sorted(own, key=_first), dict(share.people))
            for ask, level in levels(turns, share.quota, share.held, share.urgent, waiting=True):
                self._queues[level].setdefault(appcode, deque()).append((ages[id(ask)], ask))
        wants = {}
        for appcode, share in shares.items():
            asked = share.held + share.borrowed
            for ask in by_appcode.get(appcode, ()):
                asked += ask.gpus if ask.priority_class != "spare" else 0
            limit = max(share.quota, share.limit)
            wants[appcode] = Want(share.line, share.quota, limit, share.weight, share.used, asked)
        due = deserved(wants, capacity)
        held = {appcode: share.held + share.borrowed for appcode, share in shares.items()}
        # Spare runs share by weight alone: nobody deserves them.
        weights = {appcode: share.weight for appcode, share in shares.items()}
        spare = {appcode: share.spare for appcode, share in shares.items()}
        self._sides = {
            Level.QUOTA: (mine := _Sides(shares, held, due)),
            Level.BORROWED: mine,
            Level.SPARE: _Sides(shares, spare, weights),
        }

    def in_order(self) -> Iterable[tuple[C, Level]]:
        for level in sorted(Level, reverse=True):
            for ask in self._in_order(self._queues[level], self._sides[level]):
                yield ask, level

    def _in_order(self, queues: Mapping[str, deque[tuple[int, C]]], sides: _Sides) -> Iterable[C]:
        """Serving an appcode changes nothing for the other lines, and in its own line nothing for the others."""
        lines: dict[str, list[tuple[int, int, str]]] = {}
        for appcode, queue in queues.items():
            entry = sides.part(appcode), queue[0][0], appcode
            lines.setdefault(self._shares[appcode].line, []).append(entry)
        for appcodes in lines.values():
            heapify(appcodes)
        heap = [(sides.part_of_line(line), *appcodes[0][:2], line) for line, appcodes in lines.items()]
        heapify(heap)
        while heap:
            line = heap[0][3]
            appcode = lines[line][0][2]
            _, ask = queues[appcode].popleft()
            sides.count(appcode, ask.gpus)
            if queues[appcode]:
                heapreplace(lines[line], (sides.part(appcode), queues[appcode][0][0], appcode))
            else:
                heappop(lines[line])
            if lines[line]:
                heapreplace(heap, (sides.part_of_line(line), *lines[line][0][:2], line))
            else:
                heappop(heap)
            yield ask


class _Sides:
    """What appcodes and their lines hold of what they are due."""

    def __init__(self, shares: Mapping[str, Share], held: Mapping[str, int], due: Mapping[str, int]) -> None:
        self._line = {appcode: share.line for appcode, share in shares.items()}
        self._held, self._due = dict(held), due
        self._held_by_line, self._due_by_line = Counter[str](), Counter[str]()
        for appcode, line in self._line.items():
            self._held_by_line[line] += held[appcode]
            self._due_by_line[line] += due[appcode]

    def count(self, appcode: str, gpus: int) -> None:
        self._held[appcode] += gpus
        self._held_by_line[self._line[appcode]] += gpus

    def part(self, appcode: str) -> int:
        return _part(self._held[appcode], self._due[appcode])

    def part_of_line(self, line: str) -> int:
        return _part(self._held_by_line[line], self._due_by_line[line])


def _part(held: int, due: int) -> int:
    """Those that deserve nothing are not before those that hold what they deserve."""
    return held * _PARTS // due if due else (held + 1) * _PARTS
