"""The decision replayed in virtual time, on one core and without a database: how long runs wait, whether promises hold, who gets
what, and what is lost by taking back, against strict order of submission.

Runs are drawn by published quantiles (`traces.py`), and read from files of traces where `TRACE_DIR` names their folder. The same
runs are replayed by each policy.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from bench import alone
from bench.admission import foretelling
from bench.admission.traces import Job, Terms, Trace, eights, from_folder, generated, mixed, terms
from bench.admission.virtual import Cloud, Run, Seen
from bench.results import Result
from bench.sizes import size
from billing.sums.decay import HALF_LIFE as WEEK
from billing.sums.decay import LIFE
from clusters.admission.codes import Code
from clusters.admission.decision import Snapshot, Verdict, advise, decide
from clusters.admission.packing import Shape, Tasks, asking, group, search
from clusters.admission.shares import Want, deserved
from clusters.admission.taking import Holding

SEED = 31
NODES, JOBS = size(1213, 24), size(100_000, 150)
# Of one appcode and one class, so that nobody ever comes before a run that waits: on pools of two kinds.
PLAIN_NODES, PLAIN_JOBS = size(300, 24), size(10_000, 150)
# Part of all GPU-seconds that runs ask for.
LOAD = 1.0
LARGE = 8
# Moments that are tried for the bound of what can be used.
MOMENTS = 200
# For previews and what is taken back, which need two decisions each.
WATCHED_NODES, WATCHED_JOBS = size(243, 24), size(20_000, 150)
# Seconds between the checkpoints of a run, where they write some.
SAVES = 600, 1800
# Previews are compared for so many seconds of processor time at most.
PREVIEW_SECONDS = size(240, 5)
# Fair shares: nodes, half-lives that pass, seconds of one step, and of the days at the end that are measured.
FAIR_NODES, HALF_LIVES, STEP, MEASURED = size(60, 4), size(3, 1), 1200, size(2, 1) * 86_400
HALF_LIFE = size(WEEK, 86_400)
WAITING_EACH = 5


def replay(folder: Path) -> list[Result]:
    """the decision in virtual time, 100,000 runs on 1,213 nodes"""
    return alone.measured("bench.admission.replay", folder / "replay")


PARTS = (replay,)


def main() -> None:
    found = [
        *_fair(),
        *_plain("nodes of 8", eights(PLAIN_NODES)),
        *_plain("nodes of 8, 4 and 1", mixed(4 * PLAIN_NODES)),
        *_watched(),
        *_shared(),
        *foretelling.results(),
    ]
    if folder := os.environ.get("TRACE_DIR"):
        for trace in from_folder(Path(folder), SEED, JOBS, eights(NODES)):
            found += _compared(trace, _replayed(trace, in_order=True), _replayed(trace))
    alone.tell(found)


@dataclass(frozen=True)
class Played:
    """`seconds`: processor time."""

    trace: Trace
    seen: Seen
    seconds: float

    def mean_wait(self, least: int = 0) -> float:
        several = [waited for number, waited in self.seen.waits.items() if self.trace.jobs[number].gpus >= least]
        return sum(several) / max(1, len(several))

    @property
    def use(self) -> float:
        """Part of all GPU-seconds until the last submission that runs held, without work that was lost."""
        return (self.seen.busy - self.seen.lost) / self.trace.gpus / max(1, self.trace.jobs[-1].at)


def _replayed(trace: Trace, *, in_order: bool = False) -> Played:
    cloud = Cloud(trace, in_order=in_order)
    begin = time.process_time()
    return Played(trace, cloud.replay(), time.process_time() - begin)


def _shared() -> list[Result]:
    """15 lines with quotas, borrowing and classes."""
    trace = generated(f"{JOBS:,} runs on {NODES:,} nodes", SEED, JOBS, eights(NODES), LOAD)
    fifo, ours = _replayed(trace, in_order=True), _replayed(trace)
    return _compared(trace, fifo, ours)


def _watched() -> list[Result]:
    """The same on fewer nodes, with runs that write checkpoints."""
    trace = generated("watched", SEED, WATCHED_JOBS, eights(WATCHED_NODES), LOAD)
    cloud = Cloud(trace, saves=SAVES)
    cloud.watch = watcher = Watcher(cloud)
    cloud.replay()
    blind = Cloud(trace, saves=SAVES, knows=False)
    blind.replay()
    lost = max(1, watcher.newest)
    return [
        Result("Previews that differ from the decision on the same snapshot", watcher.differ, "", 0),
        Result("Previews compared", watcher.compared, ""),
        Result("Previews that say now, and the run does not start", watcher.false_now / max(1, watcher.compared) * 100, "%", 0.1),
        Result("Previews that say never, and it may start", watcher.false_never, "", 0),
        Result("GPU-hours that taking back loses, with checkpoints (each 10 to 30 min) it sees", watcher.lost / 3600, "h",
               None, lost / 3600, times=0.5),
        Result("The same, with checkpoints that it does not see", blind.seen.lost / 3600, "h"),
    ]  # fmt: skip


def _compared(trace: Trace, fifo: Played, ours: Played) -> list[Result]:
    name, seen = trace.name, ours.seen
    return [
        Result(f"{name}, in order: processor time", fifo.seconds, "s", 60),
        Result(f"{name}: processor time", ours.seconds, "s", 60),
        Result(f"{name}: processor time of the decision alone", seen.deciding, "s"),
        Result(f"{name}: decisions", seen.passes, ""),
        Result(f"{name}: mean wait", ours.mean_wait(), "s", None, fifo.mean_wait(), times=0.6),
        Result(f"{name}: mean wait from {LARGE} GPUs on", ours.mean_wait(LARGE), "s", None, fifo.mean_wait(LARGE), times=2),
        Result(f"{name}: GPU use, without what is lost", ours.use * 100, "%", None, fifo.use * 100),
        Result(f"{name}: what that is below the most that any schedule could use, of the latter",
               (1 - ours.use / most_use(trace)) * 100, "%", 5),
        Result(f"{name}: promised starts that were delayed without a higher right in between", len(seen.delayed), "", 0),
        Result(f"{name}: promised times that moved later without one", seen.slipped, "", 0),
        Result(f"{name}: promises that held", seen.kept, ""),
        Result(f"{name}: promises after which somebody with a higher right came", seen.outranked, ""),
        Result(f"{name}: runs taken back", seen.takes, ""),
        Result(f"{name}: GPU-hours lost by it", seen.lost / 3600, "h"),
        Result(f"{name}: times that a run exceeded a limit or a node", seen.over + fifo.seen.over, "", 0),
        Result(f"{name}: runs that are told never, and could start", _false_never(trace, seen), "", 0),
        Result(f"{name}: runs that are told never", len(seen.never), ""),
        Result(f"{name}: runs that neither ended nor were refused", _forgotten(trace, seen), "", 0),
    ]  # fmt: skip


def most_use(trace: Trace) -> float:
    """Part of all GPU-seconds until the last submission that no schedule exceeds, even one that knows all run times. Large tasks
    are bounded by the nodes that are large enough, too."""
    until, every = trace.jobs[-1].at, [job for job in trace.jobs if job.gpus <= trace.gpus]
    found = _most(every, trace.gpus, until)
    sizes = sorted({shape.gpus for shape in trace.nodes.values()})
    for small, least in pairwise(sizes):
        able = sum(shape.gpus for shape in trace.nodes.values() if shape.gpus >= least)
        large = [job for job in every if min(each.gpus for each in job.tasks) > small]
        rest = [job for job in every if min(each.gpus for each in job.tasks) <= small]
        possible = [job for job in large if job.gpus <= able]
        found = min(found, _most(possible, able, until) + _most(rest, trace.gpus, until))
    return found / trace.gpus / max(1, until)


def _most(jobs: Sequence[Job], gpus: int, until: int) -> float:
    """GPU-seconds: until any moment runs hold no more than if all started when they are submitted, and later no more than all
    GPUs that there are."""

    def most(moment: float) -> float:
        worked = sum(job.gpus * min(job.seconds, moment - job.at) for job in jobs if job.at < moment)
        return worked + gpus * (until - moment)

    return min(most(until * part / MOMENTS) for part in range(MOMENTS + 1))


def _forgotten(trace: Trace, seen: Seen) -> int:
    return len(trace.jobs) - len(seen.waits) - len(seen.never) - seen.refused


def _false_never(trace: Trace, seen: Seen) -> int:
    """Counts runs that fit into the empty cloud, by arithmetic for one role, else by a search without bounds."""
    empty = group(trace.nodes.items())

    def fits(tasks: Sequence[Tasks]) -> bool:
        if len(tasks) > 1:
            found = search(tasks, empty, most_steps=10**6)
            return found.layout is not None or not found.proved
        [one] = tasks
        able = [node for node in trace.nodes.values() if one.gpu_model in ("", node.gpu_model) or not one.gpus]
        sizes = ("gpus", one.gpus), ("cpu_milli", one.cpu_milli), ("memory_mb", one.memory_mb)
        return one.count <= sum(min(int(getattr(node, name)) // need for name, need in sizes if need) for node in able)

    return sum(fits(trace.jobs[number].tasks) for number, code in seen.never.items() if code is not Code.OVER_LIMIT)


class Watcher:
    """Compares previews with decisions, and what is taken back with what would be if the newest runs were taken first."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.compared = self.differ = self.false_now = self.false_never = self.lost = self.newest = 0
        self._spent = 0.0

    def __call__(self, snapshot: Snapshot, verdicts: Mapping[str, Verdict], youngest: Run | None) -> None:
        if youngest is not None and self._spent < PREVIEW_SECONDS:
            begin = time.process_time()
            before, ask = replace(snapshot, asks=snapshot.asks[:-1]), snapshot.asks[-1]
            self.compared += 1
            told, verdict = advise(before, ask), verdicts[ask.run]
            self.differ += told != verdict
            self.false_now += told.code.fits == "now" and verdict.code.fits != "now"
            self.false_never += told.code.fits == "never" and verdict.code.fits != "never"
            self._spent += time.process_time() - begin
        if any(verdict.takes for verdict in verdicts.values()):
            self.lost += self._loss(verdicts)
            self.newest += self._loss(decide(replace(snapshot, holdings=tuple(map(self._by_age, snapshot.holdings)))))

    def _by_age(self, holding: Holding) -> Holding:
        run = self.cloud.holder(holding.run)
        return replace(holding, lost=holding.gpus * (self.cloud.now - run.began))

    def _loss(self, verdicts: Mapping[str, Verdict]) -> int:
        taken = (self.cloud.holder(name) for verdict in verdicts.values() for name in verdict.takes)
        return sum(run.gpus * self.cloud.loses(run) for run in taken)


