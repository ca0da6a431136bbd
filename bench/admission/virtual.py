"""A cloud in virtual time: runs are submitted, decided, placed, ended and taken back as the product does it, on one core and
without a database. Its idea: the decision is the product's own (`clusters.admission`), all around it is as small as it can be.

A pass decides at most every `TICK` seconds, and only if something has changed. The tasks of a run go to the first nodes of its
layout that have room, at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from time import process_time
from typing import Literal, Protocol

from bench.admission.traces import Job, Terms, Trace
from billing.sums.decay import Stretch, decayed
from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, Verdict, decide
from clusters.admission.order import FIRST, Level, PriorityClass, Share, levels
from clusters.admission.packing import Layout, Shape, Sizes, assign, group, why_never
from clusters.admission.pool import NO_SIZES, Node
from clusters.admission.taking import Holding

TICK = 60
# As in clusters/runs/placing (a test compares them): how long runs take to begin and to end, how long they are left alone from
# their beginning, what they lose at most, and how many waiting ones a pass looks at.
TO_BEGIN, TO_END = 600, 180
PROTECTED: Mapping[Level, int] = {Level.SPARE: 60, Level.BORROWED: 600, Level.QUOTA: 600}
MOST_LOST = 4 * 3600
MOST_WAITING = 1000
# Seconds until a run is gone that is taken back.
GRACE = 30


@dataclass(eq=False)
class Run:
    """`left`: seconds of work. `began`: when it got its nodes; `since`: when it began to wait. `latest`: when it was promised to
    start at the latest, with the runs that were `ahead` then. `times`: how often it was taken back."""

    number: int
    job: Job
    left: int
    since: int
    began: int = -1
    waited: int = 0
    admitted: bool = False
    nodes: Mapping[str, Sizes] = field(default_factory=dict)
    ending: bool = False
    latest: int | None = None
    ahead: frozenset[str] = frozenset()
    times: int = 0

    def __post_init__(self) -> None:
        self.name, self.gpus = str(self.number), self.job.gpus
        # As `order.levels` sees it.
        self.appcode: str = self.job.appcode
        self.priority_class: PriorityClass = self.job.priority_class


@dataclass
class Seen:
    """What happened. `waits`: by run, all seconds that it waited. GPU-seconds: `busy` until the last submission, `lost` by taking
    back. `delayed`: starts later than promised, and by how much; `slipped`: promises that moved to a later time; neither counts
    if a run with a higher right came in between (`outranked`). `over`: times that a run exceeded a limit or a node.
    `deciding`: seconds of processor time."""

    waits: dict[int, int] = field(default_factory=dict)
    busy: int = 0
    lost: int = 0
    takes: int = 0
    passes: int = 0
    promises: int = 0
    kept: int = 0
    delayed: list[tuple[int, int]] = field(default_factory=list)
    slipped: int = 0
    outranked: int = 0
    over: int = 0
    never: dict[int, Code] = field(default_factory=dict)
    refused: int = 0
    longest_queue: int = 0
    deciding: float = field(default=0.0, compare=False)


class Watch(Protocol):
    """Is shown each decision: the snapshot, the verdicts, and the youngest run if it was decided for the first time."""

    def __call__(self, snapshot: Snapshot, verdicts: Mapping[str, Verdict], youngest: Run | None) -> None: ...


def _watch_nothing(snapshot: Snapshot, verdicts: Mapping[str, Verdict], youngest: Run | None) -> None: ...


class _Machine:
    def __init__(self, name: str, whole: Shape) -> None:
        self.name, self.whole = name, whole
        self.gpus, self.cpu, self.memory = whole.gpus, whole.cpu_milli, whole.memory_mb
        self.runs: set[Run] = set()

    def hold(self, sizes: Sizes, sign: int) -> bool:
        """Takes (1) or frees (-1) it. Whether the node has as much."""
        self.gpus -= sign * sizes.gpus
        self.cpu -= sign * sizes.cpu_milli
        self.memory -= sign * sizes.memory_mb
        return min(self.gpus, self.cpu, self.memory) >= 0


class _Appcode:
    """The runs of an appcode: those that hold GPUs, and those that wait for its limit."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.holding: dict[int, Run] = {}
        self.asking: dict[int, Run] = {}
        self.counted = 0  # GPUs of admitted runs that count against the limit, with and without nodes.
        self.normal = self.spare = self.urgent = 0  # GPUs of runs with nodes; urgent ones are normal, too.
        self.used = self.at = 0
        # Runs beyond the quota, which are not spare; None if they are not known.
        self.beyond: dict[int, Level] | None = {}

    def share(self, now: int) -> Share:
        self.fade(now)
        if self.beyond is None:
            self.beyond = self._beyond() if self.normal > self.terms.quota else {}
        beyond = sum(self.holding[number].gpus for number in self.beyond)
        terms = self.terms
        return Share(
            terms.quota, self.normal - beyond, beyond, self.spare, terms.line, terms.limit, terms.weight, self.used,
            urgent=self.urgent,
        )  # fmt: skip

    def _beyond(self) -> dict[int, Level]:
        normal = [run for _, run in sorted(self.holding.items()) if run.priority_class != "spare"]
        return {run.number: level for run, level in levels(normal, self.terms.quota) if level != Level.QUOTA}

    def fade(self, now: int) -> None:
        if now > self.at:
            self.used = decayed(self.used, self.at, [Stretch(self.at, now, self.normal)], now)
            self.at = now

    def change(self, run: Run, now: int, sign: int) -> None:
        self.fade(now)
        if run.priority_class == "spare":
            self.spare += sign * run.gpus
        else:
            self.normal += sign * run.gpus
            self.urgent += sign * run.gpus * (run.priority_class == "urgent")
            self.beyond = None
        if sign > 0:
            self.holding[run.number] = run
        else:
            del self.holding[run.number]


