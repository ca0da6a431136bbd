"""Runs to be replayed in virtual time: drawn by the published quantiles of Philly and PAI, or read from files of traces.

`TRACE_DIR` is a folder that holds any of these, under their own names: pods and nodes of Alibaba's openb (`openb_pod_list_*.csv`,
`openb_node_list_*.csv`), the virtual clusters of Philly as Gavel has them (`*.trace`, one line of business each), the run times
of Philly (`philly_runtime.csv`). None of them is part of this repository.
"""

from __future__ import annotations

import csv
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, log
from pathlib import Path

from clusters.admission.order import PriorityClass
from clusters.admission.packing import Shape, Tasks, asking

LINES, APPCODES = 15, 40
MODEL = "H200"
GPU_NODE = Shape(8, 192_000, 2_000_000, MODEL)
URGENT, SPARE = 0.05, 0.2
# Philly: share of runs that end within so many seconds.
RUN_TIMES = ((0.0, 10), (0.25, 131), (0.5, 1186), (0.75, 3340), (0.9, 12_858), (0.99, 287_239), (1.0, 1_200_000))
# Most runs have one GPU, most GPUs are in runs of several whole nodes. Tasks, GPUs of each, share of runs.
SIZES = (
    (1, 1, 0.5), (1, 2, 0.12), (1, 4, 0.12), (1, 8, 0.1), (2, 8, 0.04), (4, 8, 0.02), (8, 8, 0.005), (16, 8, 0.002), (4, 1, 0.04),
    (8, 1, 0.02), (4, 2, 0.02), (2, 4, 0.013),
)  # fmt: skip
# Runs of few parameter servers without GPUs beside their workers, and of those that no cloud can hold: share of runs.
SERVED, IMPOSSIBLE = 0.02, 0.001
# Users ask for one of these, in seconds.
HOURS = (1, 2, 3, 4, 6, 8, 12, 24, 48, 72, 120, 168, 336, 720)
LIMITS = (600, 1200, 1800, *(3600 * each for each in HOURS))


@dataclass(frozen=True)
class Job:
    """A run that is submitted `at`, and needs `seconds` of its time `limit`."""

    at: int
    seconds: int
    limit: int
    tasks: tuple[Tasks, ...]
    appcode: str
    priority_class: PriorityClass = "normal"

    @property
    def gpus(self) -> int:
        return sum(each.count * each.gpus for each in self.tasks)


@dataclass(frozen=True)
class Terms:
    """What an appcode may hold, as of `clusters.admission.order.Share`."""

    line: str
    quota: int
    limit: int
    weight: int = 1


@dataclass(frozen=True)
class Trace:
    """`nodes` by name. `jobs`: oldest first."""

    name: str
    nodes: Mapping[str, Shape]
    terms: Mapping[str, Terms]
    jobs: Sequence[Job]

    @property
    def gpus(self) -> int:
        return sum(shape.gpus for shape in self.nodes.values())


def eights(count: int) -> dict[str, Shape]:
    return {f"n{number:04}": GPU_NODE for number in range(count)}


def mixed(count: int) -> dict[str, Shape]:
    """Nodes in the proportions of Alibaba's pool of 2026: 872 with 8 GPUs, 10 with 4, 3,396 with one."""
    gpus = [8] * round(count * 872 / 4278) + [4] * max(1, round(count * 10 / 4278))
    gpus += [1] * (count - len(gpus))
    return {
        f"n{number:04}": replace(GPU_NODE, gpus=each, cpu_milli=24_000 * each, memory_mb=250_000 * each)
        for number, each in enumerate(gpus)
    }


def terms(gpus: int, guaranteed: float = 0.7, borrowed: float = 0.5) -> dict[str, Terms]:
    """Appcodes of 15 lines, a few of them large: quotas of a part of all GPUs, and what part each may borrow beside it."""
    sizes = [1 / (1 + number % 10) for number in range(APPCODES)]
    found = {}
    for number, each in enumerate(sizes):
        quota = max(1, round(guaranteed * gpus * each / sum(sizes)))
        found[f"a{number:02}"] = Terms(
            f"line{number % LINES:02}", quota, quota + round(borrowed * gpus), 1 + number % 3
        )
    return found


