"""The tasks of a run as its pages show them: a strip with all of them, and a table of those that need a look.

The idea: a run of four tasks is read whole, one of a thousand is not. Beyond `WHOLE` tasks the table starts with a few rows, the
failing and the slowest, and the rest is behind filters, a page at a time. It takes the same queries however many there are.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.http import QueryDict
from django.utils import timezone
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString

from clusters.frameworks import FRAMEWORKS, ROLES
from clusters.logs import failure
from clusters.logs.remedies import Remedy, remedy
from clusters.runs.models import Run, Task
from clusters.runs.placing.known import domains_of

# A run with at most WHOLE tasks is listed whole, a larger one by BRIEF rows at first; PAGE rows of those that a filter finds.
WHOLE, BRIEF, PAGE = 20, 10, 50
# The strip of cells: from how many tasks on, and from how many on its cells are small.
STRIP_FROM, SMALL_FROM = 9, 200
# The phases of tasks in the order of filters.
PHASES = ("Failed", "Running", "Pending", "Stopped", "Succeeded")
# What needs a look first.
URGENCY = {phase: n for n, phase in enumerate(("Failed", "Pending", "Running", "Stopped", "Succeeded"))}


@dataclass(frozen=True)
class TaskRow:
    """One task of the run with its newest attempt; `task` is None until the cloud reports it. `where` its node is: "rack r7"."""

    role: str
    index: int
    task: Task | None
    where: str = ""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def phase(self) -> str:
        """Stopped for a task that the portal ended, whatever its exit code."""
        if self.task is None:
            return "Pending"
        return "Stopped" if self.task.phase == "Failed" and self.task.reason == "Stopped" else self.task.phase

    @property
    def reason(self) -> str:
        """The reason, unless it equals the phase."""
        return self.task.reason if self.task and self.task.reason != self.phase else ""

    @property
    def message(self) -> str:
        return self.task.sentence if self.task and self.task.sentence.strip(".") != self.phase else ""

    @property
    def exit_code(self) -> int | None:
        """None for a task that the portal ended: its exit code means nothing."""
        return None if self.task is None or self.phase == "Stopped" else self.task.exit_code

    @property
    def before_error(self) -> tuple[list[str], str]:
        """The lines before the error of its program, and the error; no lines and "" if it said none."""
        return failure.before_error(self.task.log_tail) if self.task else ([], "")

    @property
    def remedy(self) -> Remedy | None:
        """What usually mends its failure, as far as known."""
        if self.task is None:
            return None
        error = failure.error_line(self.task.log_tail)
        return remedy(self.task.reason, self.exit_code, error) or remedy("", self.exit_code, self.task.log_tail)

    @property
    def has_log(self) -> bool:
        """Whether its program has ever been started."""
        return self.task is not None and (self.phase != "Pending" or self.task.attempt > 0)

    @property
    def since(self) -> dt.datetime | None:
        """When it entered its phase, as far as known."""
        if self.task is None:
            return None
        return self.task.finished_at or self.task.started_at or self.task.scheduled_at

    @property
    def title(self) -> str:
        """Tooltip of the strip's cell."""
        why = f" ({self.task.reason})" if self.task and self.task.reason else ""
        return f"{self.name}: {self.phase}{why}"

    @property
    def lasted(self) -> float:
        """Seconds since its program began, or until it ended; 0 before."""
        if self.task is None or self.task.started_at is None:
            return 0
        return ((self.task.finished_at or timezone.now()) - self.task.started_at).total_seconds()


@dataclass(frozen=True)
class Asked:
    """What the page asks for: tasks of a `phase` ("all" for any), with `words` in their name, from row `start` on; nothing at
    first."""

    phase: str = ""
    words: str = ""
    start: int = 0

    @classmethod
    def read(cls, query: QueryDict) -> Asked:
        phase, cursor = query.get("tasks", ""), query.get("cursor", "")
        start = int(cursor) if cursor.isascii() and cursor.isdecimal() and len(cursor) < 6 else 0
        return cls(phase if phase in (*PHASES, "all") else "", query.get("named", "")[:40], start)


@dataclass(frozen=True)
class Table:
    """The rows to show, of `found` ones that the filters let through, of `total` tasks. `counts`: how many are in each phase."""

    rows: list[TaskRow]
    asked: Asked
    total: int
    found: int
    counts: list[tuple[str, int]]

    @property
    def is_whole(self) -> bool:
        return self.total <= WHOLE

    @property
    def is_brief(self) -> bool:
        return not self.is_whole and not self.asked.phase and not self.asked.words

    @property
    def next_start(self) -> int:
        """The first row of the next page; 0 on the last one."""
        end = self.asked.start + len(self.rows)
        return 0 if self.is_brief or self.is_whole or end >= self.found else end


