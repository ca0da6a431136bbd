"""The table as lines of a CSV: the state and the columns that the view shows, of all its runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from django.utils import timezone
from django.utils.html import strip_tags

from clusters.results import query
from clusters.results.cells import text_of
from clusters.results.columns import value_of
from clusters.results.query import Row
from clusters.results.table import columns_of, needs_newest, table_of
from clusters.results.view import Column, View
from portal.models import Appcode

# Rows of a CSV, and how many of them are read at once.
MOST_LINES, AT_ONCE = 10_000, 1000
_STATE = Column("field", "state")


def csv_of(appcode: Appcode, view: View) -> tuple[list[str], Iterator[list[str]]]:
    """The head and the lines of a CSV: the state and the columns that the view shows, for all of its rows up to MOST_LINES; or
    its groups."""
    if view.group:
        table = table_of(appcode, view)
        head = [table.group_name, *(each.words for each in table.headings)]
        return head, ([line.label, *(strip_tags(str(cell.text)) for cell in line.cells)] for line in table.groups)
    now = timezone.now()
    first = query.find(appcode, view.but(), now, with_newest=needs_newest(view))
    # A program that reads the table has to know which runs failed.
    shown = list(dict.fromkeys((_STATE, *columns_of(view, first, now).shown)))
    head = ["run"]
    for column in shown:
        head += [column.key, f"{column.key} step"] if column.is_metric and column.kind != "last" else [column.key]
    return head, _csv_rows(appcode, view, shown, now)


def _csv_rows(appcode: Appcode, view: View, shown: Sequence[Column], now: dt.datetime) -> Iterator[list[str]]:
    for page in range(1, MOST_LINES // AT_ONCE + 1):
        found = query.find(appcode, view.but(page=page), now, AT_ONCE)
        yield from (_csv_cells(row, shown, now) for row in found.rows)
        if page * AT_ONCE >= found.total:
            return


def _csv_cells(row: Row, shown: Sequence[Column], now: dt.datetime) -> list[str]:
    """Values as they are, with the step of each best one."""
    cells = [row.name]
    for column in shown:
        if column.is_metric:
            summary = row.numbers.get(column.name)
            value, step = value_of(column, summary) if summary else (None, None)
            cells.append("" if value is None else repr(value))
            if column.kind != "last":
                cells.append("" if step is None else str(step))
        elif column.kind == "param":
            cells.append(row.parameters.get(column.name, ""))
        else:
            cells.append(text_of(column.name, row.run, now))
    return cells
