"""When runs that wait will probably start. Pure.

The idea: the decision that starts runs (`decision.py`) is replayed in virtual time, several times, each time with other run times
for the runs that run and those that wait, drawn from how long such runs lasted before. A run probably starts by the time at which
it has in half of the replays, and likely by that of nine of ten. Runs that are submitted later are not foreseen.
"""

from __future__ import annotations

import datetime as dt
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil
from typing import Generic, Literal, TypeVar

from billing.sums.decay import Stretch, decayed
from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, decide
from clusters.admission.order import Level, Share, Sized, levels
from clusters.admission.packing import Layout, Sizes, Tasks
from clusters.admission.pool import Node
from clusters.admission.taking import Holding
from clusters.admission.windows import NOBODY, Windows, tolerating

# Seconds: how long runs take to begin and to end at most (a test compares them with clusters/runs/placing), and until one is gone
# that is taken back.
TO_BEGIN, TO_END, GRACE = 600, 180, 30
# How long a run is left alone from its beginning, and of how many seconds of work it is taken to lose at most.
PROTECTED: Mapping[Level, int] = {Level.SPARE: 60, Level.BORROWED: 600, Level.QUOTA: 600}
MOST_LOST = 4 * 3600
# A decision is made each minute, and later in a replay less often: each time that this part of the time has passed.
TICK, PART = 60, 20
# Run times are drawn from at least so many that lasted longer than the run has already.
LEAST = 8
NOTHING, NO_WINDOWS = Sizes(), Windows()


@dataclass(frozen=True)
class Living:
    """A run that has held `nodes` since then. `ask`: what it would ask for if it were taken back now. `ends`: when it is gone by
    its time limit. `is_ending`: it is being taken off its nodes; `returns`: and waits again then."""

    ask: Ask
    nodes: Mapping[str, Sizes]
    since: int
    ends: int | None = None
    is_ending: bool = False
    returns: bool = False


@dataclass(frozen=True)
class Scene:
    """A cloud as it is `at` that moment, in seconds since 1970, with the runs that hold something there. Their names are
    numbers that grow. `asks`: those that wait, oldest first. No node is promised. `windows`: nodes open and close with them."""

    at: int
    nodes: tuple[Node, ...]
    asks: tuple[Ask, ...]
    shares: Mapping[str, Share]
    living: tuple[Living, ...] = ()
    windows: Windows = NO_WINDOWS


@dataclass(frozen=True)
class Likely:
    """By when a run starts in half of the replays, and in nine of ten; in seconds since 1970."""

    p50: int
    p90: int


