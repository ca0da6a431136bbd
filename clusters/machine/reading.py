"""What the tasks of a run do and did, for pages and REST. Two queries for any number of tasks: one for all series of the run, and
one for the samples of the few that are drawn."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from django.db import connection

from clusters.clouds.models import CloudState
from clusters.machine import series
from clusters.machine.models import MachineSeries
from clusters.machine.rates import GAP, QUANTITIES
from clusters.runs.models import Run

# Lines of a chart beside that of the whole run; points of each line.
MOST_LINES, POINTS = 10, 300
# Rows that are read of one run: tasks and their attempts.
MOST_ROWS = 5000
# How long a GPU does nothing before people are told.
IDLE_AFTER = dt.timedelta(minutes=10)
# A sample that is older than this does not say what a task does now.
FRESH = dt.timedelta(seconds=45)
SAMPLES = """
SELECT id, %s AS step, extract(epoch FROM begin)::float8, recent FROM clusters_machineseries
WHERE id = ANY(%s) AND begin < %s AND recent <> ''
UNION ALL
SELECT series_id, step, extract(epoch FROM begin)::float8, data FROM clusters_machineblock
WHERE series_id = ANY(%s) AND begin < %s
    AND begin > %s - make_interval(secs => CASE step WHEN 10 THEN 600 WHEN 60 THEN 21600 ELSE 864000 END)
