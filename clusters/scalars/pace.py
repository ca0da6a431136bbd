"""How fast tasks go, and which of them fall behind: from the steps that each prints, and the times of those lines. Pure.

One idea: tasks of one role do the same, so one that makes less than half as many steps in a second as the median of them has a
reason that people want to look for: a slow node, a throttled GPU, a neighbour. Where nobody prints steps nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from clusters.clouds.drivers import marks
from clusters.scalars.printed import MAX_LINE, STEP

# Of fewer tasks there is no median to be behind; a shorter time tells of a start, and not of a pace.
LEAST_TASKS, LEAST_SECONDS = 3, 5.0
BEHIND = 0.5


@dataclass(frozen=True)
class Straggler:
    """A task that falls behind: its steps in a second, and the median of its role."""

    role: str
    index: int
    pace: float
    median: float

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def steps_told(data: bytes, start: int, marked: bytes) -> list[tuple[int, float]]:
    """The steps in a piece of a log and when they were printed, in seconds since 1970: `data` lies at byte `start` of it, and
    `marked` are its marks. What nobody knows the time of is left out."""
    found: list[tuple[int, float]] = []
    offset = start
    for line in data.splitlines(keepends=True):
        step = STEP.search(line[:MAX_LINE].decode(errors="replace"))
        if step and (at := marks.at(marked, offset)):
            found.append((int(step[1]), at / 1e6))
        offset += len(line)
    return found


def pace(data: bytes, start: int, marked: bytes) -> float | None:
    """Steps in a second over the end of a log, as in `steps_told`. None where no two steps lie LEAST_SECONDS apart. A program
    that began anew counts from there on."""
    found: list[tuple[int, float]] = []
    for step, at in steps_told(data, start, marked):
        if found and step < found[-1][0]:
            found = []
        found.append((step, at))
    if not found or found[-1][1] - found[0][1] < LEAST_SECONDS:
        return None
    return (found[-1][0] - found[0][0]) / (found[-1][1] - found[0][1])


def stragglers(paces: Mapping[tuple[str, int], float]) -> list[Straggler]:
    """Those that fall behind the others of their role, the slowest first. `paces` are those that are known, by role and index."""
    found = []
    for role in {role for role, _ in paces}:
        of = {index: each for (its, index), each in paces.items() if its == role}
        middle = median(of.values())
        if len(of) >= LEAST_TASKS:
            found += [Straggler(role, index, each, middle) for index, each in of.items() if each < BEHIND * middle]
    return sorted(found, key=lambda each: (each.pace / each.median, each.role, each.index))
