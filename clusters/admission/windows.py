"""Stretches of time in which nodes are closed for maintenance, or reserved for one appcode. Pure.

The idea: a window that has not ended is a taint on its nodes, and each run tolerates those that it may use: before a window, if
its time limit ends early enough; during it, if the nodes are reserved for its appcode. So `decide` knows nothing of windows. What
it says about a run that fits but for a window is put right afterwards (`explained`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, Verdict, decide, outlook
from clusters.admission.packing import Field, Layout, Shape, Tasks, assign, split
from clusters.admission.pool import Node

# A run on the nodes of a window has to end that long before it, as it starts and ends slower than its time limit says.
SPARE = dt.timedelta(minutes=2)
# Offered time limits are no shorter than this. They are rounded down, so that they hold for a while.
LEAST = dt.timedelta(minutes=10)
# Verdicts that may be due to a window.
_ROOM = frozenset({Code.GPUS, Code.RESOURCES, Code.FRAGMENTED, Code.BEHIND})
# How many nodes are named.
NAMED = 4


NEVER = dt.datetime.min.replace(tzinfo=dt.UTC)


@dataclass(frozen=True)
class Window:
    """`appcode`: the only one whose runs may start on its nodes meanwhile; None for nobody's."""

    id: int
    nodes: frozenset[str]
    starts_at: dt.datetime
    ends_at: dt.datetime
    appcode: int | None = None
    reason: str = ""

    @property
    def taint(self) -> str:
        return f"window:{self.id}"

    def may_start(self, asker: Asker, at: dt.datetime) -> bool:
        """Whether a run may start on the nodes at `at`."""
        if at >= self.ends_at:
            return True
        if at >= self.starts_at:
            return self.appcode is not None and self.appcode == asker.appcode
        return asker.limit is not None and at + asker.limit + SPARE <= self.starts_at


@dataclass(frozen=True)
class Asker:
    """A run as windows see it. `limit`: its time limit. `is_endless`: it can have none, as a replica of a service."""

    appcode: int = 0
    limit: dt.timedelta | None = None
    is_endless: bool = False


