"""What a measurement came to: the line that its program prints, and what follows from several of them. Pure."""

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
# A worker that is further from the median of all is named.
TOLERANCE = 0.1
# Of two it cannot be said which one is slow.
LEAST_WORKERS = 3
# With a larger spread the machines were busy with something else, and its rates are compared with nothing.
NOISY = 0.5
# A rate that differs by less from an earlier one is the same.
NOISE = 0.03
# Rates are divided by each other.
Rate = Annotated[float, Field(gt=1e-9, lt=1e12, allow_inf_nan=False)]
# Clocks may be set back a little meanwhile.
Seconds = Annotated[float, Field(gt=-1, lt=1e6, allow_inf_nan=False)]


class Worker(BaseModel):
    """Seconds of the median step of one task that computes: until the batch was there, then until the gradients were, and what it
    waited for others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Seconds
    compute: Seconds
    communication: Seconds
    role: str = Field(default="", max_length=20)
    index: int = Field(default=0, ge=0, description="Of its role.")
    node: str = Field(default="", max_length=253)

    @property
    def alone(self) -> float:
        """Seconds of a step without the others."""
        return max(self.input + self.compute, 1e-9)


class Result(BaseModel):
    """As the program prints it. A step of all-reduce is one of all tasks; one of parameter servers is that of one worker.
    `spread` is that of the windows, the fastest less the slowest, as a part of their median."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    global_step_per_second: Rate
    examples_per_second: Rate
    spread: float = Field(ge=0, lt=1e9)
    replicas: int = Field(ge=1, le=100_000)
    # PostgreSQL keeps no NUL in JSON.
    tensorflow: str = Field(max_length=40, pattern=PRINTED)
    device: str = Field(max_length=100, pattern=PRINTED)
    workers: Annotated[tuple[Worker, ...], Field(min_length=1, max_length=MAX_COUNT)]

    @property
    def step(self) -> Worker:
        """The median of all workers, part by part."""
        parts = ("input", "compute", "communication")
        return Worker(**{part: statistics.median(getattr(each, part) for each in self.workers) for part in parts})


def result_of(log: bytes) -> Result | None:
    """What the last of its lines says; None where there is none, or it is none of ours."""
    lines = [line for line in log.splitlines() if line.startswith(MARK)]
    if not lines:
        return None
    try:
        return Result.model_validate_json(lines[-1][len(MARK) - 1 :])
    except ValidationError:
        return None


def placed(result: Result, strategy: str, nodes: Mapping[tuple[str, int], str]) -> Result:
    """With the task that each worker is, and its node (`nodes` by role and index): of an all-reduce the master is the first."""
    tasks = [("master", 0), *(("worker", n) for n in range(len(result.workers) - 1))]
    if strategy == "parameter-server":
        tasks = [("worker", n) for n in range(len(result.workers))]
    workers = [
        worker.model_copy(update={"role": task[0], "index": task[1], "node": nodes.get(task, "")})
        for worker, task in zip(result.workers, tasks, strict=True)
    ]
    return result.model_copy(update={"workers": tuple(workers)})


def efficiencies(rates: Mapping[int, float]) -> dict[int, float]:
    """Of examples a second by count: those of one task as a part of what one had at the least count. 1.0 is linear."""
    if not rates:
        return {}
    least = min(rates)
    return {count: rate / count / (rates[least] / least) for count, rate in rates.items()}


@dataclass(frozen=True)
class Outlier:
    """A worker whose own rate (a step without the others) is `percent` above (+) or below (-) the median of all."""

    worker: Worker
    percent: float


def outliers(workers: Sequence[Worker]) -> list[Outlier]:
    """Those outside TOLERANCE, the slowest first; of fewer than LEAST_WORKERS none."""
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
