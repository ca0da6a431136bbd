"""Decides which runs start now, wait, or can never start, and which give their GPUs back for them. Pure: equal snapshots give
equal decisions.

Runs start in order (`order.py`), each with all of its tasks or none. The first runs that wait for nodes of a kind keep as many as
they need; later runs only start on other nodes, or on these if their time limit ends before the nodes are free for the first one.
So small runs do not hold up a large one for ever, and a large one does not leave a whole cloud idle. A run that fits nowhere
takes GPUs back from runs of a lower level (`taking.py`). The exception is a run that its cloud is already placing, task by task:
it takes what fits and keeps nothing more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from math import inf

from clusters.admission.codes import Code
from clusters.admission.demand import GPU, PARTS, keeps_away
from clusters.admission.order import Level, PriorityClass, Share, in_order
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
    joined,
    search,
    split,
    sums,
    why_never,
)
from clusters.admission.taking import Holding, cheapest

Values = Mapping[str, int | str]
# Waiting runs that keep nodes, for each kind of nodes; more would leave too many idle.
MOST_KEEPING = 3
# Part of a cloud's GPUs that one decision takes back at most, beside what its first run needs.
MOST_TAKEN = 10
NO_SIZES = Sizes()


@dataclass(frozen=True)
class Node:
    """`free` leaves out what running pods hold, those of others too. `drained`: what is free once all runs have ended; None for
    `whole`. `ready`: takes tasks now. `promised`: runs have places there that they have not taken yet. `ending`: what runs hold
    that are being ended. `ends`: when the last run there ends by its time limit, in seconds since 1970; None if one has none."""

    name: str
    whole: Shape
    free: Shape
    ready: bool = True
    drained: Shape | None = None
    promised: bool = False
    ending: Sizes = NO_SIZES
    ends: int | None = None


@dataclass(frozen=True)
class Ask:
    """`tasks`: those that have no node yet. `admitted`: its cloud is already placing them. `ends`: when it would end by its time
    limit if it started now, in seconds since 1970."""

    run: str
    appcode: str
    tasks: tuple[Tasks, ...]
    admitted: bool = False
    priority_class: PriorityClass = "normal"
    ends: int | None = None

    @property
    def gpus(self) -> int:
        return sum(each.count * each.whole_gpus for each in self.tasks)


@dataclass(frozen=True)
class Snapshot:
    """`asks`: oldest first. `shares` by appcode; without any, nobody has a quota. `holdings`: runs with places that may have to
    give them back; without those of an appcode none of its runs are taken."""

    nodes: tuple[Node, ...]
    asks: tuple[Ask, ...]
    shares: Mapping[str, Share] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`rank`: place among the waiting runs from 1; 0 for a run that starts now or never, or that is being placed. `nodes`: where
    its tasks go, with Fits (as in `packing.assign`) and Placing. `takes`: runs that are to be taken back for it. `values`: see
    `words.sentence`."""

    code: Code
    values: Values
    rank: int = 0
    nodes: Layout | None = None
    takes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outlook:
    """`left`: what is free of each ready node after all runs that start or are being placed, also of nodes that are kept. `kept`:
    the run that keeps a node, by the name of the node; nodes without free GPUs are kept, too, until the runs there end.
    `verdicts`: as of `decide`."""

    left: Field
    kept: Mapping[str, str]
    verdicts: Mapping[str, Verdict]


def decide(snapshot: Snapshot) -> dict[str, Verdict]:
    """Verdicts in the order in which the runs start."""
    return _Decision(snapshot).all()


def room(snapshot: Snapshot) -> Field:
    """Returns what the runs of `snapshot` leave for a later one."""
    decision = _Decision(snapshot)
    decision.all()
    return decision.pool.free


def outlook(snapshot: Snapshot) -> Outlook:
    """Returns what becomes of each node by the same decision."""
    decision = _Decision(snapshot)
    verdicts, pool = decision.all(), decision.pool
    return Outlook(joined(pool.free, pool.kept), pool.keeper, verdicts)