@dataclass(frozen=True)
class Windows:
    """Those of one cloud that have not ended `at` that moment, and the runs that wait there, by id."""

    at: dt.datetime = NEVER
    windows: Sequence[Window] = ()
    askers: Mapping[int, Asker] = field(default_factory=dict)

    def tolerated(self, asker: Asker) -> frozenset[str]:
        """The taints of the windows on whose nodes a run may start now."""
        return frozenset(each.taint for each in self.windows if each.may_start(asker, self.at))

    def tolerated_by(self, run: int) -> frozenset[str]:
        return self.tolerated(self.askers.get(run, NOBODY)) if self.windows else NONE

    def limits(self, others: Iterable[int] = ()) -> list[int]:
        """Time limits in seconds with which a run ends before a window, and those of `others`, the longest first; rounded."""
        ends = [each.starts_at - self.at - SPARE for each in self.windows]
        found = {_rounded(each) for each in [*ends, *(dt.timedelta(seconds=each) for each in others)]}
        return sorted((int(each.total_seconds()) for each in found if each >= LEAST), reverse=True)

    @property
    def every(self) -> frozenset[str]:
        return frozenset(each.taint for each in self.windows)

    def close(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """The nodes with their taints, but for what they are when all is over: no window lasts for ever."""
        taints: dict[str, set[str]] = {}
        for window in self.windows:
            for name in window.nodes:
                taints.setdefault(name, set()).add(window.taint)
        return tuple(_tainted(node, frozenset(taints[node.name])) if node.name in taints else node for node in nodes)


NOBODY = Asker()
NONE = frozenset[str]()


def _tainted(node: Node, taints: frozenset[str]) -> Node:
    def closed(shape: Shape) -> Shape:
        return replace(shape, taints=shape.taints | taints)

    return replace(node, free=closed(node.free), drained=closed(node.drained or node.whole))


def tolerating(tasks: Iterable[Tasks], taints: frozenset[str]) -> tuple[Tasks, ...]:
    return tuple(replace(each, tolerated=each.tolerated | taints) if taints else each for each in tasks)


def explained(
    snapshot: Snapshot, verdicts: Mapping[str, Verdict], windows: Windows, new: tuple[Ask, Asker] | None = None
) -> dict[str, Verdict]:
    """The verdicts, where those of runs that wait only because of a window say so. `new`: a run after those of the snapshot, and
    what windows see of it."""
    found = dict(verdicts)
    if not windows.windows:
        return found
    seen = outlook(snapshot)
    kept: dict[str, set[str]] = {}
    for name, run in seen.kept.items():
        kept.setdefault(run, set()).add(name)
    decided = decide(snapshot) if new else verdicts
    promised = {node.name for node in snapshot.nodes if node.promised}
    promised |= {node for each in decided.values() if each.code is Code.FITS for _, node in each.nodes or {}}
    remembered: dict[object, Verdict | None] = {}
    asks = [(ask, windows.askers.get(int(ask.run), NOBODY)) for ask in snapshot.asks]
    for ask, asker in [*asks, *([new] if new else [])]:
        verdict = verdicts.get(ask.run)
        if verdict is None or verdict.code not in _ROOM:
            continue
        mine = kept.get(ask.run, set())
        key = ask.tasks, asker, frozenset(mine)
        if key not in remembered:
            rest, _ = split(seen.left, seen.kept.keys() - mine)
            remembered[key] = _because(ask, asker, windows, _Left(rest, promised))
        because = remembered[key]
        if because is not None:
            found[ask.run] = replace(because, rank=verdict.rank)
    return found


@dataclass(frozen=True)
class _Left:
    """What runs leave for one of them."""

    field: Field
    promised: Collection[str]

    def place(self, tasks: Iterable[Tasks], taints: frozenset[str]) -> Layout | None:
        return assign(tolerating(tasks, taints), self.field, self.promised).layout


def _because(ask: Ask, asker: Asker, windows: Windows, left: _Left) -> Verdict | None:
    """Why a run waits that would start now without windows; None if it would not."""
    layout = left.place(ask.tasks, windows.every)
    if layout is None:
        return None
    used = {node for (_, node), count in layout.items() if count}
    mine = windows.tolerated(asker)
    shut = [each for each in windows.windows if each.taint not in mine and used & each.nodes]
    if not shut:
        return None
    first = min(shut, key=lambda each: (each.starts_at, each.id))
    told: dict[str, int | str] = {
        "gpus": ask.gpus,
        "nodes": named(first.nodes),
        "several": int(len(first.nodes) > 1),
        "reserved": int(first.appcode is not None),
        "mine": int(first.appcode is not None and first.appcode == asker.appcode),
        "begun": int(windows.at >= first.starts_at),
        "from": clock(first.starts_at),
        "until": clock(first.ends_at),
        "has_limit": int(asker.limit is not None),
        "offer_limit": 0 if asker.is_endless else _offer(ask.tasks, asker, windows, left),
    }
    return Verdict(Code.WINDOW, told)


def _offer(tasks: Sequence[Tasks], asker: Asker, windows: Windows, left: _Left) -> int:
    """The longest time limit, in seconds, with which the run would start now; 0 if there is none that is long enough."""
    for seconds in windows.limits():
        limit = dt.timedelta(seconds=seconds)
        if left.place(tasks, windows.tolerated(replace(asker, limit=limit))) is not None:
            return seconds
    return 0


def _rounded(limit: dt.timedelta) -> dt.timedelta:
    for step, least in ((dt.timedelta(minutes=30), dt.timedelta(hours=2)), (dt.timedelta(minutes=5), LEAST)):
        if limit >= least:
            return limit // step * step
    return dt.timedelta(0)


def named(nodes: Collection[str]) -> str:
    found = sorted(nodes, key=lambda name: (len(name), name))
    if len(found) > NAMED:
        return f"{', '.join(found[: NAMED - 1])} and {len(found) - NAMED + 1:,} more nodes"
    return f"{', '.join(found[:-1])} and {found[-1]}" if len(found) > 1 else "".join(found)


def clock(at: dt.datetime) -> str:
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
