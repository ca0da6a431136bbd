"""Tasks that ended before their time and came back, and how many steps were trained again because of it. Pure.

One idea: the steps that a program told are its diary. Where they fall behind a crash it went on from a checkpoint, and everything
between that and the last step told before was trained twice. Where workers ask parameter servers, nothing falls: the others went
on. A program that begins anew by itself, and a folder in which an earlier run has written, say nothing of crashes.
"""

from __future__ import annotations

import signal
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath
from statistics import median

from clusters.phase import often
from clusters.scalars.events import Progress, Series

# What is kept of a run, and how many ends are looked at for it: something may end and come back for weeks.
MAX_CRASHES, MAX_ENDS = 50, 500
# Seconds since 1970: what is later, or is no number, is no time at which something was told.
END_OF_TIME = 1e11


@dataclass(frozen=True)
class End:
    """An attempt of a task that ended without having been asked to. Times in seconds since 1970; `back_at` is when the next
    attempt began, None where there is none."""

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
    """Steps as a program told them between two starts, rising in time; of them every `stride`-th is here."""

    points: Sequence[tuple[int, float]]
    stride: int = 1

    @property
    def gap(self) -> float | None:
        """How many steps lie between two that are told."""
        found = [after - before for (before, _), (after, _) in pairwise(self.points)]
        return median(found) / self.stride if found else None


@dataclass(frozen=True)
class Crash:
    """One task's end, or `times` ends with no step between them, with as many `others` as ended before everything was back.
    `step` is the last that was told before, `repeated` how many steps were trained again (None: nobody knows yet), `seconds` what
    those had taken the first time."""

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
    """For people, behind “ended”."""
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
    """In the order of time. `ends` are those of a run, `stretches` what its program told since the run began, in that order.

    What ends while another task is not back yet, or before another step is told, ended because of it.
    """
    told = sorted((at, step) for stretch in stretches for step, at in stretch.points)
    found: list[list[End]] = []
    ordered = sorted(ends, key=lambda each: (each.at, each.role, each.index))[-MAX_ENDS:]
    # Of programs that tell no steps, the ends of a task that failed in the end are one.
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
    usual = next((gap for gap in (stretch.gap for stretch in stretches) if gap is not None), 0.0)
    until: list[float | None] = [group[0].at for group in found[1:]]
    anew = list(pairwise(stretches))
    crashed = zip(found, [*until, None], strict=False)
    return [_crash(group, next_, told, anew, usual) for group, next_ in crashed]


def _until(told: Sequence[tuple[float, int]], at: float) -> int:
    """How many steps were told before."""
    return bisect_left(told, (at, -1))


def _crash(
    group: Sequence[End],
    until: float | None,
    told: Sequence[tuple[float, int]],
    anew: Sequence[tuple[Stretch, Stretch]],
    usual: float,
) -> Crash:
    """`until` is when the next crash began; `told` are times and steps, in that order."""
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
    """How many steps of `before` were trained again in `after`, and the seconds that they had taken. A step that is told says
    that those since the one told before it were trained: so `after` began one gap before its first."""
    gap = after.gap if after.gap is not None else usual
    resumed = after.points[0][0] - gap
    last, ended = before.points[-1]
    lost = max(0, round(last - resumed))
    since = next((at for step, at in before.points if step >= resumed), ended)
    return lost, max(0.0, ended - since) if lost else 0.0


def stretches_of(points: Sequence[tuple[int, float]], stride: int = 1) -> list[Stretch]:
    """Cut where steps fall: a program that began anew in the same file, or log."""
    found: list[list[tuple[int, float]]] = []
    for point in points:
        if found and point[0] > found[-1][-1][0]:
            found[-1].append(point)
        elif not found or point[0] < found[-1][-1][0]:
            found.append([point])
    return [Stretch(tuple(each), stride) for each in found]


def told_in(files: Mapping[str, Progress], since: float) -> list[Stretch]:
    """What event files, by their paths, say, without those that were begun before `since`. Several lines have the same steps: the
    one with most points counts, a tag in one folder. What is written beside it, as by an evaluator, counts in its own way."""
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
