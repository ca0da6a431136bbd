"""Compares runs as values: the words in which definitions differ, and their numbers. Pure."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from clusters.scalars.events import Curve, Point, Scalars
from portal.pages.charts import LINES

# Words in which names of one metric differ between programs: what programs call training says nothing, as it is the default.
_WORDS = {
    "train": "",
    "training": "",
    "valid": "val",
    "validation": "val",
    "eval": "val",
    "evaluation": "val",
    "acc": "accuracy",
}
# Words that stand before the name, or behind it: “val_loss”, “Loss/val”.
_PARTS = ("val", "test")
# Each has a colour.
MOST = LINES
# Steps at which a mean of curves is taken.
MOST_STEPS = 500


@dataclass(frozen=True)
class Difference:
    """A field of a definition (`roles.worker.count`) that differs between runs, and its value in each; None where unset."""

    path: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1

    @property
    def is_hash(self) -> bool:
        """Whether only the beginning is shown."""
        return self.path.endswith((".digest", ".commit"))


@dataclass(frozen=True)
class Summary:
    """One line of numbers in one run. NaN and infinite values count for `last` only."""

    folder: str
    step: int
    last: float
    smallest: float | None
    largest: float | None


def differences(definitions: Sequence[Mapping[str, Any]], *, equal: bool = False) -> list[Difference]:
    """The differences, ordered by path; with `equal`, also what is the same in all."""
    said = [flat(each) for each in definitions]
    paths = sorted({path for each in said for path in each})
    found = (Difference(path, tuple(each.get(path) for each in said)) for path in paths)
    return [each for each in found if equal or each.differs]


def flat(spec: Any, path: str = "") -> dict[str, str]:
    """A manifest as one entry for each value: "roles.worker.count" → "4". Empty values are left out."""
    if isinstance(spec, dict):
        found: dict[str, str] = {}
        for key, value in spec.items():
            found |= flat(value, f"{path}.{key}" if path else key)
        return found
    if spec is None or spec is False or spec in ("", []):
        return {}
    return {path: spec if isinstance(spec, str) else json.dumps(spec, ensure_ascii=False)}


def folded(name: str) -> str:
    """What names of the same metric have in common: “Loss/train”, “train_loss” and “loss”; “eval/acc” and “val_accuracy”."""
    words = re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold())
    said = [word for each in words if (word := _WORDS.get(each, each))]
    return " ".join(sorted(said, key=lambda word: word not in _PARTS)) or name


def alike(runs: Sequence[Collection[str]]) -> list[tuple[str, ...]]:
    """The names of the metrics of runs, those of one metric together, in the order in which they come. Where a run has two names
    of one metric, such as “loss” and “train_loss”, all of its names stay apart."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for names in runs for name in names):
        groups.setdefault(folded(name), []).append(name)
    found = list[tuple[str, ...]]()
    for names in groups.values():
        is_clear = len(names) == 1 or all(sum(name in run for name in names) < 2 for run in runs)
        found += [tuple(names)] if is_clear else [(name,) for name in names]
    return found


def by_tag(scalars: Scalars) -> dict[str, list[Summary]]:
    """Summaries of all lines, by tag in order. One pass: a run may have thousands of tags and lines."""
    found: dict[str, list[Summary]] = {tag: [] for tag in scalars.tags}
    for curve in scalars.curves:
        if curve.points:
            found[curve.tag].append(_summary(curve))
    return found


def summaries(scalars: Scalars, tag: str) -> list[Summary]:
    return [_summary(curve) for curve in scalars.curves if curve.tag == tag and curve.points]


def _summary(curve: Curve) -> Summary:
    values = [point.value for point in curve.points if math.isfinite(point.value)]
    last = curve.points[-1]
    return Summary(curve.folder, last.step, last.value, min(values, default=None), max(values, default=None))


def smoothed(values: Iterable[float], weight: float) -> Iterator[float]:
    """TensorBoard's moving average with debiased start: each value weighs `weight` (0 to below 1, 0 for no smoothing) times as
    much as the next one. NaN and infinite values stay and affect no other."""
    total, share = 0.0, 0.0
    for value in values:
        if not math.isfinite(value):
            yield value
            continue
        total, share = total * weight + value * (1 - weight), share * weight + 1 - weight
        yield total / share


def mean_of(curves: Sequence[Sequence[Point]]) -> list[tuple[float, float, float, float]]:
    """Of curves of one metric (step, mean, lowest, highest), at most MOST_STEPS. A curve counts from its first step to its last,
    interpolated between two. NaN and infinite values are left out."""
    known = [sorted({p.step: p.value for p in curve if math.isfinite(p.value)}.items()) for curve in curves]
    known = [each for each in known if each]
    steps = sorted({step for each in known for step, _ in each})
    stride = -(-len(steps) // MOST_STEPS) or 1
    columns = [[step for step, _ in each] for each in known]
    found = []
    for step in sorted({*steps[::stride], *steps[-1:]}):
        inside = [
            _between(each, bisect_left(column, step), step)
            for each, column in zip(known, columns, strict=True)
            if column[0] <= step <= column[-1]
        ]
        low, high = min(inside), max(inside)
        found.append((float(step), _held(fmean(inside), low, high), low, high))
    return found


def _between(points: Sequence[tuple[int, float]], after: int, step: int) -> float:
    """The value at `step`, which is at most that of the point `after`."""
    x, y = points[after]
    if x == step:
        return y
    x0, y0 = points[after - 1]
    share = (step - x0) / (x - x0)
    return _held(y0 * (1 - share) + y * share, min(y0, y), max(y0, y))


def _held(value: float, low: float, high: float) -> float:
    """The rounding of a sum may carry it past its addends."""
    return min(high, max(low, value))


def placed(points: Sequence[Point], weight: float, since: float | None) -> list[tuple[float, float]]:
    """A line of a chart as (x, y): over steps, or over seconds after `since`."""
    values = smoothed((point.value for point in points), weight)
    return [
        (float(point.step) if since is None else point.wall_time - since, value)
        for point, value in zip(points, values, strict=True)
    ]