def coarser(elapsed: int) -> int:
    """Seconds until the next decision."""
    return max(TICK, elapsed // PART // TICK * TICK)


def forecast(scene: Scene, draws: Iterable[Mapping[str, int]], horizon: int) -> dict[str, Likely]:
    """Returns by when runs start that wait. `draws`: how long each run lasts from its start, once for each replay. Runs are left
    out that do not start within `horizon` seconds in nine of ten."""
    found = defaultdict[str, list[int]](list)
    count = 0
    for seconds in draws:
        count += 1
        for run, at in starts(scene, seconds, horizon).items():
            found[run].append(at)
    half, most = _place(count, 0.5), _place(count, 0.9)
    likely = {}
    for run, several in found.items():
        if len(several) > most:
            several.sort()
            likely[run] = Likely(several[half], several[most])
    return likely


def _place(count: int, share: float) -> int:
    """The index of the one of `count` sorted numbers below which one more of them falls with that probability."""
    return max(0, min(count, ceil(share * (count + 1))) - 1)


def starts(
    scene: Scene, seconds: Mapping[str, int], horizon: int, step: Callable[[int], int] = coarser
) -> dict[str, int]:
    """When the runs that wait start, if they and those that run last so long; those that start within `horizon` seconds."""
    return _Replay(scene, seconds, step).play(scene.at + horizon)


def bound(tasks: Sequence[Tasks], layout: Layout) -> dict[str, Sizes]:
    """What the tasks of a run take of each node, if they go to the first nodes of its layout. Roles that ask for the same share
    what the layout has under the first of them (`packing.assign`)."""
    open_ = defaultdict[Tasks, dict[str, int]](dict)
    kind_of = {each.role: replace(each, role="", count=0) for each in tasks}
    for (role, node), count in layout.items():
        open_[kind_of[role]][node] = count
    short = Counter[Tasks]()
    for each in tasks:
        short[kind_of[each.role]] += each.count
    found: dict[str, Sizes] = {}
    for kind, count in short.items():
        for node, most in open_[kind].items():
            if here := min(count, most):
                count -= here
                found[node] = found.get(node, NOTHING) + Sizes.of_tasks(kind, here)
    return found


S = TypeVar("S", bound=Sized)


class Account(Generic[S]):
    """What the runs of an appcode hold, as time passes. `elsewhere`: GPUs on other clouds that are not spare, where nothing
    changes; `urgent`: urgent ones of these."""

    def __init__(self, share: Share, at: int, elsewhere: int = 0, spare: int = 0, urgent: int = 0) -> None:
        self.terms, self.used, self.at = share, share.used, at
        self.holding: dict[int, S] = {}
        self.normal, self.spare, self.urgent = elsewhere, spare, urgent
        self._elsewhere, self._inside = elsewhere, 0
        self._levels: dict[int, Level] | None = None

    def change(self, number: int, run: S, now: int, sign: int) -> None:
        """Counts a run that begins (1) or ends (-1) to hold its GPUs."""
        self.fade(now)
        if run.priority_class == "spare":
            self.spare += sign * run.gpus
        else:
            self.normal += sign * run.gpus
            self.urgent += sign * run.gpus * (run.priority_class == "urgent")
            self._levels = None
        if sign > 0:
            self.holding[number] = run
        else:
            del self.holding[number]

    def fade(self, now: int) -> None:
        if now > self.at:
            self.used = decayed(self.used, self.at, [Stretch(self.at, now, self.normal)], now)
            self.at = now

    @property
    def levels(self) -> Mapping[int, Level]:
        """Of the runs here that are not spare."""
        if self._levels is None:
            normal = {id(run): number for number, run in self.holding.items() if run.priority_class != "spare"}
            several = [self.holding[number] for number in sorted(normal.values())]
            before, quota = min(self._elsewhere, self.terms.quota), self.terms.quota
            if self.terms.limit <= quota:  # It borrows nothing: what it holds beyond its quota was inside once.
                before, quota = self._elsewhere, self.normal
            self._levels = {normal[id(run)]: level for run, level in levels(several, quota, before, before)}
            inside = (self.holding[number].gpus for number, level in self._levels.items() if level == Level.QUOTA)
            self._inside = before + sum(inside)
        return self._levels

    @property
    def inside(self) -> int:
        _ = self.levels
        return self._inside

    def share(self, now: int) -> Share:
        self.fade(now)
        inside, terms = self.inside, self.terms
        return replace(
            terms, held=inside, borrowed=self.normal - inside, spare=self.spare, used=self.used, people=(),
            urgent=self.urgent,
        )  # fmt: skip


@dataclass(eq=False)
class _Run:
    """`times`: how often it was taken back."""

    ask: Ask
    nodes: Mapping[str, Sizes] = field(default_factory=dict)
    since: int = 0
    ends: int | None = None
    is_ending: bool = False
    times: int = 0

    # As `order.levels` sees it.
    @property
    def appcode(self) -> str:
        return self.ask.appcode

    def __post_init__(self) -> None:
        self.name, self.number = self.ask.run, int(self.ask.run)
        self.gpus, self.priority_class = self.ask.gpus, self.ask.priority_class


class _Replay:
    def __init__(self, scene: Scene, seconds: Mapping[str, int], step: Callable[[int], int]) -> None:
        self._at = self._now = scene.at
        self._seconds, self._step = seconds, step
        self._nodes = {node.name: node for node in scene.nodes}
        self._waiting = {int(ask.run): _Run(ask) for ask in scene.asks}
        self._wanted = {ask.run for ask in scene.asks}
        self._on = defaultdict[str, set[_Run]](set)
        self._events: list[tuple[int, int, int, str, _Run | None]] = []
        self._touched: set[str] = set()
        self._found: dict[str, int] = {}
        here, spare, urgent = Counter[str](), Counter[str](), Counter[str]()
        living = [_Run(each.ask, each.nodes, each.since, each.ends, each.is_ending) for each in scene.living]
        for run in living:
            (spare if run.priority_class == "spare" else here)[run.appcode] += run.gpus
            urgent[run.appcode] += run.gpus * (run.priority_class == "urgent")
        self._accounts = {
            name: Account[_Run](
                share,
                scene.at,
                max(0, share.held + share.borrowed - here[name]),
                max(0, share.spare - spare[name]),
                max(0, share.urgent - urgent[name]),
            )
            for name, share in scene.shares.items()
        }
        for run, each in zip(living, scene.living, strict=True):
            self._hold(run)
            if run.is_ending:
                self._plan(scene.at + GRACE, "gone" if each.returns else "ends", run)
            else:
                self._plan(max(scene.at, run.since + seconds[run.name]), "ends", run)
                self._plan_free(run)
        self._plan(scene.at + 1, "look")
        self._windows = scene.windows
        for window in scene.windows.windows:
            for moment in (window.starts_at, window.ends_at):
                if (at := ceil(moment.timestamp())) > scene.at:
                    self._plan(at, "look")

    def play(self, until: int) -> dict[str, int]:
        while self._events and self._wanted:
            step = self._step(self._events[0][0] - self._at)
            at = -(-self._events[0][0] // step) * step
            if at > until:
                break
            changed = False
            while self._events and self._events[0][0] <= at:
                self._now, _, times, kind, run = heappop(self._events)
                if run is None:
                    changed = True
                elif times == run.times:
                    self._end(run, is_over=kind == "ends")
                    changed = True
            self._now = at
            if changed and self._waiting:
                self._decide()
        return self._found

    def _plan(self, at: int, kind: Literal["ends", "gone", "look"], run: _Run | None = None) -> None:
        number, times = (run.number, run.times) if run else (-1, 0)
        heappush(self._events, (at, number, times, kind, run))

    def _plan_free(self, run: _Run) -> None:
        """It may be taken back from then on."""
        if (at := run.since + PROTECTED[Level.SPARE if run.priority_class == "spare" else Level.QUOTA]) > self._now:
            self._plan(at, "look")

    def _hold(self, run: _Run) -> None:
        for name in run.nodes:
            self._on[name].add(run)
        if account := self._accounts.get(run.appcode):
            account.change(run.number, run, self._now, 1)

    def _end(self, run: _Run, *, is_over: bool) -> None:
        for name, sizes in run.nodes.items():
            self._on[name].discard(run)
            if node := self._nodes.get(name):
                self._nodes[name] = replace(node, free=node.free.plus(sizes))
        self._touched |= run.nodes.keys()
        if account := self._accounts.get(run.appcode):
            account.change(run.number, run, self._now, -1)
        if not is_over:
            run.nodes, run.is_ending = {}, False
            self._waiting[run.number] = run

    def _decide(self) -> None:
        verdicts = decide(self._snapshot())
        has_started = False
        for name, verdict in verdicts.items():
            run = self._waiting[int(name)]
            if verdict.code in (Code.FITS, Code.PLACING):
                self._start(run, bound(run.ask.tasks, verdict.nodes or {}))
                has_started = True
            elif verdict.code.fits == "never":
                del self._waiting[run.number]
                self._wanted.discard(name)
        for verdict in verdicts.values():
            for name in verdict.takes:
                self._take(self._holder(int(name)))
        if has_started:
            self._plan(self._now + 1, "look")  # What it was promised beside what it took is free then.

    def _start(self, run: _Run, nodes: Mapping[str, Sizes]) -> None:
        del self._waiting[run.number]
        if run.name in self._wanted:
            self._wanted.remove(run.name)
            self._found[run.name] = self._now
        run.nodes, run.since = nodes, self._now
        run.ends = None if run.ask.ends is None else run.ask.ends + self._now - self._at - TO_BEGIN
        for name, sizes in nodes.items():
            self._nodes[name] = replace(self._nodes[name], free=self._nodes[name].free.less(sizes))
        self._touched |= nodes.keys()
        self._hold(run)
        self._plan(self._now + self._seconds[run.name], "ends", run)
        self._plan_free(run)

    def _take(self, run: _Run) -> None:
        """What it has done is lost."""
        run.is_ending = True
        run.times += 1
        self._touched |= run.nodes.keys()
        self._plan(self._now + GRACE, "gone", run)

    def _holder(self, number: int) -> _Run:
        return next(each.holding[number] for each in self._accounts.values() if number in each.holding)

    def _snapshot(self) -> Snapshot:
        for name in self._touched & self._nodes.keys():
            self._nodes[name] = self._with_runs(self._nodes[name], self._on[name])
        self._touched.clear()
        passed = self._now - self._at
        asks = tuple(
            replace(ask, ends=None if ask.ends is None else ask.ends + passed, tasks=self._tasks(ask))
            for _, run in sorted(self._waiting.items())
            for ask in [run.ask]
        )
        shares = {name: each.share(self._now) for name, each in self._accounts.items()}
        return Snapshot(tuple(self._nodes.values()), asks, shares, tuple(self._holdings()))

    def _tasks(self, ask: Ask) -> tuple[Tasks, ...]:
        """What it asks for now, with the windows that it tolerates."""
        if not self._windows.windows:
            return ask.tasks
        at = dt.datetime.fromtimestamp(self._now, dt.UTC)
        tolerated = replace(self._windows, at=at).tolerated(self._windows.askers.get(int(ask.run), NOBODY))
        bare = (replace(each, tolerated=each.tolerated - self._windows.every) for each in ask.tasks)
        return tolerating(bare, tolerated)

    def _with_runs(self, node: Node, runs: Iterable[_Run]) -> Node:
        ending, ends = NOTHING, list[int | None]()
        for run in runs:
            if run.is_ending:
                ending += run.nodes[node.name]
            else:
                ends.append(run.ends)
        last = None if None in ends else max((each for each in ends if each is not None), default=0)
        return replace(node, ending=ending, ends=-(-last // 60) * 60 if last else last)

    def _holdings(self) -> Iterable[Holding]:
        """As clusters/runs/placing/rights.py finds them."""
        pressed = {run.appcode for run in self._waiting.values() if run.priority_class == "urgent"}
        mine = list[tuple[_Run, Level]]()
        for name, account in self._accounts.items():
            if name in pressed or account.normal > account.inside:
                mine += [(account.holding[number], level) for number, level in account.levels.items()]
            if account.spare:
                spare = (run for run in account.holding.values() if run.priority_class == "spare")
                mine += [(run, Level.SPARE) for run in spare]
        for run, level in sorted(mine, key=lambda each: each[0].number):
            if not run.is_ending:
                lost = run.gpus * min(MOST_LOST, max(0, self._now - run.since))
                is_protected = self._now < run.since + PROTECTED[level]
                yield Holding(run.name, run.appcode, run.gpus, run.nodes, level, run.priority_class, lost, is_protected)


# How long runs last.


@dataclass(frozen=True)
class Kind:
    """By what the run times of a run are looked up, the most telling first: runs of its cluster, of its appcode and framework, of
    about its GPUs and time limit, of about its time limit."""

    cluster: Hashable
    framework: Hashable
    gpus: int
    limit: int | None = None

    @property
    def keys(self) -> tuple[Hashable, ...]:
        size, limit = self.gpus.bit_length(), (self.limit or 0).bit_length()
        cluster, framework = ("cluster", self.cluster), ("framework", self.framework)
        return cluster, framework, ("size", size, limit), ("limit", limit), ("cloud",)


class History:
    """How long runs of a cloud lasted. `count` of them."""

    def __init__(self, ended: Iterable[tuple[Kind, int]]) -> None:
        found = defaultdict[Hashable, list[int]](list)
        self.count = 0
        for kind, seconds in ended:
            self.count += 1
            for key in kind.keys:
                found[key].append(seconds)
        self._sorted = {key: sorted(several) for key, several in found.items()}

    def lasted(self, kind: Kind, age: int) -> Sequence[int]:
        """Run times of runs of that kind, or one like it, that lasted longer than so; none if too few are known."""
        for key in kind.keys:
            several = self._sorted.get(key, ())
            first = bisect_right(several, age)
            if len(several) - first >= LEAST:
                return several[first:]
        return ()


@dataclass(frozen=True)
class Length:
    """What is known of how long a run lasts from its start: it is one of `lasted`, which are sorted, and `limit` at most. It has
    lasted `age` already."""

    lasted: Sequence[int]
    age: int = 0
    limit: int | None = None

    def at(self, share: float) -> int:
        """The run time that this share of the runs does not exceed. Without any known it takes its whole time limit; without one,
        it lasts for ever."""
        if not self.lasted:
            return FOR_EVER if self.limit is None else max(self.age, self.limit)
        found = self.lasted[int(share * len(self.lasted))]
        return found if self.limit is None else max(self.age, min(found, self.limit))


FOR_EVER = 10**9


def drawn(lengths: Mapping[str, Length], seed: int, count: int) -> Iterator[Mapping[str, int]]:
    """Draws of run times, one after the other; equal for an equal seed. The draws of a run are spread evenly over what is known,
    and do not depend on other runs, so that a forecast changes only for a reason."""
    turns = dict[str, list[int]]()
    for run in lengths:
        turns[run] = list(range(count))
        random.Random(f"{seed} {run}").shuffle(turns[run])  # noqa: S311
    for draw in range(count):
        yield {run: each.at((turns[run][draw] + 0.5) / count) for run, each in lengths.items()}
