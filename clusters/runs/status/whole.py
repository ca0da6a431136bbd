"""When a placed run is whole: its tasks that need each other have had nodes at one moment. Pure.

It goes by the times of tasks, not by what they do now: one batch of news may tell that the last task got its node and that
another has failed since, and a run that was whole for a minute is billed for that minute.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class Seen(Protocol):
    """What is needed of a task, be it a row or news. Read-only, since news is frozen."""

    @property
    def role(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def scheduled_at(self) -> dt.datetime | None: ...
    @property
    def began_at(self) -> dt.datetime | None: ...
    @property
    def started_at(self) -> dt.datetime | None: ...
    @property
    def finished_at(self) -> dt.datetime | None: ...


@dataclass(frozen=True)
class Span:
    """[since, until) in which the task at (role, index) lacks no node; `until` is None while it has one, and after a success."""

    role: str
    index: int
    since: dt.datetime
    until: dt.datetime | None = None


def span_of(task: Seen, at: dt.datetime) -> Span | None:
    """The span of one attempt; None if it had no node. A cloud that tells no times is believed from `at` on."""
    times = [each for each in (task.scheduled_at, task.began_at, task.started_at) if each]
    if task.phase == "Succeeded":
        return Span(task.role, task.index, times[0] if times else task.finished_at or at)
    if not task.node:
        return None
    since = times[0] if times else at
    # A failure without a time held nothing after the last that is known of it.
    ended = task.finished_at or max(times, default=since)
    return Span(task.role, task.index, since, ended if task.phase == "Failed" else None)


def whole_since(counts: Mapping[str, int], spans: Iterable[Span], *, independent: bool) -> dt.datetime | None:
    """The first moment at which all `counts` tasks by role have nodes or have succeeded; of independent tasks any one suffices.
    None if there was no such moment."""
    held = [span for span in spans if span.until is None or span.since < span.until]
    if independent:
        return min((span.since for span in held), default=None)
    lacking = dict(counts)
    attempts: Counter[tuple[str, int]] = Counter()
    # At one moment ends come before starts: a node that passes from one task to another serves one of them.
    starts = [(span.since, 1, span.role, span.index) for span in held]
    ends = [(span.until, -1, span.role, span.index) for span in held if span.until is not None]
    for moment, step, role, index in sorted(starts + ends):
        had = attempts[role, index] > 0
        attempts[role, index] += step
        has = attempts[role, index] > 0
        lacking[role] = lacking.get(role, 0) + had - has
        if has and all(count <= 0 for count in lacking.values()):
            return moment
    return None


def layout_of(tasks: Iterable[Seen]) -> dict[str, dict[str, int]]:
    """The number of tasks by role and node. A failed task keeps its last node for its next attempt; one that succeeded needs
    none."""
    nodes: dict[tuple[str, int], str] = {}
    for task in sorted(tasks, key=lambda task: task.attempt):
        if task.phase == "Succeeded":
            nodes.pop((task.role, task.index), None)
        elif task.node:
            nodes[task.role, task.index] = task.node
    found: dict[str, dict[str, int]] = {}
    for (role, _), node in sorted(nodes.items()):
        of_role = found.setdefault(role, {})
        of_role[node] = of_role.get(node, 0) + 1
    return found
