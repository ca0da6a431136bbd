"""From samples of a task to what it does: counters become rates, and idle GPUs are known since when. Pure.

A counter that is smaller than before began anew: that sample has no rate. Neither has the first one, nor one that comes more
than GAP seconds after the one before, because nobody knows when between them the work was done. So a gap stays a gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from clusters.clouds.drivers.base import Sample

# In this order everywhere: percent, bytes, cores, bytes, and bytes a second.
QUANTITIES = ("gpu", "gpu_memory", "cpu", "memory", "received", "sent", "read", "written")
# Seconds between two samples beyond which nothing is said about the time between them.
GAP = 90.0
# A GPU below that many percent is idle.
IDLE_PERCENT = 5.0
Values = tuple[float, ...]


@dataclass(frozen=True)
class Step:
    """What a task did in the `seconds` before a sample, one value for each of QUANTITIES, NaN where unknown. 0 seconds: nothing
    is known but what it holds at that moment."""

    seconds: float
    values: Values


def step(before: Sample | None, now: Sample) -> Step:
    """Returns what a task did between two samples of it."""
    elapsed = now.at - before.at if before is not None else 0.0
    seconds = elapsed if 0 < elapsed <= GAP else 0.0

    def rate(name: str) -> float:
        old, new = getattr(before, name, None), getattr(now, name)
        return (new - old) / seconds if seconds and old is not None and new is not None and new >= old else math.nan

    percents = [gpu.percent for gpu in now.gpus if gpu.percent is not None]
    memory = [gpu.memory_bytes for gpu in now.gpus if gpu.memory_bytes is not None]
    values = (
        sum(percents) / len(percents) if percents else math.nan,
        float(sum(memory)) if memory else math.nan,
        rate("cpu_seconds") if now.cores is None else now.cores,
        math.nan if now.memory_bytes is None else float(now.memory_bytes),
        *(rate(name) for name in QUANTITIES[4:]),
    )
    return Step(seconds, values)


def idle_since(known: Mapping[str, float], now: Sample, seconds: float) -> dict[str, float]:
    """Returns since when each idle GPU of a task is idle (seconds since 1970). `known`: the same after the sample before, which
    was `seconds` earlier; 0: longer ago than GAP. A GPU that does not say how busy it is counts as not idle."""
    before = known if seconds else {}
    return {
        gpu.id: before.get(gpu.id, now.at - seconds)
        for gpu in now.gpus
        if gpu.percent is not None and gpu.percent < IDLE_PERCENT
    }
