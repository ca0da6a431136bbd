"""Parameters and a metric of the rows as parallel coordinates: which settings led to good values. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from clusters.results.values import is_judged, is_less_better
from clusters.results.view import Column, View
from portal.pages.charts import Dimension, Strands, draw_strands, number

# Axes beside that of the metric, choices of one, and the fewest runs that say anything.
MOST_AXES, MOST_CHOICES, LEAST_RUNS = 6, 8, 3
# From this ratio of the largest to the smallest value on, an axis is logarithmic; from the lower one on, if that spreads settings
# more evenly, such as 16, 32, 64, 128.
DECADES, OCTAVES = 100, 8


@dataclass(frozen=True)
class Point:
    """What a line stands for: a run, with its value of the metric."""

    name: str
    url: str
    parameters: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Drawn:
    """The drawing, and the metric of its last axis."""

    metric: str
    strands: Strands


def metric_of(shown: Sequence[Column], view: View) -> Column | None:
    """The metric by which the rows are sorted, else the first one shown of which one value is better than another."""
    if view.sorting and view.sorting[0].is_metric:
        return view.sorting[0]
    return next((column for column in shown if column.is_metric and is_judged(column.name)), None)


def drawn(runs: Sequence[Point], names: Sequence[str], metric: Column) -> Drawn | None:
    """None if there is too little to see: fewer than LEAST_RUNS with a value, or no parameter that differs."""
    found = [run for run in runs if math.isfinite(run.value)]
    found.sort(key=lambda run: run.value if is_less_better(metric.name) else -run.value)
    axes = [axis for name in names if (axis := _axis(name, [run.parameters.get(name) for run in found]))][:MOST_AXES]
    if len(found) < LEAST_RUNS or not axes:
        return None
    axes.append(_of_numbers(metric.name, [run.value for run in found]))
    return Drawn(metric.name, draw_strands(axes, [(_words(run, names, metric), run.url) for run in found]))


def _words(run: Point, names: Sequence[str], metric: Column) -> str:
    said = ", ".join(f"{name} = {run.parameters[name]}" for name in names if name in run.parameters)
    return f"{run.name}: {metric.name} = {number(run.value)}" + (f"; {said}" if said else "")


def _axis(name: str, texts: Sequence[str | None]) -> Dimension | None:
    """Of numbers if all values are some, else of choices; None if all are the same, or too many to be read."""
    different = list(dict.fromkeys(text for text in texts if text is not None))
    if len(different) < 2:
        return None
    numbers = [None if text is None else _number(text) for text in texts]
    known = [value for value in numbers if value is not None]
    if len(known) == sum(text is not None for text in texts) and min(known) < max(known):
        low, high = min(known), max(known)
        log = low > 0 and (high / low >= DECADES or (high / low >= OCTAVES and _is_geometric(known)))
        return Dimension(name, numbers, low, high, log=log, is_setting=True)
    return Dimension(name, texts, choices=sorted(different)) if len(different) <= MOST_CHOICES else None


def _of_numbers(name: str, numbers: Sequence[float | None]) -> Dimension:
    """From the smallest to the largest value: one that diverged has its place, and a log axis leaves room for others."""
    known = [value for value in numbers if value is not None]
    low, high = min(known), max(known)
    return Dimension(name, numbers, low, high, log=low > 0 and high / low >= DECADES)


def _is_geometric(values: Sequence[float]) -> bool:
    """Whether the logarithms of positive values are spread more evenly than the values."""

    def widest(there: Sequence[float]) -> float:
        return max(after - before for before, after in pairwise(there)) / (there[-1] - there[0])

    there = sorted(set(values))
    return widest([math.log(each) for each in there]) < widest(there)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
