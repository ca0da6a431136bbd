"""What is left of a cloud's nodes while runs are decided in order, and which nodes waiting runs keep. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from clusters.admission.codes import Code, Values
from clusters.admission.packing import (
    Field,
    Layout,
    Shape,
    Sizes,
    Tasks,
    assign,
    fill,
    freed,
    group,
    grouped,
    joined,
    search,
    split,
    why_never,
)
from clusters.admission.reasons import asked, by_kind, describe_never, gpus_of, kind, lacks, one_gpu
from clusters.admission.taking import Holding
from clusters.admission.topology import Path, Topology, assign_near

# Waiting runs that keep nodes, for each kind of nodes; more would leave too many idle.
MOST_KEEPING = 3
NO_SIZES = Sizes()
# Collections of a pool that change in place.
_CHANGING = (
    "_promised", "keeper", "_keeping", "_failed", "_counts", "_why", "stuck", "_ends", "until", "promised", "_before",
    "_failed_later", "_leaving", "_gone",
)  # fmt: skip


@dataclass(frozen=True)
class Node:
    """`free` leaves out what running pods hold, those of others too. `drained`: what is free once all runs have ended; None for
    `whole`. `ready`: takes tasks now. `promised`: runs have places there that they have not taken yet. `ending`: what runs hold
    that are being ended, at the latest until `gone` (0: nobody knows). `ends`: when the last of the others ends by its time
    limit, in seconds since 1970; None if one has none. `domains`: where it is, see `topology.Path`."""

    name: str
    whole: Shape
    free: Shape
    ready: bool = True
    drained: Shape | None = None
    promised: bool = False
    ending: Sizes = NO_SIZES
    ends: int | None = None
    domains: Path = ()
    gone: int = 0


class Pool:
    """What is left of the nodes while runs are decided in order. Answers are remembered by tasks until the nodes change, since
    most of many waiting runs are alike."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._empty = group((node.name, node.whole) for node in nodes)
        ready = [node for node in nodes if node.ready]
        self._drained = {node.name: node.drained or node.whole for node in ready}
        self._kinds_of_nodes = set({id(shape): shape for shape in self._drained.values()}.values())
        self._first = self.free = group((node.name, node.free) for node in ready)
        self._at: dict[str, Shape] | None = None  # The same by name, while nothing changes.
        self._leaving: dict[tuple[Tasks, ...], Leaving] = {}
        self._next: list[str] = []  # In which order they are kept, while nothing starts.
        self._promised = {node.name for node in nodes if node.promised}
        self._topology = Topology.of((node.name, node.domains) for node in nodes)
        self._ahead = 0  # Earlier runs that take some of them.
        self.kept: Field = {}  # Nodes that earlier waiting runs keep, and which run keeps each.
        self.keeper: dict[str, str] = {}
        self._keeping = Counter[frozenset[Tasks]]()
        # Free resources, including those that earlier runs keep; None if unknown.
        self._every: Field | None = self.free
        self._never: dict[tuple[Tasks, ...], tuple[Code, Values] | None] = {}
        self._failed: set[tuple[Tasks, ...]] = set()  # Free nodes only become fewer, so these stay without a place.
        self._counts: dict[frozenset[Tasks], Values] = {}
        self._why: dict[tuple[Tasks, ...], tuple[Code, Values]] = {}
        # What waits and keeps nothing more, whatever starts meanwhile.
        self.stuck = set[Hashable]()
        self._ending = {
            node.name: node.ending for node in ready if node.ending is not NO_SIZES and node.ending != NO_SIZES
        }
        self._gone = {node.name: node.gone for node in ready if node.name in self._ending}
        self._ends = {node.name: node.ends for node in nodes}
        # When a run that keeps nodes can start at the latest, by the time limits there, and None if nobody knows. These times.
        self.until: dict[str, int | None] = {}
        self._times: list[int] = []
        # The same, where it holds whatever earlier runs do.
        self.promised: dict[str, int | None] = {}
        # What earlier runs ask for that wait, and whether they start on as many nodes as they keep.
        self._before: dict[tuple[Tasks, ...], bool] = {}
        self._failed_later: set[Hashable] = set()

    def fork(self) -> Pool:
        """Another one that goes on from here. What can never change is shared."""
        found = copy(self)
        for name in _CHANGING:
            setattr(found, name, copy(getattr(self, name)))
        return found

    def never(self, tasks: tuple[Tasks, ...]) -> tuple[Code, Values] | None:
        if not self._empty:
            return None
        if tasks not in self._never:
            why = why_never(tasks, self._empty)
            self._never[tasks] = (Code(why), describe_never(Code(why), tasks, self._empty)) if why else None
        return self._never[tasks]

    def fill(self, tasks: tuple[Tasks, ...]) -> Layout:
        found = fill(tasks, self.free)
        if found.layout:
            self._change(found.left)
        return found.layout

    def take(self, tasks: tuple[Tasks, ...], ends: int | None) -> Layout | None:
        if not self._empty and not any(each.gpus for each in tasks):
            return {}  # Nodes are not known yet; runs without GPUs do not wait for them.
        if tasks in self._failed:
            return None
        found = assign_near(tasks, self.free, self._promised, self._topology)
        if found.layout is None:
            self._failed.add(tasks)
        else:
            mine = {name for _, name in found.layout}
            self._promised |= mine
            for name in mine:
                known = self._ends[name]
                self._ends[name] = None if known is None or ends is None else max(known, ends)
            self._change(found.left)
        return found.layout

    def later(self, ends: int | None) -> int:
        """On the nodes of how many runs another one may start that ends then. All that `ends` changes: one that ends between the
        same of these times finds the same room."""
        return 0 if ends is None else len(self._times) - bisect_left(self._times, ends)

    def take_hole(self, tasks: tuple[Tasks, ...], ends: int) -> Layout | None:
        """Takes what is free on nodes that are kept, and not needed before `ends`."""
        if (tasks, self.later(ends)) in self._failed_later or not self.later(ends):
            return None
        runs = {run for run, until in self.until.items() if ends <= (until or 0)}
        open_ = {name for name, run in self.keeper.items() if run in runs}
        _, holes = split(self.kept, open_)
        found = assign_near(tasks, joined(self.free, holes), self._promised, self._topology)
        if found.layout is None:
            self._failed_later.add((tasks, self.later(ends)))
            return None
        self._promised |= {name for _, name in found.layout}
        holes, left = split(found.left, {name for shape in self.free for name in self.free[shape]})
        self.kept = joined(split(self.kept, open_)[0], holes)
        self._change(left)
        return found.layout

    def await_ending(self, run: str, tasks: tuple[Tasks, ...]) -> int | None:
        """Keeps the nodes on which the tasks fit as soon as those runs have gone that are being ended: what is free already, and
        no more of the others than it takes. So what the first of these runs leave is not given to others meanwhile. Returns when
        they have gone at the latest, 0 if nobody knows; None if nothing is kept."""
        if not self._ending or tasks in self._failed_later:
            return None
        if not self.leaving(tasks, ()).may_fit:
            self._failed_later.add(tasks)
            return None
        names = sorted(self._ending)

        def placed(count: int) -> Layout | None:
            field = freed(self.free, {name: self._ending[name] for name in names[:count]})
            return assign_near(tasks, field, self._promised, self._topology).layout

        layout = placed(len(names))
        if layout is None:
            self._failed_later.add(tasks)
            return None
        if len(names) > 1:
            layout = placed(bisect_left(range(len(names)), True, key=lambda count: placed(count) is not None)) or layout
        mine = {name for _, name in layout}
        self._keep(run, mine, None)
        gone = [self._gone[name] for name in mine if name in self._ending]
        self._ending = {name: sizes for name, sizes in self._ending.items() if name not in mine}
        return max(gone, default=0) if all(gone) else 0

    def would_fit(self, tasks: tuple[Tasks, ...], holdings: Iterable[Holding]) -> bool:
        """Whether the tasks fit once these runs are gone, too."""
        return assign(tasks, freed(self.free, self._with(holdings)), self._promised).layout is not None

    def leaving(self, tasks: tuple[Tasks, ...], holdings: Iterable[Holding] = ()) -> Leaving:
        """What changes for the tasks as runs go, beside those that are being ended."""
        if self._at is None:
            self._at = {name: shape for shape, names in self.free.items() for name in names}
            self._leaving.clear()
        if tasks not in self._leaving:
            self._leaving[tasks] = Leaving(tasks, self.free, self._at, self._promised)
        found = self._leaving[tasks].again()
        for name, sizes in self._ending.items():
            found.free(name, sizes)
        for each in holdings:
            found.add(each)
        return found

    def end(self, holdings: Iterable[Holding]) -> None:
        for each in holdings:
            for name in each.nodes:
                # Of what ends already, too, if anything does: nobody knows if one is not known.
                known = self._gone.get(name, each.gone) if name in self._ending else each.gone
                self._gone[name] = max(known, each.gone) if known and each.gone else 0
        self._ending = self._with(holdings)
        self._failed_later.clear()
        self.stuck.clear()

    def _with(self, holdings: Iterable[Holding]) -> dict[str, Sizes]:
        found = dict(self._ending)
        for each in holdings:
            for name, sizes in each.nodes.items():
                found[name] = found.get(name, NO_SIZES) + sizes
        return found

    def keep(self, run: str, tasks: tuple[Tasks, ...]) -> bool:
        """Keeps nodes that hold all of the tasks once the runs there have ended: those that are free first by the time limits
        there, then those with the most free resources. False if nothing is kept; then equal tasks will keep nothing either."""
        kinds = kinds_of(tasks)
        if self._keeping[kinds] == MOST_KEEPING:
            self._before[tasks] = False
            return False
        if not self._next:
            self._next = self._in_order()
        left = {name: self._drained[name] for name in self._next if name not in self.keeper}
        mine: set[str] = set()
        for each in sorted(tasks, key=lambda each: (-each.gpus, -each.cpu_milli, -each.memory_mb)):
            short = each.count
            for name in left:
                if not short:
                    break
                if here := left[name].holds(replace(each, count=short)):
                    left[name], short = left[name].without(each, here), short - here
                    mine.add(name)
            if short:
                self._before[tasks] = False
                return False
        self._keeping[kinds] += 1
        ends = [self._ends[name] for name in mine]
        until = None if None in ends else max(each for each in ends if each is not None)
        self._keep(run, mine, until)
        self.promised[run] = until if self._is_sure(tasks) else None
        self._before[tasks] = self._before.get(tasks, True) and len(mine) == sum(each.count for each in tasks)
        return True

    def _in_order(self) -> list[str]:
        names = [(most_first(shape), name) for shape, of in self.free.items() for name in of]
        ends = {name: inf if ends is None else ends for name, ends in self._ends.items()}
        return [name for *_, name in sorted((ends[name], size, name) for size, name in names)]

    def _is_sure(self, tasks: tuple[Tasks, ...]) -> bool:
        """Whether earlier runs that start elsewhere than on the nodes that they keep leave as much for these tasks."""
        shapes = self._kinds_of_nodes
        for earlier, is_steady in self._before.items():
            theirs = [shape for shape in shapes if any(map(shape.holds, earlier))]
            if any(shape.holds(each) for shape in theirs for each in tasks) and not (
                is_steady and len({tuple(map(shape.holds, tasks)) for shape in theirs}) == 1
            ):
                return False
        return True

    def _keep(self, run: str, names: Collection[str], until: int | None) -> None:
        self.free, kept = split(self.free, names)
        self._at = None
        self.kept = joined(self.kept, kept)
        self.keeper |= dict.fromkeys(names, run)
        self.until[run] = until
        self._times = sorted(each or 0 for each in self.until.values())
        self._failed_later.clear()
        self.stuck.clear()

    def counts(self, tasks: tuple[Tasks, ...]) -> Values:
        """GPUs that suit the tasks: `total`, `free` (or kept for an earlier run), and `before`: those that `ahead` runs take."""
        kinds = kinds_of(tasks)
        if kinds not in self._counts:
            free = gpus_of(self.every, kinds)
            self._counts[kinds] = {
                "total": gpus_of(self._empty, kinds),
                "free": free,
                "before": gpus_of(self._first, kinds) - free,
                "ahead": self._ahead,
            }
        return self._counts[kinds]

    @property
    def every(self) -> Field:
        if self._every is None:
            self._every = joined(self.free, self.kept)
        return self._every

    def why_waits(self, tasks: tuple[Tasks, ...]) -> tuple[Code, Values]:
        """What is told of such tasks while nothing starts."""
        found = self._why.get(tasks)
        if found is None:
            code, why = self._why_waits(tasks) if self._first else (Code.NO_NODES, {})
            found = self._why[tasks] = code, {**asked(tasks), **self.counts(tasks), **why}
        return found

    def _why_waits(self, tasks: tuple[Tasks, ...]) -> tuple[Code, Values]:
        every = self.every
        for these in by_kind(tasks):
            needed, counts = sum(each.count * each.gpus for each in these), self.counts(these)
            if needed > int(counts["free"]):
                return Code.GPUS, {**counts, "needed": needed, **kind(*these)}
        if search(tasks, every).layout is not None:
            return Code.BEHIND, {}
        alone = [replace(each, cpu_milli=0, memory_mb=0, extra=()) for each in tasks]
        if search(alone, every).layout is not None:
            return Code.RESOURCES, lacks(tasks, every)
        return Code.FRAGMENTED, lacks(alone, every)

    def _change(self, left: Field) -> None:
        self.free, self._ahead = left, self._ahead + 1
        self._every = self._at = None
        self._next = []
        self._counts.clear()
        self._why.clear()


