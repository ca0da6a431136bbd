"""Tasks that ended early and came back, and how many steps were trained again because of it. Pure.

The idea: a program's reported steps are a record of its training. Where they drop after a crash, it resumed from a checkpoint,
and all steps between that and the last one reported before were trained twice. With parameter servers nothing drops, since the
other workers went on. A program that starts over by itself, or a folder with an earlier run's files, does not count as a crash.
"""

from __future__ import annotations

import signal
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath
from statistics import median

from clusters.scalars.events import Progress, Series
from portal.text.words import often

# Limits for one run, as a task may crash and come back for weeks: crashes kept, and ends evaluated for them.
MAX_CRASHES, MAX_ENDS = 50, 500
# Later times (seconds since 1970) and NaN are not valid times of a point.
END_OF_TIME = 1e11


@dataclass(frozen=True)
class End:
    """An attempt of a task that ended without a request to stop. Times in seconds since 1970. `back_at` is the start of the
    next attempt, None without one."""

    role: str
    index: int
    at: float
    how: str
    back_at: float | None = None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class Stretch:
    """Steps that a program reported between two starts, with rising times. `points` has every `stride`-th of them."""

    points: Sequence[tuple[int, float]]
    stride: int = 1

    @property
    def gap(self) -> float | None:
        """Steps between two reported ones."""
        found = [after - before for (before, _), (after, _) in pairwise(self.points)]
        return median(found) / self.stride if found else None


@dataclass(frozen=True)
class Crash:
    """One task's end, or `times` ends with no step between them; `others` tasks ended with it before all were back. `step` is
    the last one reported before, `repeated` steps (None: not known yet) were trained again, and took `seconds` the first
    time."""

    role: str
    index: int
    at: float
    how: str
    others: int = 0
    is_back: bool = False
    step: int | None = None
    repeated: int | None = None
    seconds: float = 0.0
    times: int = 1

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def sentence(self) -> str:
        """`worker-1 ended by signal 9 at step 412, came back, and 12 steps were trained again.`"""
        where = f" at step {self.step}" if self.step is not None else ""
        more = f", with {self.others} other task{'s'[: self.others != 1]}" if self.others else ""
        if self.times > 1 and not self.is_back:
            what = self.how.removeprefix("with ").removeprefix("by ")
            return f"{self.name} failed {often(self.times)} ({what}){where}{more}."
        back = "came back" if self.is_back else "has not come back"
        if self.repeated is None:
            return f"{self.name} ended {self.how}{where}{more}, and {back}."
        steps = (
            "no step was"
            if not self.repeated
            else "1 step was"
            if self.repeated == 1
            else f"{self.repeated} steps were"
        )
        return f"{self.name} ended {self.how}{where}{more}, {back}, and {steps} trained again."


def how(exit_code: int | None, reason: str) -> str:
    """How a task ended, as text after “ended”."""
    if reason == "OOMKilled":
        return "because memory ran out"
    if reason == "Lost":
        return "without a trace"
    if reason == "Disrupted":
        return "because the cloud took it away"
    if exit_code is not None and 128 < exit_code < 128 + signal.NSIG:
        return f"by signal {exit_code - 128}"
    return f"with exit code {exit_code}" if exit_code is not None else f"({reason})" if reason else "by itself"


def crashes(ends: Iterable[End], stretches: Sequence[Stretch]) -> list[Crash]:
    """The crashes of a run, ordered by time. `stretches` has what its program reported since the run began, in that order.

    A task that ends while another is not back yet, or before the next step is reported, belongs to the same crash.
    """
    told = sorted((at, step) for stretch in stretches for step, at in stretch.points)
    found: list[list[End]] = []
    ordered = sorted(ends, key=lambda each: (each.at, each.role, each.index))[-MAX_ENDS:]
    # Without steps, all ends of a task that failed for good count as one crash.
    last = {each.name: each.back_at for each in ordered}
    for end in ordered:
        together = found[-1] if found else []
        is_known = bool(told) or (last[end.name] is None and any(each.name == end.name for each in together))
        is_one = any(each.back_at is not None and end.at <= each.back_at for each in together) or (
            bool(together) and is_known and _until(told, end.at) == _until(told, together[-1].at)
        )
        if is_one:
            together.append(end)
        else:
            found.append([end])
    while len(found) > 1 and _came_to_nothing(told, *found[-2:]):
        found[-2:] = [[*found[-2], *found[-1]]]
    usual = next((gap for gap in (stretch.gap for stretch in stretches) if gap is not None), 0.0)
    until: list[float | None] = [group[0].at for group in found[1:]]
    anew = list(pairwise(stretches))
    crashed = zip(found, [*until, None], strict=False)
    return [_crash(group, next_, told, anew, usual) for group, next_ in crashed]


