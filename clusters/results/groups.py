"""The table of a grouped view: a line for each value of a parameter, a person or a state, with means and best values."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import replace

from django.conf import settings

from clusters.results import query
from clusters.results.cells import facts_of, labelled
from clusters.results.columns import Columns, columns
from clusters.results.markup import Cell, GroupLine, Heading, Table
from clusters.results.values import is_less_better
from clusters.results.view import FIELDS, Column, Condition, View, conditions
from portal.models import Appcode
from portal.pages.charts import COLOURS, number, series
from portal.templatetags.portal import gpu_hours, money


def grouped(appcode: Appcode, view: View, now: dt.datetime) -> Table:
    # With its metrics and parameters the table without groups begins.
    first = columns([facts_of(row, now) for row in query.newest(appcode, view)], None)
    chosen = view.columns
    if chosen is None:
        chosen = tuple(each.key for each in first.shown if each.kind == "last")[: query.GROUP_METRICS]
    found, total, shown, notes = query.groups(appcode, replace(view, columns=chosen), now)
    column = Column.of(view.group)
    assert column is not None
    headings = [Heading("Runs", "", "field", "", "", "", "", True)]
    best: dict[str, list[float | None]] = {}
    for name in shown:
        headings += [
            Heading(name, "mean", "metric", "", "", "", name, True), Heading(name, "best", "metric", "", "", "", name, True),
        ]  # fmt: skip
        pairs = [each.numbers.get(name, (None, None)) for each in found]
        best[name] = [_least([pair[n] for pair in pairs], is_low=is_less_better(name)) for n in (0, 1)]
    units = {"hours": "", "cost": settings.CURRENCY}
    headings += [Heading(FIELDS[name], unit, "field", "", "", "", "", True) for name, unit in units.items()]
    style = styles_of_groups(found) if view.charts and shown else {}
    lines = []
    for each in sorted(found, key=lambda group: _order(group.value)):
        cells = [Cell("field", f"{each.runs:,}", is_number=True)]
        for name in shown:
            for n, value in enumerate(each.numbers.get(name, (None, None))):
                text, is_best = ("", False) if value is None else (number(value), value == best[name][n])
                cells.append(Cell("metric", text, is_number=True, is_best=is_best))
        cells.append(Cell("field", gpu_hours(round(each.gpu_hours * 3600)), is_number=True))
        cells.append(Cell("field", money(each.cost), is_number=True))
        inside = _inside(view, column, each.value)
        label, shown_as = each.value or "none", style.get(each.value, 0)
        lines.append(GroupLine(label, inside, labelled(cells, headings), shown_as, label_of(column, each.value)))
    return Table(
        appcode,
        view,
        headings,
        [],
        lines,
        total,
        notes,
        Columns([], 0, shown, []),
        any(each.living for each in found),
        1,
        [],
        choices(first),
    )


def choices(known: Columns) -> list[tuple[str, str]]:
    """By what runs can be grouped, as (key, words)."""
    return [("who", FIELDS["who"]), ("state", FIELDS["state"]), *((f"param:{name}", name) for name in known.parameters)]


def label_of(column: Column, value: str | None) -> str:
    """A group in words: “LR = 0.1”."""
    return f"{column.name} = {value or 'none'}" if column.kind == "param" else value or "none"


def styles_of_groups(found: Sequence[query.Group]) -> dict[str | None, int]:
    """The series of the curves of the largest groups by their value, at most COLOURS. They go by the order of the values, so that
    more runs of a group change no colour."""
    drawn = [each.value for each in found[:COLOURS]]
    return {value: series(n) for n, value in enumerate(sorted(drawn, key=_order))}


def _order(value: str | None) -> tuple[bool, float, str]:
    try:
        number_ = float(value or "")
    except ValueError:
        number_ = math.inf
    # NaN has no place in an order.
    return value is None, math.inf if math.isnan(number_) else number_, value or ""


def _least(values: Sequence[float | None], *, is_low: bool) -> float | None:
    found = [value for value in values if value is not None and math.isfinite(value)]
    if len(found) < 2 or len(set(found)) == 1:
        return None
    return min(found) if is_low else max(found)


def _inside(view: View, column: Column, value: str | None) -> str:
    """The address of the runs of a group; "" for those that no condition names: without a value, or with one that has commas."""
    if value is None:
        return ""
    if column.kind == "param":
        condition = f"{column.name} = {value}"
        if conditions(condition) != ([Condition("", column.name, "=", value)], []) or "|" in value:
            return ""
        return view.but(group="", where=f"{view.where}, {condition}" if view.where else condition).query
    return view.but(group="", **{"who" if column.name == "who" else "state": value}).query
