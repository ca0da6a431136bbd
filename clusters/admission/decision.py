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
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from clusters.admission.codes import Code, Values
from clusters.admission.order import Level, PriorityClass, Share, in_order
from clusters.admission.packing import Field, Layout, Tasks, assign, joined
from clusters.admission.pool import Node, Pool
from clusters.admission.reasons import slices
from clusters.admission.taking import Holding, cheapest

# Part of a cloud's GPUs that one decision takes back at most, beside what its first run needs.
MOST_TAKEN = 10


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

    @cached_property
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
        self.pool = Pool(snapshot.nodes)
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
        values: dict[str, int | str] = {"gpus": gpus, **slices(ask.tasks)}
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
