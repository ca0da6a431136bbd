"""A chart of stacked columns as data: the template draws it without JavaScript, in the colours of the page's theme.

The drawing knows no pixels: heights and places are percent of a square that the browser stretches, so that words keep
their size on a telephone. (pygal was tried: it draws words into the picture, which shrink with it, and knows one
theme.) Pure: numbers in, numbers out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from billing.rating import display

# As many as the theme has colours; the last one is everything else.
MAX_SERIES = 6
OTHERS = "all others"


@dataclass(frozen=True)
class Block:
    """A part of a column: `top` and `height` in percent of the chart, `series` counts from 1, for the colour."""

    series: int
    name: str
    value: Decimal
    top: float
    height: float

    @property
    def text(self) -> str:
        return f"{display(self.value):,}"


@dataclass(frozen=True)
class Column:
    """One bar, `left` and `width` with its share of the space between bars."""

    label: str
    total: Decimal
    left: float
    width: float
    blocks: tuple[Block, ...]

    @property
    def bar(self) -> tuple[float, float]:
        """Where the bar itself begins, and how wide it is; a chart of few columns does not get doors."""
        width = min(self.width * 0.7, 8)
        return self.middle - width / 2, width

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


@dataclass(frozen=True)
class Columns:
    """`scale` is the height in units of money, a round number; `ticks` are (its quarters in words, percent from the
    top)."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    scale: Decimal
    ticks: tuple[tuple[str, float], ...]

    @property
    def labels(self) -> tuple[Column, ...]:
        """The columns whose labels fit below a narrow chart."""
        step = -(-len(self.columns) // 6)
        return self.columns[::step] if step else ()


def draw(columns: Sequence[tuple[str, Mapping[str, Decimal]]]) -> Columns:
    """The chart of (label, value by name) pairs; the largest names get a colour each and the rest share one."""
    sums: dict[str, Decimal] = {}
    for _, values in columns:
        for name, value in values.items():
            sums[name] = sums.get(name, Decimal(0)) + value
    ranked = sorted(sums, key=lambda name: (-sums[name], name))
    shown = ranked if len(ranked) <= MAX_SERIES else [*ranked[: MAX_SERIES - 1], OTHERS]
    top = round_up(max((sum(values.values(), Decimal(0)) for _, values in columns), default=Decimal(0)))
    width = 100 / max(len(columns), 1)
    return Columns(
        names=tuple(shown),
        columns=tuple(
            _column(label, _merged(values, shown), shown, top, n * width, width)
            for n, (label, values) in enumerate(columns)
        ),
        scale=top,
        ticks=tuple((f"{(top * n / 4).normalize():,f}", 100 - 25.0 * n) for n in range(4, -1, -1)),
    )


def round_up(value: Decimal) -> Decimal:
    """The next round number whose quarters are short to write."""
    if value <= 0:
        return Decimal(1)
    power = Decimal(1).scaleb(value.adjusted())
    return next(power * step / 10 for step in (10, 12, 16, 20, 24, 32, 40, 60, 80, 100) if power * step / 10 >= value)


def _merged(values: Mapping[str, Decimal], shown: Sequence[str]) -> dict[str, Decimal]:
    merged: dict[str, Decimal] = {}
    for name, value in values.items():
        name = name if name in shown else OTHERS
        merged[name] = merged.get(name, Decimal(0)) + value
    return {name: merged[name] for name in shown if merged.get(name)}


def _column(
    label: str, values: Mapping[str, Decimal], names: Sequence[str], scale: Decimal, left: float, width: float
) -> Column:
    blocks, top = [], 100.0
    for name, value in values.items():
        height = float(value / scale * 100)
        top -= height
        blocks.append(Block(names.index(name) + 1, name, value, top, height))
    return Column(label, sum(values.values(), Decimal(0)), left, width, tuple(blocks))
