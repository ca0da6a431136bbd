"""Decides which runs start now, wait, or can never start, and which give their GPUs back for them. Pure: equal snapshots give
equal decisions.

Runs start in order (`order.py`), each with all of its tasks or none. The first runs that wait for nodes of a kind keep as many as
they need; later runs only start on other nodes, or on these if their time limit ends before the nodes are free for the first one.
So small runs do not hold up a large one for ever, and a large one does not leave a whole cloud idle. A run that fits nowhere
takes GPUs back from runs of a lower level (`taking.py`). The exception is a run that its cloud is already placing, task by task:
it takes what fits and keeps nothing more.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice

from clusters.admission.codes import Code, Values
from clusters.admission.order import Level, PriorityClass, Share, in_order, levels
from clusters.admission.packing import Field, Layout, Tasks, joined
from clusters.admission.pool import Node, Pool
from clusters.admission.reasons import asked, gpus_asked
from clusters.admission.taking import MOST_CONSIDERED, Able, Holding, cheapest

# Runs and their levels, in the order in which they start.
_Earlier = tuple[tuple[str, Level], ...]
# Among so few waiting runs the turn of another one is found at once.
FEW = 50
# Part of a cloud's GPUs that one decision takes back at most, beside what its first run needs.
MOST_TAKEN = 10


@dataclass(frozen=True)
class Ask:
    """`tasks`: those that have no node yet. `admitted`: its cloud is already placing them. `ends`: when it would end by its time
    limit if it started now, in seconds since 1970. `person`: who started it."""

    run: str
    appcode: str
    tasks: tuple[Tasks, ...]
    admitted: bool = False
    priority_class: PriorityClass = "normal"
    ends: int | None = None
    person: str = ""

    @property
    def gpus(self) -> int:
        """Remembered. As `cached_property` would do it, which locks and takes five times as long."""
        found: int | None = self.__dict__.get("_gpus")
        if found is None:
            found = self.__dict__["_gpus"] = gpus_asked(self.tasks)
        return found


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
    """Decides the youngest run."""
    return Prospect(snapshot).verdict(ask)


class Prospect:
    """Decides runs that could be asked for, each as if it alone came after all others. What is left by those that start before
    it is computed once for all that start after the same ones. `calls`: how often it was asked."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._after: dict[_Earlier, _Decision] = {(): _Decision(snapshot)}
        self._turns: dict[Hashable, tuple[_Earlier, Level]] = {}
        self.calls = 0

    def verdict(self, ask: Ask) -> Verdict:
        self.calls += 1
        earlier, level = self._turn(ask)
        return self._after[earlier].fork().add(ask, level)

    def starts(self, ask: Ask, like: Ask) -> bool:
        """Whether `ask` starts now if its turn is that of `like`. Its own takes longer to find where many wait."""
        self.calls += 1
        turn = ask if len(self._snapshot.asks) <= FEW else like
        return self._after[self._turn(turn)[0]].starts(ask)

    def is_possible(self, ask: Ask) -> bool:
        """Whether it is not known that it can never start."""
        self.calls += 1
        return self._after[()].pool.never(ask.tasks) is None

    def frees(self, ask: Ask) -> set[int]:
        """When nodes must be free that are kept for runs before `ask`: until then others may use them."""
        kept = self._after[self._turn(ask)[0]].pool.until.values()
        return {until for until in kept if until is not None}

    def level(self, ask: Ask) -> Level:
        """By which right it would start."""
        share = self._snapshot.shares.get(ask.appcode)
        if share is None:
            return Level.SPARE if ask.priority_class == "spare" else Level.QUOTA
        own = [each for each in self._snapshot.asks if each.appcode == ask.appcode and not each.admitted]
        found = levels([*own, ask], share.quota, share.held, waiting=True)
        return next(level for each, level in found if each is ask)

    def _turn(self, ask: Ask) -> tuple[_Earlier, Level]:
        """The runs that start before `ask`, which depends on no more of it than this."""
        alike = ask.gpus, ask.appcode, ask.priority_class
        if alike in self._turns:
            return self._turns[alike]
        before = []
        for each, level in ordered(replace(self._snapshot, asks=(*self._snapshot.asks, ask))):
            if each is ask:
                break
            before.append((each, level))
        earlier = tuple((each.run, level) for each, level in before)
        if earlier not in self._after:
            known = max((each for each in self._after if earlier[: len(each)] == each), key=len)
            decision = self._after[known].fork()
            for each, level_of in before[len(known) :]:
                decision.add(each, level_of)
            self._after[earlier] = decision
        self._turns[alike] = earlier, level
        return earlier, level


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
        self._taken = set[str]()
        self._able_for: dict[Hashable, Able] = {}
        self._holders = {each.appcode for each in snapshot.holdings}
        self._leave = sum(node.whole.units for node in snapshot.nodes) // MOST_TAKEN
        self._has_taken = False
        self._in_vain: set[Hashable] = set()  # For those no runs are found to be taken back, until others are.
        self._rank = 0

    def fork(self) -> _Decision:
        """Another one that goes on from here."""
        found = copy.copy(self)
        found.pool = self.pool.fork()
        found._taken, found._in_vain = set(self._taken), set(self._in_vain)
        found._able_for = dict(self._able_for)
        return found

    def starts(self, ask: Ask) -> bool:
        """Whether `add` would say Fits. Changes nothing."""
        pool = self.pool.fork()
        return pool.take(ask.tasks, ask.ends) is not None or (
            ask.ends is not None and pool.take_hole(ask.tasks, ask.ends) is not None
        )

    def all(self) -> dict[str, Verdict]:
        return {ask.run: self.add(ask, level) for ask, level in ordered(self._snapshot)}

    def add(self, ask: Ask, level: Level) -> Verdict:
        pool, tasks = self.pool, ask.tasks
        if ask.admitted:
            return Verdict(Code.PLACING, asked(tasks), nodes=pool.fill(tasks))
        alike = tasks, pool.later(ask.ends), self._taker(ask, level)
        if alike in pool.stuck:
            return self._waits(*pool.why_waits(tasks))
        if (never := pool.never(tasks)) is not None:
            return Verdict(never[0], {**asked(tasks), **never[1]})
        counts = pool.counts(tasks)
        layout = pool.take(tasks, ask.ends)
        if layout is None and ask.ends is not None:
            layout = pool.take_hole(tasks, ask.ends)
        if layout is not None:
            return Verdict(Code.FITS, {**asked(tasks), **counts, **_right(level, ask.gpus)}, nodes=layout)
        code, told = pool.why_waits(tasks)
        if (gone := pool.await_ending(ask.run, tasks)) is not None:
            return self._waits(Code.TAKING_BACK, {**told, **_gone(gone)})
        if victims := self._take_back(ask, level):
            taken = sum(each.gpus for each in victims)
            names = tuple(each.run for each in victims)
            more = {"taken": taken, "runs": len(victims), **_gone(pool.await_ending(ask.run, tasks))}
            return self._waits(Code.TAKING_BACK, {**told, **more}, names)
        if not pool.keep(ask.run, tasks):
            pool.stuck.add(alike)
        elif latest := pool.promised[ask.run]:
            told = {**told, "latest": latest}
        return self._waits(code, told)

    def _take_back(self, ask: Ask, level: Level) -> Sequence[Holding]:
        """Chooses runs to be taken back; the caller keeps their nodes for `ask`."""
        pool, alike = self.pool, (ask.tasks, self._taker(ask, level))
        if alike in self._in_vain:
            return ()
        able, tasks = self._able(ask, level), ask.tasks
        found = cheapest(able, pool.leaving(tasks), lambda runs: pool.would_fit(tasks, runs)) if able.holdings else ()
        if not found:
            self._in_vain.add(alike)
            return ()
        taken = sum(each.gpus for each in found)
        if self._has_taken and taken > self._leave:
            self._in_vain.add(alike)
            return ()
        self._leave, self._has_taken = self._leave - taken, True
        self._taken |= {each.run for each in found}
        self._able_for.clear()
        pool.end(found)
        self._in_vain.clear()
        return found

    def _able(self, ask: Ask, level: Level) -> Able:
        """The first that yield, in order of price: those of lower levels, then others of its own appcode."""
        who = self._taker(ask, level)
        if who in self._able_for:
            return self._able_for[who]
        levels, appcodes = self._by_price
        lower = chain.from_iterable(levels[other] for other in Level if other < level)
        mine = (each for each in appcodes[ask.appcode] if each.level >= level)
        able = (each for each in chain(lower, mine) if each.run not in self._taken and each.yields_to(ask, level))
        found = self._able_for[who] = Able(list(islice(able, MOST_CONSIDERED)))
        return found

    @cached_property
    def _by_price(self) -> tuple[Mapping[Level, list[Holding]], Mapping[str, list[Holding]]]:
        """Runs that may be taken back, by level and by appcode."""
        levels, appcodes = defaultdict[Level, list[Holding]](list), defaultdict[str, list[Holding]](list)
        for each in sorted(self._snapshot.holdings, key=lambda each: each.price):
            levels[each.level].append(each)
            appcodes[each.appcode].append(each)
        return levels, appcodes

    def _taker(self, ask: Ask, level: Level) -> Hashable:
        """Equal for runs to which the same others yield: class counts in one's own appcode alone."""
        return (level, ask.appcode, ask.priority_class) if ask.appcode in self._holders else level

    def _waits(self, code: Code, values: Values, takes: tuple[str, ...] = ()) -> Verdict:
        self._rank += 1
        return Verdict(code, values, self._rank, takes=takes)


def _gone(at: int | None) -> Values:
    return {"gone": at} if at else {}


def _right(level: Level, gpus: int) -> Values:
    return {} if level == Level.QUOTA or not gpus else {"spare" if level == Level.SPARE else "borrowed": gpus}