def drawn(rng: random.Random, points: Sequence[tuple[float, float]] = RUN_TIMES) -> int:
    """A number by its quantiles, on a logarithmic scale between them."""
    share = rng.random()
    at = min(bisect_right([each for each, _ in points], share), len(points) - 1)
    (low, less), (high, more) = points[at - 1], points[at]
    return round(exp(log(less) + (log(more) - log(less)) * (share - low) / (high - low)))


def generated(name: str, seed: int, count: int, nodes: Mapping[str, Shape], load: float) -> Trace:
    """Runs that ask for `load` of all GPU-seconds until the last of them is submitted."""
    rng, gpus = random.Random(seed), sum(shape.gpus for shape in nodes.values())  # noqa: S311
    codes = terms(gpus)
    drafts = [_draft(rng, codes, lambda: drawn(rng)) for _ in range(count)]
    return Trace(name, nodes, codes, _spread_out(rng, drafts, load * gpus))


def _draft(rng: random.Random, codes: Mapping[str, Terms], seconds: Callable[[], int]) -> Job:
    [(count, each)] = rng.choices([size[:2] for size in SIZES], [size[2] for size in SIZES])
    return drafted(rng, codes, _asked(rng, count, each), seconds())


def _asked(rng: random.Random, count: int, gpus: int) -> tuple[Tasks, ...]:
    kind = rng.random()
    if kind < IMPOSSIBLE:
        return (_tasks("worker", *rng.choice([(1, 16), (5000, 8)])),)
    if kind < IMPOSSIBLE + SERVED:
        return _tasks("worker", 4, 1), asking("ps", 2, cpu_milli=16_000, memory_mb=64_000)
    return (_tasks("worker", count, gpus),)


def _tasks(role: str, count: int, gpus: int) -> Tasks:
    return asking(role, count, gpus, "", 8000 * gpus, 64_000 * gpus)


def drafted(rng: random.Random, codes: Mapping[str, Terms], tasks: tuple[Tasks, ...], seconds: int) -> Job:
    """A run of somebody who may ask for so much; of the appcodes that use most, not all have most quota."""
    kind = rng.random()
    priority: PriorityClass = "urgent" if kind < URGENT else "spare" if kind < URGENT + SPARE else "normal"
    asked = sum(each.count * each.gpus for each in tasks)
    able = [each for each in enumerate(codes) if codes[each[1]].limit >= asked] or list(enumerate(codes))
    [(_, appcode)] = rng.choices(able, [codes[code].quota * (1 + number % 4) for number, code in able])
    padded = seconds * exp(rng.uniform(log(1.2), log(5)))
    limit = next((each for each in LIMITS if each >= padded), round(padded))
    return Job(0, seconds, limit, tasks, appcode, priority)


def _spread_out(rng: random.Random, drafts: Sequence[Job], gpus: float) -> list[Job]:
    """Gives them times of submission, so that they ask for so many GPUs on average until the last one comes."""
    gaps = list(accumulate(rng.expovariate(1) for _ in drafts))
    parts = [each / gaps[-1] for each in gaps]
    possible = [(part, job) for part, job in zip(parts, drafts, strict=True) if job.gpus <= gpus]

    def asked(span: float) -> float:
        return sum(job.gpus * min(job.seconds, (1 - part) * span) for part, job in possible)

    least, most = 1.0, 1e10
    for _ in range(60):  # Longer spans leave more GPUs idle.
        span = (least * most) ** 0.5
        least, most = (span, most) if asked(span) > gpus * span else (least, span)
    return [replace(job, at=int(part * most)) for part, job in zip(parts, drafts, strict=True)]