"""
Numbers = dict[str, float | None]


@dataclass(frozen=True)
class GpuState:
    """A GPU of a task, as it was at the last sample."""

    id: str
    percent: float | None
    memory_bytes: int | None
    idle_since: dt.datetime | None

    @property
    def is_known(self) -> bool:
        return self.percent is not None


@dataclass(frozen=True)
class Usage:
    """One task (or, without a role, the whole run): what it did at its last sample, at most, and on average over its life; all
    by the names of QUANTITIES. `is_now`: that sample is recent."""

    id: int
    role: str
    index: int
    attempt: int
    at: dt.datetime
    is_now: bool
    now: Numbers
    mean: Numbers
    peak: Numbers
    gpus: tuple[GpuState, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}" if self.role else ""

    def idle_gpus(self, now: dt.datetime) -> list[GpuState]:
        """Its GPUs that have done nothing for IDLE_AFTER, if that is known now."""
        return (
            [each for each in self.gpus if each.idle_since and now - each.idle_since >= IDLE_AFTER]
            if self.is_now
            else []
        )


@dataclass(frozen=True)
class Curve:
    """What one task, or the whole run, did over time: for each of QUANTITIES the mean, and the smallest and the largest value,
    None where unknown. `times`: seconds since 1970, each the end of what it stands for."""

    name: str
    times: list[float]
    mean: dict[str, list[float | None]]
    low: dict[str, list[float | None]]
    high: dict[str, list[float | None]]


@dataclass(frozen=True)
class MachineUse:
    """What a run did from its first to its last sample. `tasks`: the newest attempt of each, by role and index. `whole`: all of
    them together, if there are several."""

    tasks: list[Usage]
    whole: Usage | None
    notes: list[str]
    since: dt.datetime
    until: dt.datetime
    _attempts: dict[str, list[int]]

    @property
    def busiest(self) -> list[Usage]:
        """The tasks with the most GPU use on average, or where no GPU was measured, with the most CPU."""
        return sorted(self.tasks, key=lambda each: [-(each.mean[name] or 0) for name in ("gpu", "cpu")])[:MOST_LINES]

    @cached_property
    def together(self) -> Usage | None:
        """The whole run, or its only task."""
        return self.whole or (self.tasks[0] if len(self.tasks) == 1 else None)

    def ids(self, names: Collection[str]) -> dict[int, str]:
        """The series of these tasks, all attempts; "" is the whole run."""
        found = {pk: name for name in names for pk in self._attempts.get(name, ())}
        return found | ({self.whole.id: ""} if self.whole and "" in names else {})


def use_of(run: Run, now: dt.datetime) -> MachineUse:
    """What the tasks of a run do and did. Two queries."""
    rows = MachineSeries.objects.filter(run=run).defer("recent").order_by("role", "index", "attempt")[:MOST_ROWS]
    newest, attempts, whole = dict[str, Usage](), defaultdict[str, list[int]](list), None
    for row in rows:
        each = _usage(row, now)
        if row.role:
            newest[each.name] = each
            attempts[each.name].append(row.pk)
        else:
            whole = each
    tasks = list(newest.values())
    begins = [dt.datetime.fromtimestamp(row.state["since"], dt.UTC) for row in rows]
    return MachineUse(
        tasks,
        whole if len(tasks) > 1 else None,
        [] if run.is_terminal else _notes(run, tasks),
        min(begins, default=now),
        max((row.at for row in rows), default=now),
        attempts,
    )


def _notes(run: Run, tasks: Sequence[Usage]) -> list[str]:
    """Why something is not measured of this run, if it is not."""
    said = CloudState.objects.filter(name=run.cloud).values_list("unmeasured", flat=True).first() or {}
    lacks = {
        "cpu": not tasks or any(each.now["cpu"] is None for each in tasks),
        "network": any(each.now["received"] is None for each in tasks),
        "gpu": run.gpus > 0 and not any(gpu.is_known for each in tasks for gpu in each.gpus),
    }
    return [sentence for name, sentence in said.items() if lacks.get(name)]


def _usage(row: MachineSeries, now: dt.datetime) -> Usage:
    state = row.state
    sample, totals = state.get("sample") or {}, state["totals"]
    idle = {gpu: dt.datetime.fromtimestamp(at, dt.UTC) for gpu, at in state["idle"].items()}
    gpus = tuple(
        GpuState(gpu["id"], gpu["percent"], gpu["memory_bytes"], idle.get(gpu["id"])) for gpu in sample.get("gpus", ())
    )
    return Usage(
        id=row.pk,
        role=row.role,
        index=row.index,
        attempt=row.attempt,
        at=row.at,
        is_now=now - row.at <= FRESH,
        now=dict(zip(QUANTITIES, state["now"], strict=True)),
        mean={
            name: total / seconds if seconds else None
            for name, (seconds, total, _) in zip(QUANTITIES, totals, strict=True)
        },
        peak={name: peak for name, (_, _, peak) in zip(QUANTITIES, totals, strict=True)},
        gpus=gpus,
    )


def curves(
    use: MachineUse, names: Sequence[str], since: dt.datetime, until: dt.datetime, points: int = POINTS
) -> tuple[int, list[Curve]]:
    """What these tasks did in that time, "" for the whole run, in the order of `names`; and the seconds of a point. One query."""
    ids = use.ids(names)
    blocks: defaultdict[tuple[str, bool], list[tuple[float, bytes]]] = defaultdict(list)
    coarsest = series.STEP
    if ids:
        with connection.cursor() as cursor:
            cursor.execute(SAMPLES, [series.STEP, list(ids), until, list(ids), until, since])
            for pk, step, begin, data in cursor.fetchall():
                is_wide = step != series.STEP or not ids[pk]
                coarsest = max(coarsest, step)
                blocks[ids[pk], is_wide].append((begin, bytes(data)))
    first, last = since.timestamp(), until.timestamp()
    width = series.width_for(first, last, points, coarsest)
    found = []
    for name in dict.fromkeys(names):
        parts = ((is_wide, blocks[name, is_wide]) for is_wide in (False, True))
        rows = series.joined(series.rows_of(some, is_wide=is_wide) for is_wide, some in parts if some)
        rows = series.bucketed(rows[(rows["at"] > first) & (rows["at"] <= last)], width)
        found.append(_curve(name, rows, width))
    return width, [each for each in found if each.times]


def _curve(name: str, rows: series.Rows, width: int) -> Curve:
    rows = series.broken(rows, width, GAP)
    mean, low, high = (
        {
            quantity: [None if math.isnan(value) else value for value in values]
            for quantity, values in zip(QUANTITIES, rows[part].T.tolist(), strict=True)
        }
        for part in ("mean", "low", "high")
    )
    return Curve(name, rows["at"].tolist(), mean, low, high)
