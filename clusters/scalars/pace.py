"""The pace of tasks and which of them fall behind, from the steps that each prints and the times of those lines. Pure.

The idea: tasks of one role do the same work, so a task with less than half the median steps per second has a cause worth
finding: a slow node, a throttled GPU, a neighbour. Tasks that print no steps are not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from clusters.clouds.drivers import marks
from clusters.scalars.printed import MAX_LINE, STEP

# Minimum tasks and seconds before looking for stragglers: fewer tasks have no useful median, and start-up distorts a short time.
LEAST_TASKS, LEAST_SECONDS = 3, 5.0
BEHIND = 0.5


@dataclass(frozen=True)
class Straggler:
    """A task that falls behind. `pace` and its role's `median` are in steps per second."""

    role: str
    index: int
    pace: float
    median: float

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def steps_told(data: bytes, start: int, marked: bytes) -> list[tuple[int, float]]:
    """The steps in a piece of a log, each with the time when it was printed, in seconds since 1970. `data` starts at byte
    `start` of the log, and `marked` has its marks. Lines without a known time are left out."""
    found: list[tuple[int, float]] = []
    offset = start
    for line in data.splitlines(keepends=True):
        step = STEP.search(line[:MAX_LINE].decode(errors="replace"))
        if step and (at := marks.at(marked, offset)):
            found.append((int(step[1]), at / 1e6))
        offset += len(line)
    return found


def pace(data: bytes, start: int, marked: bytes) -> float | None:
    """Steps per second at the end of a log; arguments as in `steps_told`. None if the steps span less than LEAST_SECONDS. After
    a restart of the program, only later steps count."""
    found: list[tuple[int, float]] = []
    for step, at in steps_told(data, start, marked):
        if found and step < found[-1][0]:
            found = []
        found.append((step, at))
    if not found or found[-1][1] - found[0][1] < LEAST_SECONDS:
        return None
    return (found[-1][0] - found[0][0]) / (found[-1][1] - found[0][1])


def stragglers(paces: Mapping[tuple[str, int], float]) -> list[Straggler]:
    """Tasks that fall behind others of their role, slowest first. `paces` has the known ones, by role and index."""
    found = []
    for role in {role for role, _ in paces}:
        of = {index: each for (its, index), each in paces.items() if its == role}
        middle = median(of.values())
        if len(of) >= LEAST_TASKS:
            found += [Straggler(role, index, each, middle) for index, each in of.items() if each < BEHIND * middle]
    return sorted(found, key=lambda each: (each.pace / each.median, each.role, each.index))