def from_folder(folder: Path, seed: int, most: int, nodes: Mapping[str, Shape]) -> list[Trace]:
    """Whatever traces the folder has; `nodes` are used for those without any."""
    rng = random.Random(seed)  # noqa: S311
    times = next(iter(sorted(folder.rglob("philly_runtime.csv"))), None)
    seconds = _philly(times, rng) if times else lambda: drawn(rng)
    found = []
    if pods := sorted(folder.rglob("openb_pod_list_*.csv")):
        here = sorted(folder.rglob("openb_node_list_*.csv"))
        found.append(_openb(pods[-1], _openb_nodes(here[-1]) if here else nodes, rng, most))
    if clusters := sorted(folder.rglob("*.trace")):
        found.append(_gavel(clusters, nodes, rng, most, seconds))
    if times:
        codes = terms(sum(shape.gpus for shape in nodes.values()))
        drafts = [_draft(rng, codes, seconds) for _ in range(most)]
        jobs = _spread_out(rng, drafts, sum(shape.gpus for shape in nodes.values()))
        found.append(Trace("run times of Philly", nodes, codes, jobs))
    return found


def _philly(path: Path, rng: random.Random) -> Callable[[], int]:
    """The run times, one a line."""
    several = [max(1, round(float(line))) for line in path.read_text().split() if line.replace(".", "", 1).isdigit()]
    return lambda: rng.choice(several)


def _openb_nodes(path: Path) -> dict[str, Shape]:
    with path.open() as file:
        return {
            row["sn"]: Shape(int(row["gpu"]), int(row["cpu_milli"]), int(row["memory_mib"]), row["model"])
            for row in csv.DictReader(file)
        }


def _openb(path: Path, nodes: Mapping[str, Shape], rng: random.Random, most: int) -> Trace:
    """A part of a GPU counts as one. Few pods overlap in time, so they are submitted at a pace that fills the nodes, and if even
    all of them at once do not, only a part of the nodes is used."""
    rows = list[tuple[Tasks, int]]()
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["scheduled_time"] and len(rows) < most:
                gpus, model = int(row["num_gpu"]), row["gpu_spec"].split("|")[0]
                tasks = asking("pod", 1, gpus, model if gpus else "", int(row["cpu_milli"]), int(row["memory_mib"]))
                rows.append((tasks, max(1, int(row["deletion_time"]) - int(row["scheduled_time"]))))
    every = sum(shape.gpus for shape in nodes.values())
    step = -(-4 * every // max(1, sum(tasks.gpus for tasks, _ in rows)))
    some = dict(list(nodes.items())[::step])
    gpus = sum(shape.gpus for shape in some.values())
    codes = terms(gpus)
    drafts = [drafted(rng, codes, (tasks,), seconds) for tasks, seconds in rows]
    return Trace("openb", some, codes, _spread_out(rng, drafts, gpus))


def _gavel(
    paths: Sequence[Path], nodes: Mapping[str, Shape], rng: random.Random, most: int, seconds: Callable[[], int]
) -> Trace:
    """One job a line, divided by tabs: type, command, argument, data, steps, submission, GPUs. How long a step takes is not
    said, so run times are drawn. Only the first jobs of all clusters are taken."""
    every, codes = list[tuple[float, str, int]](), dict[str, Terms]()
    gpus = sum(shape.gpus for shape in nodes.values())
    for path in paths:
        name = f"{path.parent.name}-{path.stem}"
        codes[name] = Terms(name, gpus // (2 * len(paths)), gpus)
        for line in path.read_text().splitlines():
            *_, at, asked = line.split("\t")
            every.append((float(at), name, int(float(asked))))
    jobs = []
    for _, code, count in sorted(every)[:most]:
        tasks = (_tasks("worker", max(1, count // 8), min(count, 8)),)
        jobs.append(drafted(rng, {code: codes[code]}, tasks, seconds()))
    # The trace is of an unknown number of GPUs, so the order is its own, and the pace fills these nodes.
    return Trace("Philly by Gavel", nodes, codes, _spread_out(rng, jobs, gpus))