def advise(snapshot: Snapshot, ask: Ask) -> Verdict:
    """Decides the youngest run. If it does not fit now, its values say with how many tasks of its largest role it would: `offer`
    of `offer_role`; without them there is no such number."""
    decision = _Decision(snapshot)
    for each, level in ordered(replace(snapshot, asks=(*snapshot.asks, ask))):
        if each is ask:
            break
        decision.add(each, level)
    room = decision.pool.room()
    verdict = decision.add(ask, level)
    if verdict.code.fits == "now":
        return verdict
    largest = max(ask.tasks, key=lambda each: each.count, default=None)
    if largest is None or largest.count < 2:
        return verdict

    def fits(count: int) -> bool:
        tasks = [replace(each, count=count) if each is largest else each for each in ask.tasks]
        return room is not None and assign(tasks, *room).layout is not None

    # Fewer tasks fit wherever more do.
    count = bisect_left(range(1, largest.count), True, key=lambda count: not fits(count))
    return replace(verdict, values={**verdict.values, "offer": count, "offer_role": largest.role}) if count else verdict


def ordered(snapshot: Snapshot) -> Iterable[tuple[Ask, Level]]:
    """In which order runs start, and by which right. Runs that their cloud is placing are first."""
    placing = [(ask, Level.QUOTA) for ask in snapshot.asks if ask.admitted]
    waiting = [ask for ask in snapshot.asks if not ask.admitted] if placing else snapshot.asks
    capacity = sum(node.whole.gpus for node in snapshot.nodes)
    return chain(placing, in_order(waiting, snapshot.shares, capacity))


class _Decision:
    """Decides runs in order."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.pool = _Pool(snapshot.nodes)
        self._holdings = {each.run: each for each in snapshot.holdings}
        self._holders = {each.appcode for each in snapshot.holdings}
        self._leave = sum(node.whole.gpus for node in snapshot.nodes) // MOST_TAKEN
        self._has_taken = False
        self._in_vain: set[Hashable] = set()  # For those no runs are found to be taken back, until others are.
        self._able: dict[Hashable, list[Holding]] = {}
        self._rank = 0

    def all(self) -> dict[str, Verdict]:
        return {ask.run: self.add(ask, level) for ask, level in ordered(self._snapshot)}

    def add(self, ask: Ask, level: Level) -> Verdict:
        pool, alike = self.pool, (ask.tasks, ask.ends, self._taker(ask, level))
        same = pool.waits.get(alike)
        if same is not None and not ask.admitted:
            return self._waits(*same)
        gpus = ask.gpus
        values: dict[str, int | str] = {"gpus": gpus, **_slices(ask.tasks)}
        if ask.admitted:
            return Verdict(Code.PLACING, values, nodes=pool.fill(ask.tasks))
        if (never := pool.never(ask.tasks)) is not None:
            return Verdict(never[0], {**values, **never[1]})
        counts = pool.counts(ask.tasks)
        layout = pool.take(ask.tasks, ask.ends)
        if layout is None and ask.ends is not None:
            layout = pool.take_hole(ask.tasks, ask.ends)
        if layout is not None:
            return Verdict(Code.FITS, {**values, **counts, **_right(level, gpus)}, nodes=layout)
        code, why = pool.why_waits(ask.tasks)
        told = {**values, **counts, **why}
        if pool.await_ending(ask.run, ask.tasks):
            return self._waits(Code.TAKING_BACK, told)
        if victims := self._take_back(ask, level):
            taken = sum(each.gpus for each in victims)
            names = tuple(each.run for each in victims)
            return self._waits(Code.TAKING_BACK, told | {"taken": taken, "runs": len(victims)}, names)
        if not pool.keep(ask.run, ask.tasks):
            pool.waits[alike] = code, told
        elif latest := pool.promised[ask.run]:
            told |= {"latest": latest}
        return self._waits(code, told)

    def _take_back(self, ask: Ask, level: Level) -> Sequence[Holding]:
        """Chooses runs to be taken back, and keeps their nodes for `ask`."""
        who = self._taker(ask, level)
        alike = ask.tasks, who
        if alike in self._in_vain:
            return ()
        if who not in self._able:
            self._able[who] = [each for each in self._holdings.values() if each.yields_to(ask, level)]
        able = self._able[who]
        found = cheapest(able, lambda victims: self.pool.would_fit(ask.tasks, victims)) if able else ()
        if not found:
            self._in_vain.add(alike)
            return ()
        taken = sum(each.gpus for each in found)
        if self._has_taken and taken > self._leave:
            return ()
        self._leave, self._has_taken = self._leave - taken, True
        for each in found:
            del self._holdings[each.run]
        self.pool.end(found)
        self.pool.await_ending(ask.run, ask.tasks)
        self._in_vain.clear()
        self._able.clear()
        return found

    def _taker(self, ask: Ask, level: Level) -> Hashable:
        """Equal for runs to which the same others yield: class counts in one's own appcode alone."""
        return (level, ask.appcode, ask.priority_class) if ask.appcode in self._holders else level

    def _waits(self, code: Code, values: Values, takes: tuple[str, ...] = ()) -> Verdict:
        self._rank += 1
        return Verdict(code, values, self._rank, takes=takes)