def _plain(name: str, nodes: Mapping[str, Shape]) -> list[Result]:
    """One appcode and one class: only holes differ from the order of submission, and every promise has to hold."""
    trace = generated(f"One appcode, {name}", SEED, PLAIN_JOBS, nodes, LOAD)
    jobs = [replace(job, appcode="one", priority_class="normal") for job in trace.jobs]
    trace = replace(trace, jobs=jobs, terms={"one": Terms("line", 10**9, 10**9)})
    return _compared(trace, _replayed(trace, in_order=True), _replayed(trace))


def _fair() -> list[Result]:
    """All lines always ask for more than they get; a third of them had the whole cloud before, the others nothing."""
    return [*_divided("without quotas", 0), *_divided("with half of all GPUs as quotas", 0.5)]


def _divided(name: str, guaranteed: float) -> list[Result]:
    nodes = eights(FAIR_NODES)
    gpus = sum(shape.gpus for shape in nodes.values())
    codes = {code: replace(each, limit=gpus) for code, each in terms(gpus, guaranteed).items()}
    if not guaranteed:
        codes = {code: replace(each, quota=0) for code, each in codes.items()}
    cloud, rng = Cloud(Trace("fair", nodes, codes, ()), tick=STEP), random.Random(SEED)  # noqa: S311
    lines = sorted({each.line for each in codes.values()})
    greedy = lines[::3]
    for appcode in cloud.appcodes.values():
        appcode.used = gpus * LIFE // len(codes) * 3 if appcode.terms.line in greedy else 0
    got, due, ends = defaultdict[str, float](float), defaultdict[str, float](float), HALF_LIVES * HALF_LIFE
    for now in range(0, ends, STEP):
        _ask_for_more(cloud, rng, now)
        cloud.advance(now)
        if now >= ends - MEASURED:
            for code, whole in _deserved(cloud, gpus).items():
                due[codes[code].line] += whole * STEP / MEASURED
                got[codes[code].line] += cloud.appcodes[code].normal * STEP / MEASURED
    weights = Counter[str]()
    for each in codes.values():
        weights[each.line] += each.weight
    error = max(abs(got[line] - due[line]) for line in lines) / gpus
    parts = [got[line] / max(1, due[line]) for line in lines]
    jain = sum(parts) ** 2 / len(parts) / sum(part * part for part in parts)
    found = [
        Result(
            f"Shares after {HALF_LIVES} half-lives, {name}: largest error of a line, of all GPUs", error * 100, "%", 2
        ),
        Result("Their unfairness (1 − Jain's index of got by deserved)", 1 - jain, "", 0.02),
        Result("GPU use meanwhile", sum(got.values()) / gpus * 100, "%"),
    ]
    if not guaranteed:
        error = max(abs(got[line] / gpus - weights[line] / weights.total()) for line in lines)
        found.append(Result("The same error, against the weights alone", error * 100, "%", 2))
    return found


def _ask_for_more(cloud: Cloud, rng: random.Random, now: int) -> None:
    for code, appcode in cloud.appcodes.items():
        waits = appcode.counted - appcode.normal
        while waits < WAITING_EACH * 4:
            gpus, seconds = rng.choice([1, 1, 2, 4, 8]), rng.randrange(3600, 4 * 3600)
            tasks = (asking("worker", 1, gpus, "", 8000 * gpus, 64_000 * gpus),)
            cloud.submit(Job(now, seconds, 8 * 3600, tasks, code))
            waits += gpus


def _deserved(cloud: Cloud, gpus: int) -> Mapping[str, int]:
    """By the use so far; everybody asks for everything."""
    wants = {}
    for code, each in cloud.appcodes.items():
        each.fade(cloud.now)
        terms = each.terms
        wants[code] = Want(terms.line, terms.quota, terms.limit, terms.weight, each.used, gpus)
    return deserved(wants, gpus)


if __name__ == "__main__":
    main()