def _came_to_nothing(told: Sequence[tuple[float, int]], before: Sequence[End], after: Sequence[End]) -> bool:
    """Whether a task came back after `before` only to fail for good in the same way, at no later step."""
    (first, again), last = (before[0], after[0]), after[-1]
    if (first.name, first.how) != (again.name, again.how) or last.name != first.name or last.back_at is not None:
        return False
    reached = [step for _, step in told[: _until(told, first.at)]]
    since = [step for _, step in told[_until(told, first.at) : _until(told, again.at)]]
    return bool(reached) and all(step <= max(reached) for step in since)


def _until(told: Sequence[tuple[float, int]], at: float) -> int:
    """Number of steps reported before `at`."""
    return bisect_left(told, (at, -1))


def _crash(
    group: Sequence[End],
    until: float | None,
    told: Sequence[tuple[float, int]],
    anew: Sequence[tuple[Stretch, Stretch]],
    usual: float,
) -> Crash:
    """`until` is the start of the next crash; `told` has (time, step), sorted."""
    first = group[0]
    last = {each.name: each for each in group}
    is_back = all(each.back_at is not None for each in last.values())
    times = sum(each.name == first.name for each in group)
    how_last = last[first.name].how
    made = Crash(first.role, first.index, first.at, how_last, len(last) - 1, is_back, times=times)
    at = _until(told, first.at)
    if not at:
        return made
    made = replace(made, step=told[at - 1][1])
    if at == len(told) or (until is not None and told[at][0] >= until):
        return made
    repeated, seconds = 0, 0.0
    for one, next_ in anew:
        if first.at <= next_.points[0][1] and (until is None or next_.points[0][1] < until):
            lost, took = _lost(one, next_, usual)
            repeated, seconds = repeated + lost, seconds + took
    return replace(made, repeated=repeated, seconds=seconds)


def _lost(before: Stretch, after: Stretch, usual: float) -> tuple[int, float]:
    """Number of steps of `before` that were trained again in `after`, and the seconds they took the first time. A reported step
    stands for all since the previous report, so `after` began one gap before its first step."""
    gap = after.gap if after.gap is not None else usual
    resumed = after.points[0][0] - gap
    last, ended = before.points[-1]
    lost = max(0, round(last - resumed))
    since = next((at for step, at in before.points if step >= resumed), ended)
    return lost, max(0.0, ended - since) if lost else 0.0


def stretches_of(points: Sequence[tuple[int, float]], stride: int = 1) -> list[Stretch]:
    """Splits where steps drop: the program restarted within the same file or log."""
    found: list[list[tuple[int, float]]] = []
    for point in points:
        if found and point[0] > found[-1][-1][0]:
            found[-1].append(point)
        elif not found or point[0] < found[-1][-1][0]:
            found.append([point])
    return [Stretch(tuple(each), stride) for each in found]


def told_in(files: Mapping[str, Progress], since: float) -> list[Stretch]:
    """The steps in event files (by path) that were begun at `since` or later. Several lines report the same steps, so only the
    line (a tag in one folder) with most points counts. Lines beside it, as of an evaluator, count differently."""
    lines: dict[tuple[str, str], list[tuple[float, Series]]] = {}
    for path, file in files.items():
        if file.started >= since:
            for tag, series in file.series.items():
                lines.setdefault((tag, str(PurePosixPath(path).parent)), []).append((file.started, series))
    if not lines:
        return []
    longest = max(sorted(lines), key=lambda line: sum(series.seen for _, series in lines[line]))
    found: list[Stretch] = []
    for _, series in sorted(lines[longest], key=lambda each: each[0]):
        points = [(each.step, each.wall_time) for each in series.all if since <= each.wall_time < END_OF_TIME]
        found += stretches_of(points, series.stride)
    return found