def _right(level: Level, gpus: int) -> Values:
    return {} if level == Level.QUOTA or not gpus else {"spare" if level == Level.SPARE else "borrowed": gpus}


class _Pool:
    """What is left of the nodes while runs are decided in order. Answers are remembered by tasks until the nodes change, since
    most of many waiting runs are alike."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._empty = group((node.name, node.whole) for node in nodes)
        self._drained = {node.name: node.drained or node.whole for node in nodes if node.ready}
        self._first = self.free = group((node.name, node.free) for node in nodes if node.ready)
        self._promised = {node.name for node in nodes if node.promised}
        self._ahead = 0  # Earlier runs that take some of them.
        self.kept: Field = {}  # Nodes that earlier waiting runs keep, and which run keeps each.
        self.keeper: dict[str, str] = {}
        self._keeping = Counter[frozenset[Tasks]]()
        self._every: Field = self.free  # Free resources, including those that earlier runs keep.
        self._never: dict[tuple[Tasks, ...], tuple[Code, Values] | None] = {}
        self._failed: set[tuple[Tasks, ...]] = set()  # Free nodes only become fewer, so these stay without a place.
        self._counts: dict[frozenset[Tasks], Values] = {}
        self._why: dict[tuple[Tasks, ...], tuple[Code, Values]] = {}
        # What waits and keeps nothing more.
        self.waits: dict[Hashable, tuple[Code, Values]] = {}
        self._ending = {node.name: node.ending for node in nodes if node.ready and node.ending != NO_SIZES}
        self._ends = {node.name: node.ends for node in nodes}
        # When a run that keeps nodes can start at the latest, by the time limits there, and None if nobody knows.
        self.until: dict[str, int | None] = {}
        # The same, where it holds whatever earlier runs do.
        self.promised: dict[str, int | None] = {}
        # What earlier runs ask for that wait, and whether they start on as many nodes as they keep.
        self._before: dict[tuple[Tasks, ...], bool] = {}
        self._failed_later: set[Hashable] = set()

    def room(self) -> tuple[Field, set[str]] | None:
        """What is left, and the nodes of which a part is promised; None while no node is known."""
        return (self.free, set(self._promised)) if self._empty else None

    def never(self, tasks: tuple[Tasks, ...]) -> tuple[Code, Values] | None:
        if not self._empty:
            return None
        if tasks not in self._never:
            why = why_never(tasks, self._empty)
            self._never[tasks] = (Code(why), _why_never(Code(why), tasks, self._empty)) if why else None
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
        found = assign(tasks, self.free, self._promised)
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

    def take_hole(self, tasks: tuple[Tasks, ...], ends: int) -> Layout | None:
        """Takes what is free on nodes that are kept, and not needed before `ends`."""
        if (tasks, ends) in self._failed_later:
            return None
        open_ = {name for name, run in self.keeper.items() if ends <= (self.until[run] or 0)}
        _, holes = split(self.kept, open_)
        found = assign(tasks, joined(self.free, holes), self._promised) if open_ else None
        if found is None or found.layout is None:
            self._failed_later.add((tasks, ends))
            return None
        self._promised |= {name for _, name in found.layout}
        holes, left = split(found.left, {name for shape in self.free for name in self.free[shape]})
        self.kept = joined(split(self.kept, open_)[0], holes)
        self._change(left)
        return found.layout

    def await_ending(self, run: str, tasks: tuple[Tasks, ...]) -> bool:
        """Keeps the nodes on which the tasks fit as soon as those runs have gone that are being ended: what is free already, and
        no more of the others than it takes. So what the first of these runs leave is not given to others meanwhile."""
        if not self._ending or tasks in self._failed_later:
            return False
        names = sorted(self._ending)

        def placed(count: int) -> Layout | None:
            return assign(
                tasks, freed(self.free, {name: self._ending[name] for name in names[:count]}), self._promised
            ).layout

        layout = placed(len(names))
        if layout is None:
            self._failed_later.add(tasks)
            return False
        if len(names) > 1:
            layout = placed(bisect_left(range(len(names)), True, key=lambda count: placed(count) is not None)) or layout
        mine = {name for _, name in layout}
        self._keep(run, mine, None)
        self._ending = {name: sizes for name, sizes in self._ending.items() if name not in mine}
        return True

    def would_fit(self, tasks: tuple[Tasks, ...], holdings: Iterable[Holding]) -> bool:
        """Whether the tasks fit once these runs are gone, too."""
        return assign(tasks, freed(self.free, self._with(holdings)), self._promised).layout is not None

    def end(self, holdings: Iterable[Holding]) -> None:
        self._ending = self._with(holdings)
        self._failed_later.clear()

    def _with(self, holdings: Iterable[Holding]) -> dict[str, Sizes]:
        found = dict(self._ending)
        for each in holdings:
            for name, sizes in each.nodes.items():
                found[name] = found.get(name, NO_SIZES) + sizes
        return found

    def keep(self, run: str, tasks: tuple[Tasks, ...]) -> bool:
        """Keeps nodes that hold all of the tasks once the runs there have ended: those that are free first by the time limits
        there, then those with the most free resources. False if nothing is kept; then equal tasks will keep nothing either."""
        kinds = frozenset(_one_gpu(each) for each in tasks if each.gpus)
        if self._keeping[kinds] == MOST_KEEPING:
            self._before[tasks] = False
            return False
        shapes = sorted(self.free, key=_most_first)
        names = [
            name
            for _, alike in groupby(shapes, key=_most_first)
            for name in sorted(name for shape in alike for name in self.free[shape])
        ]
        names.sort(key=lambda name: inf if (ends := self._ends[name]) is None else ends)
        left = {name: self._drained[name] for name in names}
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

    def _is_sure(self, tasks: tuple[Tasks, ...]) -> bool:
        """Whether earlier runs that start elsewhere than on the nodes that they keep leave as much for these tasks."""
        shapes = set(self._drained.values())
        for earlier, is_steady in self._before.items():
            theirs = [shape for shape in shapes if any(map(shape.holds, earlier))]
            if any(shape.holds(each) for shape in theirs for each in tasks) and not (
                is_steady and len({tuple(map(shape.holds, tasks)) for shape in theirs}) == 1
            ):
                return False
        return True

    def _keep(self, run: str, names: Collection[str], until: int | None) -> None:
        self.free, kept = split(self.free, names)
        self.kept = joined(self.kept, kept)
        self.keeper |= dict.fromkeys(names, run)
        self.until[run] = until
        self._failed_later.clear()

    def counts(self, tasks: tuple[Tasks, ...]) -> Values:
        """GPUs that suit the tasks: `total`, `free` (or kept for an earlier run), and `before`: those that `ahead` runs take."""
        kinds = frozenset(_one_gpu(each) for each in tasks if each.gpus)
        if kinds not in self._counts:
            free = _gpus(self._every, kinds)
            self._counts[kinds] = {
                "total": _gpus(self._empty, kinds),
                "free": free,
                "before": _gpus(self._first, kinds) - free,
                "ahead": self._ahead,
            }
        return self._counts[kinds]

    def why_waits(self, tasks: tuple[Tasks, ...]) -> tuple[Code, Values]:
        if tasks not in self._why:
            self._why[tasks] = self._why_waits(tasks) if self._first else (Code.NO_NODES, {})
        return self._why[tasks]

    def _why_waits(self, tasks: tuple[Tasks, ...]) -> tuple[Code, Values]:
        every = self._every
        for these in _by_kind(tasks):
            needed, counts = sum(each.count * each.gpus for each in these), self.counts(these)
            if needed > int(counts["free"]):
                return Code.GPUS, {**counts, "needed": needed, **_kind(*these)}
        if search(tasks, every).layout is not None:
            return Code.BEHIND, {}
        alone = [replace(each, cpu_milli=0, memory_mb=0, extra=()) for each in tasks]
        if search(alone, every).layout is not None:
            return Code.RESOURCES, _lacks(tasks, every)
        return Code.FRAGMENTED, _lacks(alone, every)

    def _change(self, left: Field) -> None:
        self.free, self._ahead = left, self._ahead + 1
        self._every = joined(self.free, self.kept)
        self._counts.clear()
        self._why.clear()
        self.waits.clear()


def _lacks(tasks: Sequence[Tasks], every: Field) -> Values:
    """Describes the role whose tasks find no place: `fitting` of `count` do, each needs `size` GPUs (…), and the largest block
    that the others leave is `block` GPUs. `resource`: the first of which no node with these GPUs has enough for a task, or ""."""
    filled = fill(tasks, every)
    missing = filled.missing
    if missing is None:  # Found by the exact search alone.
        return {}
    count = sum(each.count for each in tasks if replace(each, count=missing.count) == missing)
    suiting = [shape for shape in filled.left if shape.suits(missing)]
    able = [shape for shape in suiting if shape.has(missing.resource) >= missing.gpus]
    found = {**_describe(missing, able), **({} if able else {"resource": ""})}
    return found | {
        "count": count, "fitting": count - missing.count, "block": max([0, *(shape.has(missing.resource) for shape in suiting)]),
        "roles": sum(1 for each in tasks if each.count),
    }  # fmt: skip


def _why_never(code: Code, tasks: Sequence[Tasks], empty: Field) -> Values:
    if code is Code.OVER_POOL:
        for name, needed, have in sums(tasks, empty):
            if needed > have:
                return {"resource": name, "needed": needed, "most": have}
        return {"resource": "", **_lacks(tasks, empty)}
    for each in tasks:
        suiting = [shape for shape in empty if shape.suits(each)]
        if each.count and not any(shape.holds(each) for shape in suiting):
            return {**_describe(each, suiting), **_outside(each, empty)}
    return {}


def _outside(tasks: Tasks, empty: Field) -> Values:
    """What keeps the tasks out of every node that could have them, apart from its size: a label that none has ("no_label"), or a
    taint that they do not tolerate ("taint")."""
    for label in sorted(tasks.labels):
        if not any(label in shape.labels for shape in empty):
            return {"no_label": _label(label)}
    able = [shape for shape in empty if tasks.labels <= shape.labels]
    if not able:
        return {"no_label": _labels(tasks)}
    open_to = replace(tasks, tolerated=tasks.tolerated | {taint for shape in able for taint in shape.taints})
    barred = [shape for shape in able if shape.holds(replace(open_to, count=1)) and not shape.admits(tasks)]
    taints = {taint for shape in barred for taint in shape.taints if "=" in taint}
    taint = keeps_away(taints, tasks.tolerated)
    return {"taint": taint} if taint else {}


def _describe(tasks: Tasks, suiting: Iterable[Shape]) -> Values:
    shapes = list(suiting)
    found: dict[str, int | str] = {
        "role": tasks.role, "size": tasks.gpus, "cpu_milli": tasks.cpu_milli, "memory_mb": tasks.memory_mb,
        "nodes": len(shapes), "resource": "", **_kind(tasks),
    }  # fmt: skip
    gpus = (
        ("gpus" if tasks.resource == GPU else tasks.resource),
        tasks.gpus,
        [each.has(tasks.resource) for each in shapes],
    )
    for name, needed, have in (
        gpus,
        ("cpu_milli", tasks.cpu_milli, [each.cpu_milli for each in shapes]),
        ("memory_mb", tasks.memory_mb, [each.memory_mb for each in shapes]),
        *((name, needed, [each.has(name) for each in shapes]) for name, needed in tasks.extra),
    ):
        if needed > (most := max([0, *have])):
            return found | {"resource": name, "needed": needed, "most": most}
    return found


def _by_kind(tasks: Sequence[Tasks]) -> list[tuple[Tasks, ...]]:
    """The tasks with GPUs, first by what suits them, then, where they may go to the same nodes, together."""
    found: dict[object, list[Tasks]] = {}
    for key in (_one_gpu, lambda each: (each.resource, each.gpu_model)):
        for each in tasks:
            if each.gpus:
                found.setdefault(key(each), []).append(each)
    return list(dict.fromkeys(map(tuple, found.values())))


def _slices(tasks: Sequence[Tasks]) -> Values:
    """How many GPUs that are not whole the tasks ask for; `unit` where they are of one kind."""
    sliced = [each for each in tasks if each.gpus and each.count and not each.whole_gpus]
    kinds = {each.resource for each in sliced}
    return {
        "slices": sum(each.count * each.gpus for each in sliced), "unit": kinds.pop() if len(kinds) == 1 else "",
    } if sliced else {}  # fmt: skip


def _kind(*tasks: Tasks) -> Values:
    """What the GPUs of equal tasks are, for sentences. `unit`: of what is not whole or not NVIDIA's. `labels`: of their nodes."""
    unit = "" if tasks[0].resource == GPU else tasks[0].resource
    labels = {_labels(each) for each in tasks}
    named = labels.pop() if len(labels) == 1 else ""
    model = tasks[0].gpu_model if not unit or unit == PARTS else ""
    return {
        "model": model, **({"unit": unit} if unit else {}), **({"labels": named} if named else {}),
    }  # fmt: skip


def _labels(tasks: Tasks) -> str:
    """Those that nodes can have: others keep a run off some nodes."""
    return ", ".join(_label(each) for each in sorted(tasks.labels) if " " not in each[0])


def _label(label: tuple[str, str]) -> str:
    return "=".join(label)


def _most_first(shape: Shape) -> tuple[int, int, int]:
    return -shape.gpus, -shape.cpu_milli, -shape.memory_mb


def _one_gpu(tasks: Tasks) -> Tasks:
    """Equal for all tasks that the same nodes suit."""
    return Tasks("", 1, 1, tasks.gpu_model, 0, 0, tasks.resource, tasks.labels, tasks.tolerated)


def _gpus(nodes: Field, kinds: Iterable[Tasks]) -> int:
    """GPUs of the nodes that suit any of these, or slices where they are such."""
    wanted = list(kinds)
    if all(kind.resource == GPU for kind in wanted):
        return sum(
            max(0, shape.has(GPU)) * len(names) for shape, names in nodes.items() if any(map(shape.suits, wanted))
        )
    found = 0
    for shape, names in nodes.items():
        resources = {kind.resource for kind in wanted if shape.suits(kind)}
        found += len(names) * sum(max(0, shape.has(resource)) for resource in resources)
    return found
