"""Results of measurements: the line that a measurement's program prints, and what follows from several results. Pure."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clusters.benchmarks.manifest import MAX_COUNT

MARK = b"benchmark {"
PRINTED = r"\A[ -~]*\z"
# Relative distance from the median of all workers beyond which a worker is an outlier.
TOLERANCE = 0.1
# Minimum number of workers: of two, neither can be called slow.
LEAST_WORKERS = 3
# Spread above which the machines were busy with something else; such rates are not compared.
NOISY = 0.5
# Relative difference of two rates below which they count as equal.
NOISE = 0.03
# Bounded away from 0, because rates are divided by each other.
Rate = Annotated[float, Field(gt=1e-9, lt=1e12, allow_inf_nan=False)]
# May be slightly negative if a clock is set back meanwhile.
Seconds = Annotated[float, Field(gt=-1, lt=1e6, allow_inf_nan=False)]


class Worker(BaseModel):
    """One computing task's median step in seconds: waiting for the batch, computing gradients, and waiting for other tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Seconds
    compute: Seconds
    communication: Seconds
    role: str = Field(default="", max_length=20)
    index: int = Field(default=0, ge=0, description="Of its role.")
    node: str = Field(default="", max_length=253)

    @property
    def alone(self) -> float:
        """Seconds of a step without waiting for others."""
        return max(self.input + self.compute, 1e-9)


class Result(BaseModel):
    """The printed result. A step of all-reduce is one of all tasks; with parameter servers it is one worker's. `spread` is the
    rate of the fastest window minus that of the slowest, divided by their median."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    global_step_per_second: Rate
    examples_per_second: Rate
    spread: float = Field(ge=0, lt=1e9)
    replicas: int = Field(ge=1, le=100_000)
    # Excludes NUL, which PostgreSQL does not store in JSON.
    tensorflow: str = Field(max_length=40, pattern=PRINTED)
    device: str = Field(max_length=100, pattern=PRINTED)
    workers: Annotated[tuple[Worker, ...], Field(min_length=1, max_length=MAX_COUNT)]

    @property
    def step(self) -> Worker:
        """The median of all workers, part by part."""
        parts = ("input", "compute", "communication")
        return Worker(**{part: statistics.median(getattr(each, part) for each in self.workers) for part in parts})


def result_of(log: bytes) -> Result | None:
    """The result in the last matching line; None if there is none, or it is invalid."""
    lines = [line for line in log.splitlines() if line.startswith(MARK)]
    if not lines:
        return None
    try:
        return Result.model_validate_json(lines[-1][len(MARK) - 1 :])
    except ValidationError:
        return None


def placed(result: Result, strategy: str, nodes: Mapping[tuple[str, int], str]) -> Result:
    """Adds each worker's task and node (`nodes` is by role and index). In an all-reduce the master is the first worker."""
    tasks = [("master", 0), *(("worker", n) for n in range(len(result.workers) - 1))]
    if strategy == "parameter-server":
        tasks = [("worker", n) for n in range(len(result.workers))]
    workers = [
        worker.model_copy(update={"role": task[0], "index": task[1], "node": nodes.get(task, "")})
        for worker, task in zip(result.workers, tasks, strict=True)
    ]
    return result.model_copy(update={"workers": tuple(workers)})


def efficiencies(rates: Mapping[int, float]) -> dict[int, float]:
    """Examples per second by count → each task's rate relative to that at the smallest count. 1.0 is linear scaling."""
    if not rates:
        return {}
    least = min(rates)
    return {count: rate / count / (rates[least] / least) for count, rate in rates.items()}


@dataclass(frozen=True)
class Outlier:
    """A worker whose own rate (a step without waiting) is `percent` above (+) or below (-) the median of all."""

    worker: Worker
    percent: float


def outliers(workers: Sequence[Worker]) -> list[Outlier]:
    """Workers outside TOLERANCE, slowest first. Empty for fewer than LEAST_WORKERS."""
    if len(workers) < LEAST_WORKERS:
        return []
    median = statistics.median(1 / worker.alone for worker in workers)
    found = [Outlier(worker, 100 * (1 / worker.alone / median - 1)) for worker in workers]
    return sorted((each for each in found if abs(each.percent) > 100 * TOLERANCE), key=lambda each: each.percent)


def difference(rate: float, before: float, at: dt.date, image: str) -> str:
    """“7 % slower than on 3 May with tensorflow-2-20.”"""
    change = rate / before - 1
    how = (
        "As fast as"
        if abs(change) < NOISE
        else f"{100 * abs(change):.0f} % {'faster' if change > 0 else 'slower'} than"
    )
    return f"{how} on {at.day} {at:%B %Y} with {image}."


def stored(value: Mapping[str, Any] | None) -> Result | None:
    return Result.model_validate(value) if value else None