def table(rows: Sequence[TaskRow], asked: Asked, *, is_apart: bool) -> Table:
    """`rows` are all tasks in their order. `is_apart`: each has a result of its own, so that one may be slower than others."""
    counts = Counter(row.phase for row in rows)
    said = [(phase, counts[phase]) for phase in PHASES if counts[phase]]
    if len(rows) <= WHOLE:
        return Table(_in_order(rows, is_apart=is_apart), Asked(), len(rows), len(rows), said)
    if not asked.phase and not asked.words:
        first = sorted(rows, key=lambda row: _urgency(row, is_apart=is_apart))[:BRIEF]
        return Table(first, asked, len(rows), len(rows), said)
    chosen = [row for row in rows if asked.phase in ("", "all", row.phase) and asked.words in row.name]
    page = _in_order(chosen, is_apart=is_apart)[asked.start : asked.start + PAGE]
    return Table(page, asked, len(rows), len(chosen), said)


def _urgency(row: TaskRow, *, is_apart: bool) -> tuple[int, int, float]:
    """Sort key: failing first, then those that failed before, then the slowest, where tasks do not wait for each other."""
    attempts = row.task.attempt if row.task else 0
    slow = row.lasted if is_apart and row.phase in ("Running", "Succeeded") else 0
    return URGENCY.get(row.phase, len(URGENCY)), -attempts, -slow


def _in_order(rows: Sequence[TaskRow], *, is_apart: bool) -> list[TaskRow]:
    """Rows in table order: failed tasks first if tasks are independent."""
    return sorted(rows, key=lambda row: row.phase != "Failed") if is_apart else list(rows)


def strip(rows: Sequence[TaskRow], url: str, query: str) -> SafeString:
    """A cell for each task that leads to its log; "" for few tasks. Made here: a template takes seconds for ten thousand. Keys
    skip the cells, because the table has the same links."""
    if len(rows) < STRIP_FROM:
        return SafeString("")
    ours = escape(query)
    cells = "".join(
        f'<a class="cell cell-{row.phase.lower()}" href="{url}/logs?task={row.name}{ours}" title="{escape(row.title)}" '
        'tabindex="-1"></a>'
        for row in rows
    )
    small = " is-small" if len(rows) > SMALL_FROM else ""
    return format_html(
        '<div class="strip{}" role="group" aria-label="One cell for each task">{}</div>', small, SafeString(cells)
    )


def options(rows: Sequence[TaskRow], wanted: str) -> SafeString:
    """The choices of the tab Logs: failed tasks first, then all in their order. Made here for the same reason as `strip`."""

    def option(row: TaskRow) -> str:
        chosen = " selected" if row.name == wanted else ""
        return f'<option value="{row.name}"{chosen}>{row.name} ({row.phase})</option>'

    failed = [row for row in rows if row.phase == "Failed"]
    if not failed or len(rows) <= WHOLE:
        return SafeString("".join(map(option, rows)))
    others = "".join(option(row) for row in rows if row.phase != "Failed")
    first = "".join(map(option, failed))
    return SafeString(f'<optgroup label="Failed">{first}</optgroup><optgroup label="Others">{others}</optgroup>')


def task_rows(run: Run) -> list[TaskRow]:
    """All tasks that the run has or will have, by role and index. One query."""
    # The end of a log is read with the one task that is shown with it.
    tasks = run.tasks.order_by("role", "index", "-attempt").distinct("role", "index").defer("log_tail", "log_message")
    newest = {(task.role, task.index): task for task in tasks}
    return [
        TaskRow(role, index, newest.get((role, index)))
        for role in ROLES
        for index in range(run.roles.get(role, {}).get("count", 0))
    ]


def says_its_own(run: Run) -> bool:
    """Whether its tasks are independent, so that each has its own result."""
    return FRAMEWORKS[run.spec["framework"]].is_independent


def in_order(run: Run, rows: list[TaskRow]) -> list[TaskRow]:
    """Rows in table order: failed tasks first if tasks are independent."""
    return _in_order(rows, is_apart=says_its_own(run))


def failed_first(run: Run, rows: list[TaskRow]) -> list[TaskRow]:
    """Failed tasks, the one that the run's message names first."""
    failed = [row for row in rows if row.phase == "Failed"]
    said = run.message.partition("\n")[0]
    return sorted(failed, key=lambda row: not (f" {row.name} " in f" {said}" or f"({row.name}, " in said))


def located(run: Run, rows: list[TaskRow]) -> list[TaskRow]:
    """The rows with where their nodes are. One query."""
    domains = domains_of(run.cloud, {row.task.node for row in rows if row.task and row.task.node})
    return [replace(row, where=domains.get(row.task.node, "") if row.task else "") for row in rows]
