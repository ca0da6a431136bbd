"""Reads the scalars of a run from tables of metrics: CSV files as Lightning's CSVLogger, Keras' CSVLogger, Ultralytics and Stable
Baselines write them. Pure.

The idea: a file counts if it has a name that such loggers use and a column that numbers the steps; every other column of numbers
is a line. Loggers rewrite a table when a column is added, so it is read anew when it has changed, and it must be short.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import PurePosixPath

from clusters.scalars.events import MAX_LINES_PER_FILE, MAX_TAG, Point, Series

NAMES = frozenset({"metrics.csv", "results.csv", "progress.csv", "history.csv", "log.csv", "training.log"})
# Columns that number the steps; the first that a table has counts.
STEPS = ("step", "global_step", "iteration", "epoch", "time/total_timesteps", "timesteps_total")
MAX_STEP = 10**15
# Tables of a run, and bytes of a table that are read.
MAX_TABLES, MAX_TABLE = 20, 4 * 1024 * 1024


def is_table(path: str) -> bool:
    return PurePosixPath(path).name in NAMES


def series_of(data: bytes) -> dict[str, Series]:
    """The lines of a table by their columns; none without a column that numbers the steps. Its last row may still be incomplete
    and is left out then, and so is all from a row on that is no CSV."""
    whole, _, _ = data.decode(errors="replace").rpartition("\n")
    rows = _rows(whole)
    names = [name.strip() for name in next(rows, [])]
    steps = next((names.index(name) for name in STEPS if name in names), None)
    if steps is None:
        return {}
    columns = [n for n, name in enumerate(names) if n != steps and name and len(name) <= MAX_TAG][:MAX_LINES_PER_FILE]
    found: dict[str, Series] = {}
    for row in rows:
        if len(row) != len(names) or (step := _number(row[steps])) is None:
            continue
        if step != step // 1 or abs(step) >= MAX_STEP:
            continue
        for n in columns:
            if (value := _number(row[n])) is not None:
                found.setdefault(names[n], Series()).add(Point(int(step), 0.0, value))
    return found


def _rows(text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text))
    except csv.Error:  # Such as a cell of more than 128 KiB: a program wrote something else under this name.
        return


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
