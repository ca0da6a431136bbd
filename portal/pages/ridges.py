"""How a distribution changes over the steps of a training, as ridges for an SVG template: one for each step, the newest in front.
The drawing lives in the same square as other charts (`charts.py`). Pure: numbers in, strings out.

Ridges share their axis. A narrow distribution is higher than a wide one, but only by the square root: weights that start as one
value would otherwise flatten all that comes after them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from portal.pages.charts import SIDE, Tick, number, ticks

# Height of a ridge, as a share of the drawing; labels beside the ridges.
HEIGHT, MAX_LABELS = 0.3, 6
# Shades of the theme, the strongest first.
SHADES = 5
# Width of a ridge whose values are all the same, as a share of the drawing.
SPIKE = 0.012


@dataclass(frozen=True)
class Heap:
    """The values of one step: `counts` in bins of equal width from `low` to `high`. `text` says them in words."""

    label: str
    low: float
    high: float
    counts: Sequence[float]
    text: str = ""


@dataclass(frozen=True)
class Ridge:
    """`shade` is 1 for the newest, SHADES for the oldest."""

    path: str
    shade: int
    text: str


@dataclass(frozen=True)
class Ridges:
    """`ridges` in the order in which they are drawn: the oldest first, behind all others."""

    ridges: tuple[Ridge, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def draw_ridges(heaps: Sequence[Heap]) -> Ridges:
    """The ridges of `heaps`, which are in the order of their steps. Values are finite."""
    low, high = _bounds(heaps)
    peaks = [max(_densities(heap, high - low)) for heap in heaps]
    highest = max((peak for heap, peak in zip(heaps, peaks, strict=True) if heap.high > heap.low), default=1.0)
    height = SIDE * (HEIGHT if len(heaps) > 1 else 0.9)
    feet = [SIDE if len(heaps) == 1 else height + (SIDE - height) * n / (len(heaps) - 1) for n in range(len(heaps))]
    ridges = []
    for n, (heap, peak, foot) in enumerate(zip(heaps, peaks, feet, strict=True)):
        top = height * min(1.0, math.sqrt(peak / highest)) if heap.high > heap.low else height
        shade = SHADES - SHADES * (n + 1) // len(heaps) or 1
        ridges.append(Ridge(_path(heap, peak, low, high, foot, top), shade, heap.text))
    stride = -(-len(heaps) // MAX_LABELS)
    chosen = [n for n in range(len(heaps)) if (len(heaps) - 1 - n) % stride == 0]
    return Ridges(
        tuple(ridges),
        tuple(Tick(number(x), 100 * (x - low) / (high - low)) for x in ticks(low, high, 5) if low <= x <= high),
        tuple(Tick(heaps[n].label, 100 * feet[n] / SIDE) for n in chosen),
    )


def _bounds(heaps: Sequence[Heap]) -> tuple[float, float]:
    low, high = min(heap.low for heap in heaps), max(heap.high for heap in heaps)
    room = max((high - low) * 0.02, abs(high) * 1e-6, abs(low) * 1e-6) or 1.0
    return low - room, high + room


def _densities(heap: Heap, span: float) -> list[float]:
    """The share of the values in each bin, by the width of a bin."""
    width = max((heap.high - heap.low) / span, SPIKE) / len(heap.counts)
    total = sum(heap.counts) or 1.0
    return [count / total / width for count in heap.counts]


def _path(heap: Heap, peak: float, low: float, high: float, foot: float, top: float) -> str:
    def place(value: float) -> float:
        return SIDE * (value - low) / (high - low)

    start, end = place(heap.low), place(heap.high)
    if end - start < SIDE * SPIKE:
        middle = (start + end) / 2
        start, end = middle - SIDE * SPIKE / 2, middle + SIDE * SPIKE / 2
    width = (end - start) / len(heap.counts)
    points = [(0.0, foot), (start, foot)]
    if heap.high > heap.low:
        heights = _densities(heap, high - low)
        points += [(start + (n + 0.5) * width, foot - top * each / (peak or 1.0)) for n, each in enumerate(heights)]
    else:
        points.append(((start + end) / 2, foot - top))
    points += [(end, foot), (SIDE, foot)]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