Kind = Literal["arrives", "ends", "gone", "free"]
ORDER: Mapping[Kind, int] = {"ends": 0, "gone": 1, "arrives": 2, "free": 3}


class Cloud:
    """Replays a trace. `in_order`: strictly first come, first served, instead of by the decision. `saves`: seconds between the
    checkpoints of a run, at least and at most, drawn by its number; 0 for none. `knows`: whether the decision sees when a run
    saved last."""

    def __init__(
        self, trace: Trace, *, in_order: bool = False, saves: tuple[int, int] = (0, 0), knows: bool = True,
        watch: Watch = _watch_nothing, tick: int = TICK,
    ) -> None:  # fmt: skip
        self.trace, self.in_order, self.saves, self.knows, self.watch, self.tick = (
            trace,
            in_order,
            saves,
            knows,
            watch,
            tick,
        )
        self.machines = {name: _Machine(name, shape) for name, shape in trace.nodes.items()}
        self.appcodes = {code: _Appcode(terms) for code, terms in trace.terms.items()}
        self.waiting: dict[int, Run] = {}
        self.seen = Seen()
        self.now = 0
        self._nodes = {name: Node(name, shape, shape, ends=0) for name, shape in trace.nodes.items()}
        self._empty = group(trace.nodes.items())
        self._touched: set[str] = set()
        self._shapes: dict[tuple[Shape, int, int, int], Shape] = {}
        self._events: list[tuple[int, int, int, Kind, Run, int]] = []
        self._held, self._held_at, self._until = 0, 0, 0
        self._submitted = 0
        self._changed = False
        self._dirty: set[str] = set()
        self._newest: Run | None = None
        self._blocked: tuple[int, int] | None = (
            None  # In order: the first run, and how often nodes were freed when it failed.
        )
        self._frees = 0
        self._spares: dict[int, Run] = {}
        self._line = list[int]()  # Those that wait, the first submitted first; only in order.

    # What happens.

    def submit(self, job: Job) -> None:
        run = Run(self._submitted, job, job.seconds, job.at)
        self._submitted += 1
        self._until = max(self._until, job.at)
        self._at(job.at, "arrives", run)

    def _at(self, at: int, kind: Kind, run: Run) -> None:
        heappush(self._events, (at, ORDER[kind], run.number, kind, run, run.times))

    def replay(self) -> Seen:
        for job in self.trace.jobs:
            self.submit(job)
        self.advance()
        return self.seen

    def advance(self, until: int | None = None) -> None:
        """Lets time pass until nothing happens any more, or until then."""
        while self._events and (until is None or self._events[0][0] <= until):
            pass_at = -(-self._events[0][0] // self.tick) * self.tick
            while self._events and self._events[0][0] <= pass_at:
                at, _, _, kind, run, times = heappop(self._events)
                if times == run.times:
                    self._count(at)
                    self.now = at
                    getattr(self, f"_on_{kind}")(run)
            self._count(pass_at)
            self.now = pass_at
            if self._changed:
                self._changed = False
                self._pass()

    def _count(self, now: int) -> None:
        if (until := min(now, self._until)) > self._held_at:
            self.seen.busy += self._held * (until - self._held_at)
            self._held_at = until

    def _on_arrives(self, run: Run) -> None:
        appcode = self.appcodes[run.appcode]
        if run.priority_class != "spare" and run.gpus > appcode.terms.limit:
            self.seen.refused += 1
            return
        run.since = self.now
        appcode.asking[run.number] = run
        self._dirty.add(run.appcode)
        self._newest = run
        self._changed = True

    def _on_ends(self, run: Run) -> None:
        run.left = 0
        self._free(run)
        self._leave(run)
        self.seen.waits[run.number] = run.waited

    def _on_gone(self, run: Run) -> None:
        """A run that was taken back waits again in its old order; it goes on from its last checkpoint."""
        self._free(run)
        run.times += 1
        run.ending, run.latest, run.since = False, None, self.now
        self._wait(run)

    def _on_free(self, run: Run) -> None:
        """It may be taken back from now on."""
        self._changed = self._changed or bool(self.waiting)

    def _leave(self, run: Run) -> None:
        if run.priority_class != "spare":
            self.appcodes[run.appcode].counted -= run.gpus
            self._dirty.add(run.appcode)

    def _free(self, run: Run) -> None:
        for name, sizes in run.nodes.items():
            machine = self.machines[name]
            machine.hold(sizes, -1)
            machine.runs.remove(run)
        self._touched |= run.nodes.keys()
        self.appcodes[run.appcode].change(run, self.now, -1)
        self._spares.pop(run.number, None)
        self._held -= run.gpus
        self._frees += 1
        self._changed = True
        run.nodes, run.began = {}, -1

    # A pass.

    def _pass(self) -> None:
        self._admit()
        self.seen.longest_queue = max(self.seen.longest_queue, len(self.waiting))
        if self.waiting:
            if self.in_order:
                self._place_in_order()
            else:
                self._decide()
        self._newest = None

    def _admit(self) -> None:
        """First come, first served within the limit of an appcode, urgent runs first, as `clusters.runs.quota` does it."""
        for code in sorted(self._dirty):
            appcode = self.appcodes[code]
            queue = sorted(appcode.asking.values(), key=lambda run: (FIRST[run.priority_class], run.number))
            blocked = False
            for run in queue:
                counts = run.gpus if run.priority_class != "spare" else 0
                if counts and (blocked or appcode.counted + counts > appcode.terms.limit):
                    blocked = True
                    continue
                appcode.counted += counts
                del appcode.asking[run.number]
                run.admitted = True
                self._wait(run)
        self._dirty.clear()

    def _wait(self, run: Run) -> None:
        self.waiting[run.number] = run
        if self.in_order:
            heappush(self._line, run.number)

    def snapshot(self) -> Snapshot:
        shares = {code: each.share(self.now) for code, each in self.appcodes.items()}
        begins = self.now + TO_BEGIN + TO_END
        asks = tuple(
            Ask(run.name, run.appcode, run.job.tasks, priority_class=run.priority_class, ends=begins + run.job.limit)
            for run in self._looked_at()
        )
        return Snapshot(self._all_nodes(), asks, shares, tuple(self._holdings()))

    def _looked_at(self) -> list[Run]:
        """The first of each appcode, then the second of each, until there are enough."""
        if len(self.waiting) <= MOST_WAITING:
            return [run for _, run in sorted(self.waiting.items())]
        own = defaultdict[str, list[Run]](list)
        for run in sorted(self.waiting.values(), key=lambda run: (FIRST[run.priority_class], run.number)):
            own[run.appcode].append(run)
        turns = sorted((turn, run.number) for several in own.values() for turn, run in enumerate(several))
        return [self.waiting[number] for number in sorted(number for _, number in turns[:MOST_WAITING])]

    def _all_nodes(self) -> tuple[Node, ...]:
        for name in self._touched:
            machine = self.machines[name]
            key = machine.whole, machine.gpus, machine.cpu, machine.memory
            if key not in self._shapes:
                self._shapes[key] = replace(
                    machine.whole, gpus=machine.gpus, cpu_milli=machine.cpu, memory_mb=machine.memory
                )
            ends, ending = 0, NO_SIZES
            for run in machine.runs:
                if run.ending:
                    ending += run.nodes[name]
                else:
                    ends = max(ends, run.began + run.job.limit)
            self._nodes[name] = Node(
                name,
                machine.whole,
                self._shapes[key],
                ending=ending,
                ends=-(-(ends + TO_END) // 60) * 60 if ends else 0,
            )
        self._touched.clear()
        return tuple(self._nodes.values())

    def _holdings(self) -> Iterable[Holding]:
        pressed = {run.appcode for run in self.waiting.values() if run.priority_class == "urgent"}
        mine = {number: (run, Level.SPARE) for number, run in self._spares.items()}
        for code, appcode in self.appcodes.items():
            beyond = appcode.beyond
            assert beyond is not None
            # What is inside the quota yields to urgent runs of the same appcode alone.
            numbers = appcode.holding.keys() - self._spares.keys() if code in pressed else beyond
            mine |= {number: (appcode.holding[number], beyond.get(number, Level.QUOTA)) for number in numbers}
        for _, (run, level) in sorted(mine.items()):
            if not run.ending:
                yield Holding(
                    run.name, run.appcode, run.gpus, run.nodes, level, run.priority_class,
                    run.gpus * self._would_lose(run), self.now < run.began + PROTECTED[level],
                )  # fmt: skip

    def _would_lose(self, run: Run) -> int:
        """As far as the decision knows."""
        return min(MOST_LOST, self.loses(run) if self.knows else self.now - run.began)

    def loses(self, run: Run) -> int:
        worked, (least, most) = self.now - run.began, self.saves
        return worked % (least + run.number * 7919 % (most - least + 1)) if most else worked

    def _decide(self) -> None:
        snapshot = self.snapshot()
        begin = process_time()
        verdicts = decide(snapshot)
        self.seen.deciding += process_time() - begin
        self.seen.passes += 1
        youngest = (
            self._newest if snapshot.asks and self._newest and snapshot.asks[-1].run == self._newest.name else None
        )
        self.watch(snapshot, verdicts, youngest)
        ahead: set[str] = set()
        for name, verdict in verdicts.items():
            run = self.waiting[int(name)]
            self._note_promise(run, verdict, ahead)
            if verdict.code in (Code.FITS, Code.TAKING_BACK):
                ahead.add(name)
            if verdict.code is Code.FITS:
                self._start(run, verdict.nodes or {})
            elif verdict.code.fits == "never":
                self._refuse(run, verdict.code)
            else:
                ahead.add(name)
        for verdict in verdicts.values():
            for name in verdict.takes:
                self._take(self.holder(name))

    def _refuse(self, run: Run, code: Code) -> None:
        self.seen.never[run.number] = code
        del self.waiting[run.number]
        self._leave(run)

    def holder(self, name: str) -> Run:
        number = int(name)
        return next(each.holding[number] for each in self.appcodes.values() if number in each.holding)

    def _note_promise(self, run: Run, verdict: Verdict, ahead: set[str]) -> None:
        """A promise holds until a run comes before it that did not when it was given: one with a higher right. The earliest
        promise counts."""
        latest = verdict.values.get("latest")
        if run.latest is not None and not ahead <= run.ahead:
            self.seen.outranked += 1
            run.latest = None
        if verdict.code is Code.FITS:
            if run.latest is not None:
                self.seen.kept += self.now <= run.latest
                if self.now > run.latest:
                    self.seen.delayed.append((run.number, self.now - run.latest))
            return
        if isinstance(latest, int):
            self.seen.promises += run.latest is None
            self.seen.slipped += run.latest is not None and latest > run.latest
            if run.latest is None or latest < run.latest:
                run.latest, run.ahead = latest, frozenset(ahead)

    def _take(self, run: Run) -> None:
        done = self.now - run.began
        lost = self.loses(run)
        run.left -= done - lost
        run.ending = True
        self.seen.takes += 1
        self.seen.lost += run.gpus * lost
        run.times += 1  # So that it does not end by itself.
        self._touched |= run.nodes.keys()
        self._at(self.now + GRACE, "gone", run)

    def _start(self, run: Run, layout: Layout) -> None:
        run.nodes = self._bind(run, layout)
        del self.waiting[run.number]
        run.began, run.waited = self.now, run.waited + self.now - run.since
        appcode = self.appcodes[run.appcode]
        appcode.change(run, self.now, 1)
        if run.priority_class == "spare":
            self._spares[run.number] = run
        self.seen.over += appcode.normal > appcode.terms.limit
        self._held += run.gpus
        self._touched |= run.nodes.keys()
        self._at(self.now + run.left, "ends", run)
        if not self.in_order:
            # Then others may take it back, and what was promised of its nodes and not taken is free.
            self._at(self.now + PROTECTED[Level.SPARE if run.priority_class == "spare" else Level.QUOTA], "free", run)
            self._at(self.now + 1, "free", run)

    def _bind(self, run: Run, layout: Layout) -> dict[str, Sizes]:
        """Roles that ask for the same share what the layout has under the first of them (`packing.assign`)."""
        open_ = defaultdict[tuple[int, int, int], dict[str, int]](dict)
        size_of = {each.role: (each.gpus, each.cpu_milli, each.memory_mb) for each in run.job.tasks}
        for (role, node), count in layout.items():
            open_[size_of[role]][node] = count
        short = Counter[tuple[int, int, int]]()
        for each in run.job.tasks:
            short[size_of[each.role]] += each.count
        found: dict[str, Sizes] = {}
        for size, count in short.items():
            for node, most in open_[size].items():
                here = min(count, most)
                if here:
                    count -= here
                    gpus, cpu, memory = size
                    found[node] = found.get(node, NO_SIZES) + Sizes(here * gpus, here * cpu, here * memory)
            self.seen.over += count > 0  # Not all of its tasks have a place.
        for node, sizes in found.items():
            self.seen.over += not self.machines[node].hold(sizes, 1)
            self.machines[node].runs.add(run)
        return found

    def _place_in_order(self) -> None:
        """Strictly first come, first served: nobody starts before the first one that waits."""
        if self._blocked == (self._line[0], self._frees):
            return
        field = group((node.name, node.free) for node in self._all_nodes())
        self.seen.passes += 1
        while self._line:
            run = self.waiting[self._line[0]]
            found = assign(run.job.tasks, field)
            if found.layout is not None:
                field = found.left
                self._start(run, found.layout)
            elif why_never(run.job.tasks, self._empty):
                self._refuse(run, Code.OVER_POOL)
            else:
                self._blocked = run.number, self._frees
                return
            heappop(self._line)
