"""From a view to the table as pages show it: of an appcode, a cluster's runs, or what a sweep or pipeline started."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import replace

from django.urls import reverse
from django.utils import timezone

from clusters.results import coordinates as parallel
from clusters.results import query
from clusters.results.cells import best_of, cell_of, facts_of, heading_of, is_numeric, labelled
from clusters.results.columns import Columns, columns, value_of
from clusters.results.groups import choices, grouped
from clusters.results.markup import Cell, Line, Pick, Table
from clusters.results.numbers import look_at
from clusters.results.query import ROWS, Row
from clusters.results.values import styles
from clusters.results.view import FIELDS, Column, View
from portal.models import Appcode
from portal.pages.charts import COLOURS, LINES

BOXES = (("last", "last"), ("best", "best"), ("min", "smallest"), ("max", "largest"))


def table_of(appcode: Appcode, view: View) -> Table:
    """The table of a view. Asks for newer numbers of the living runs that it shows."""
    now = timezone.now()
    if view.group:
        return grouped(appcode, view, now)
    found = query.find(appcode, view, now, with_newest=needs_newest(view))
    page = min(view.page, -(-found.total // ROWS) or 1)
    view = view.but(page=page)
    look_at(appcode.pk, [row.run for row in found.rows])
    known = columns_of(view, found, now)
    best = {column: best_of(column, found.rows) for column in known.shown if column.is_metric}
    numeric = {column for column in known.shown if column.kind == "param" and is_numeric(column.name, found.rows)}
    metrics = {column.name for column in known.shown if column.is_metric}
    headings = [
        heading_of(view, column, numeric, is_twice=column.kind == "param" and column.name in metrics)
        for column in known.shown
    ]

    def cells(row: Row) -> list[Cell]:
        made = (
            cell_of(row, column, best.get(column), view, now, is_numeric=column in numeric) for column in known.shown
        )
        return labelled(made, headings)

    lines = _drawn([(row, _line(row, view, cells(row), appcode)) for row in found.rows], view)
    return Table(
        appcode, view, headings, lines, [], found.total, found.notes, known,
        any(not row.run.is_terminal for row in found.rows), -(-found.total // ROWS) or 1, _picks(known), choices(known),
        _coordinates(zip(found.rows, lines, strict=True), known, view) if view.charts else None,
    )  # fmt: skip


def _drawn(lines: Sequence[tuple[Row, Line]], view: View) -> list[Line]:
    """The lines, with the colours of those in the charts: those that somebody chose, or else the first COLOURS."""
    if not view.charts:
        return [line for _, line in lines]
    # Those without numbers would waste a colour; a living one is drawn when it has some.
    able = {line.name: row.run for row, line in lines if row.numbers}
    names = list(able)[:COLOURS] if view.drawn is None else [name for name in able if name in view.drawn][:LINES]
    found = styles({able[name].pk: able[name].hue for name in names})
    by_name = {name: found[able[name].pk] for name in names}

    def turned(name: str) -> str:
        if name not in able or (name not in by_name and len(names) == LINES):
            return ""
        drawn = [each for each in names if each != name] if name in by_name else [*names, name]
        return view.but(drawn=tuple(drawn), page=view.page).query

    return [
        replace(line, series=by_name.get(line.name, 0), turned=turned(line.name), is_drawable=line.name in able)
        for _, line in lines
    ]


def _coordinates(lines: Iterable[tuple[Row, Line]], known: Columns, view: View) -> parallel.Drawn | None:
    if (metric := parallel.metric_of(known.shown, view)) is None:
        return None
    runs = []
    for row, line in lines:
        value = value_of(metric, row.numbers[metric.name])[0] if metric.name in row.numbers else None
        if value is not None and row.counts:
            runs.append(parallel.Point(line.name, line.url, row.parameters, value))
    names = [column.name for column in known.shown if column.kind == "param"]
    return parallel.drawn(runs, names, metric)


def needs_newest(view: View) -> bool:
    return view.columns is None and not view.is_plain


def columns_of(view: View, found: query.Found, now: dt.datetime) -> Columns:
    """Those that were chosen, or else those that tell the newest runs apart, so that a filter adds none."""
    newest = found.newest if needs_newest(view) else found.rows
    return columns([facts_of(row, now) for row in found.rows], _chosen(view), [facts_of(row, now) for row in newest])


def _chosen(view: View) -> list[Column] | None:
    if view.columns is None:
        return None
    return [column for key in view.columns if (column := Column.of(key)) and column.key != "run"]


def _line(row: Row, view: View, cells: list[Cell], appcode: Appcode) -> Line:
    run = row.run
    url = f"/clusters/{appcode.code}/{run.cluster.name}?run={run.number}"
    line = Line(run, row.name, url, view.pinned(row.name).query, row.name in view.pins, cells)
    if not row.trials:
        return line
    sweep = reverse("sweep", args=[appcode.code, run.cluster.part_of.removeprefix("sweeps/")])
    return replace(line, trials_url=sweep, trials=row.trials)


def _picks(known: Columns) -> list[Pick]:
    shown = {column.key for column in known.shown}
    found = [
        Pick("Metrics", name, [(f"{kind}:{name}", word, f"{kind}:{name}" in shown) for kind, word in BOXES])
        for name in known.metrics
    ]
    found += [Pick("Parameters", name, [(f"param:{name}", "", f"param:{name}" in shown)]) for name in known.parameters]
    return found + [Pick("Run", title, [(name, "", name in shown)]) for name, title in FIELDS.items()]
