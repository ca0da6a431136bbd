"""From a run and a column to a cell, and from a column to its heading."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

from django.conf import settings

from clusters.results.columns import Facts, value_of
from clusters.results.markup import Cell, Heading
from clusters.results.query import Row
from clusters.results.values import is_judged, is_less_better
from clusters.results.view import FIELDS, NUMBERS, Column, View
from clusters.runs.models import Run
from portal.pages.charts import number
from portal.templatetags.portal import elapsed, gpu_hours, money, time

KIND_WORDS = {"best": "best", "min": "smallest", "max": "largest", "last": ""}
# Longer numbers among parameters are rounded.
MAX_DIGITS = 9


def facts_of(row: Row, now: dt.datetime) -> Facts:
    return Facts({name: text_of(name, row.run, now) for name in FIELDS}, row.parameters, row.numbers)


def text_of(name: str, run: Run, now: dt.datetime) -> str:
    """A fact as a plain text, by which rows are told apart and which a CSV has."""
    if name == "state":
        return str(run.phase)
    if name == "who":
        return run.created_by.username if run.created_by else ""
    if name == "started":
        return f"{run.started_at.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}" if run.started_at else ""
    if name == "duration":
        return f"{((run.finished_at or now) - run.started_at).total_seconds():.0f}" if run.started_at else ""
    if name == "gpus":
        return str(run.gpus) if run.gpus else ""
    if name == "hours":
        return f"{run.gpu_seconds_at(now) / 3600:.4f}" if run.gpu_seconds_at(now) else ""
    if name == "cost":
        return f"{run.cost_at(now):.6f}" if run.cost_at(now) else ""
    return ", ".join(run.tags) if name == "tags" else run.note


def heading_of(view: View, column: Column, numeric: Set[Column], *, is_twice: bool = False) -> Heading:
    """`is_twice`: of a parameter that has the name of a metric beside it."""
    now = view.sorting
    is_sorted = now is not None and now[0] == column
    falls = bool(now and now[1])
    can_sort = column.kind != "field" or column.name not in ("tags", "note")
    word = settings.CURRENCY if column.key == "cost" else "parameter" if is_twice else KIND_WORDS.get(column.kind, "")
    is_fact = column.kind == "field" and column.name in ("started", *NUMBERS)
    is_number = column.is_metric or is_fact or column in numeric
    kind = "metric" if column.is_metric else column.name if column.kind == "field" else column.kind
    return Heading(
        label=column.name if column.kind != "field" else FIELDS[column.name], note=word, kind=kind,
        url=view.sorted_by(column).query if can_sort else "",
        mark=("↓" if falls else "↑") if is_sorted else "", aria=("descending" if falls else "ascending") if is_sorted else "",
        title=column.name if column.kind != "field" else "", is_number=is_number,
    )  # fmt: skip


def labelled(cells: Iterable[Cell], headings: Sequence[Heading]) -> list[Cell]:
    return [replace(cell, label=heading.words) for cell, heading in zip(cells, headings, strict=True)]


def cell_of(row: Row, column: Column, best: float | None, view: View, now: dt.datetime, *, is_numeric: bool) -> Cell:
    if column.is_metric:
        if (summary := row.numbers.get(column.name)) is None:
            return Cell("metric", "", is_number=True)
        value, step = value_of(column, summary)
        if value is None:
            return Cell("metric", "", is_number=True)
        at = "" if column.kind == "last" else f"@ {step:,}"
        is_best = best is not None and value == best and row.counts
        return Cell("metric", number(value), at, f"{value!r} at step {step:,}", "", is_number=True, is_best=is_best)
    if column.kind == "param":
        text = row.parameters.get(column.name, "")
        # Samplers draw numbers of 17 digits.
        shown = number(float(text)) if is_numeric and len(text) > MAX_DIGITS else text
        return Cell("param", shown, title=text, is_number=is_numeric)
    return _fact(row.run, column, view, now)


def _fact(run: Run, column: Column, view: View, now: dt.datetime) -> Cell:
    name = column.name
    if name == "tags":
        links = tuple((tag, view.but(tag="" if view.tag == tag else tag).query) for tag in run.tags)
        return Cell("tags", "", links=links)
    if name == "note":
        return Cell("note", run.note, title=run.note)
    if name == "who":
        who = text_of(name, run, now)
        return Cell("who", who, url=view.but(who="" if view.who == who else who).query if who else "")
    if name == "state":
        return Cell("state", str(run.phase), str(run.reason) if run.phase == Run.Phase.FAILED else "")
    shown: dict[str, Any] = {
        "started": lambda: time(run.started_at or run.created_at),
        "duration": lambda: elapsed(run.started_at, run.finished_at),
        "gpus": lambda: run.gpus or "", "hours": lambda: gpu_hours(run.gpu_seconds_at(now)),
        "cost": lambda: money(run.cost_at(now)),
    }  # fmt: skip
    return Cell(name, shown[name](), is_number=True)


def is_numeric(name: str, rows: Sequence[Row]) -> bool:
    """Whether every value of a parameter is a number, so that they are read below each other."""
    return all(_is_number(row.parameters[name]) for row in rows if name in row.parameters)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def best_of(column: Column, rows: Sequence[Row]) -> float | None:
    """The best value of a column among the rows that count; None if fewer than two have one, or all the same."""
    if not is_judged(column.name):
        return None
    counting = [row for row in rows if row.counts and column.name in row.numbers]
    values = [value_of(column, row.numbers[column.name])[0] for row in counting]
    finite = [value for value in values if value is not None and value - value == 0]
    if len(finite) < 2 or len(set(finite)) == 1:
        return None
    is_low = column.kind == "min" or (column.kind != "max" and is_less_better(column.name))
    return min(finite) if is_low else max(finite)