class Leaving:
    """What becomes of some tasks as runs leave nodes, one after the other: only these nodes are looked at again."""

    def __init__(
        self, tasks: tuple[Tasks, ...], field: Field, shapes: Mapping[str, Shape], promised: Collection[str]
    ) -> None:
        self._groups, self._shapes, self._promised = grouped(tasks), shapes, frozenset(promised)
        # What has changed: the node as it is now, and how many of each group it holds.
        self._now: dict[str, tuple[Shape, list[int]]] = {}
        # For each group: how many of its tasks nodes hold, each alone, and how many nodes hold all of them.
        self._places, self._whole = list[int](), list[int]()
        mine = [shapes[name] for name in promised if name in shapes]
        for each in self._groups:
            holds = {shape: shape.holds(each) for shape in field}
            self._places.append(
                sum(here * len(field[shape]) for shape, here in holds.items() if here)
                - sum(holds[shape] for shape in mine)
            )
            self._whole.append(sum(len(field[shape]) for shape, here in holds.items() if self._is_whole(each, here)))

    def again(self) -> Leaving:
        """From the beginning."""
        found = copy(self)
        found._now, found._places, found._whole = {}, list(self._places), list(self._whole)
        return found

    @property
    def is_exact(self) -> bool:
        """Whether tasks that may fit do: equal ones do not compete."""
        return len(self._groups) == 1

    @property
    def may_fit(self) -> bool:
        return all(
            whole or places >= each.count
            for each, places, whole in zip(self._groups, self._places, self._whole, strict=True)
        )

    def may_fit_after(self, more: Mapping[str, Sizes]) -> bool:
        """Whether it may fit once this is free, too."""
        found = copy(self)
        found._now, found._places, found._whole = dict(self._now), list(self._places), list(self._whole)
        for name, sizes in more.items():
            found.free(name, sizes)
        return found.may_fit

    def add(self, holding: Holding) -> None:
        for name, sizes in holding.nodes.items():
            self.free(name, sizes)

    def remove(self, holding: Holding) -> None:
        for name, sizes in holding.nodes.items():
            self.free(name, sizes, -1)

    def free(self, name: str, sizes: Sizes, sign: int = 1) -> None:
        found = self._now.get(name)
        if found is None:
            if name not in self._shapes:
                return
            found = self._shapes[name], list(map(self._shapes[name].holds, self._groups))
        shape, held = found
        now = shape.plus(sizes) if sign > 0 else shape.less(sizes)
        self._now[name] = now, list(map(now.holds, self._groups))
        for at, (each, before, here) in enumerate(zip(self._groups, held, self._now[name][1], strict=True)):
            if name not in self._promised:
                self._places[at] += here - before
            self._whole[at] += self._is_whole(each, here) - self._is_whole(each, before)

    @staticmethod
    def _is_whole(each: Tasks, here: int) -> bool:
        """Whether one node takes all of them: those that spread do not go there together."""
        return here == each.count and (here == 1 or not each.spread)


@lru_cache(4096)
def kinds_of(tasks: tuple[Tasks, ...]) -> frozenset[Tasks]:
    return frozenset(one_gpu(each) for each in tasks if each.gpus)


def most_first(shape: Shape) -> tuple[int, int, int]:
    return -shape.gpus, -shape.cpu_milli, -shape.memory_mb
