"""Charts as data for SVG templates: lines, stacked columns, and parallel coordinates.

The drawing knows no pixels. Lines and bars live in a 1000 × 1000 square that the browser stretches to the available
width (with strokes that do not stretch), while labels are text of the page, placed by percent. So text keeps its size
on a phone, and colours follow the theme, light or dark. Server-side libraries (pygal, matplotlib, pysvgchart) draw text
into the picture, where it shrinks, and fix the colours. Line charts also carry their numbers (`Chart.data`): with
JavaScript, static/portal/charts.js draws them again as a chart that answers the pointer. Pure: numbers in, numbers and
strings out.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import quantiles

SIDE = 1000.0
# Beyond these, differences and quotients of floats overflow or vanish; such a value leaves a gap, such a span is flat.
LARGEST, SMALLEST = 1e300, 1e-280
# Points of a line in the picture, and for the script. Longer lines are thinned evenly.
MAX_DRAWN, MAX_SENT = 500, 1000
# The theme's number of colours, ways to draw a line of one (solid and dashed ones, charts.css), and the most lines of a chart.
COLOURS, STROKES, LINES = 10, 4, 20
# Where a column has more parts, the last one sums up all others.
MAX_PARTS = 6
# Share of an axis's height between its foot, for things without a value, and its values.
FOOT = 0.12
# Share of an axis's height that a label takes.
NEAR = 0.08
# Different numbers of a setting up to which each is a label.
SETTINGS = 8
# Instead of a number where a line has none.
NO_VALUE = "–"
OTHERS = "all others"


@dataclass(frozen=True)
class Line:
    """A line of (x, y) in the order of x. A `y` that is NaN, infinite or beyond `LARGEST` leaves a gap. If `scattered`,
    each point is a dot. `times` are the Unix times of the points, if known, and `began` is when its run did. `has_gaps`: NaN is
    time without numbers, and no mistake of a program. `series` is its colour and stroke (`series`); 0: by its place among the
    lines. `spread` has the lowest and the highest of what each point stands for, drawn as a band."""

    label: str
    points: Sequence[tuple[float, float]]
    scattered: bool = False
    times: Sequence[float] = ()
    began: float | None = None
    has_gaps: bool = False
    series: int = 0
    spread: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Tick:
    """A label at an axis; `percent` counts from the left or from the top."""

    text: str
    percent: float

    @property
    def y(self) -> str:
        """Its y coordinate in the drawing."""
        return f"{self.percent * SIDE / 100:.1f}"


@dataclass(frozen=True)
class Drawn:
    """A line ready to draw: `path` and `band` for <path d>, and `dots` for points between two gaps, which no path shows."""

    label: str
    series: int
    path: str
    band: str
    dots: tuple[tuple[float, float], ...]
    latest: str
    smallest: str
    largest: str
    missing: int


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    lines: tuple[Drawn, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    # The numbers as JSON, for static/portal/charts.js.
    data: str = ""

    @property
    def summary(self) -> str:
        """The chart in a sentence, for screen readers."""
        parts = [
            f"{line.label or self.title}: {line.latest} at the end, between {line.smallest} and {line.largest}"
            for line in self.lines
            if line.path or line.dots
        ]
        return (
            f"{self.title} by {self.x_label}. " + "; ".join(parts) + "." if parts else f"{self.title}: no numbers yet."
        )


@dataclass(frozen=True)
class Block:
    """A part of a column as a rectangle of the drawing; `series` counts from 1 and selects the colour, `text` is its value."""

    series: int
    name: str
    text: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Column:
    """`left` and `width` are its share of the drawing, the clickable area; its bar is narrower."""

    label: str
    text: str
    left: float
    width: float
    blocks: tuple[Block, ...]
    url: str = ""


@dataclass(frozen=True)
class Columns:
    """`legend` are the parts as (series, name), largest first."""

    title: str
    legend: tuple[tuple[int, str], ...]
    columns: tuple[Column, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str

    @property
    def role(self) -> str:
        """The ARIA role: "img" would hide the links of columns."""
        return "group" if any(column.url for column in self.columns) else "img"


@dataclass(frozen=True)
class Dimension:
    """An axis of parallel coordinates with each thing's value: a number between `low` and `high`, or one of `choices`
    if given. Things with None meet at the foot of the axis, below all values; the labels of its ends tell of values beyond.
    `is_setting`: people chose the numbers, so a few different ones are the labels."""

    label: str
    values: Sequence[float | str | None]
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: Sequence[str] = ()
    is_setting: bool = False


@dataclass(frozen=True)
class Axis:
    """`percent` counts from the left. `has_none`: things without a value meet at its foot."""

    label: str
    percent: float
    ticks: tuple[Tick, ...]
    has_none: bool

    @property
    def x(self) -> str:
        return f"{self.percent * SIDE / 100:.1f}"


@dataclass(frozen=True)
class Strand:
    """One thing as a line from axis to axis. `rank` is 1 for the best fifth, 5 for the last."""

    path: str
    rank: int
    text: str
    url: str


@dataclass(frozen=True)
class Strands:
    """Parallel coordinates; the best thing is drawn last, on top. Axes are `gap` percent of the width apart."""

    axes: tuple[Axis, ...]
    strands: tuple[Strand, ...]
    gap: float


def draw_strands(dimensions: Sequence[Dimension], things: Sequence[tuple[str, str]]) -> Strands:
    """Parallel coordinates of `things`, as (text, address), best first. Source: Inselberg, "The plane with parallel
    coordinates", The Visual Computer 1 (1985)."""
    gap = 100 / max(1, len(dimensions) - 1)
    axes = tuple(Axis(each.label, n * gap, _marks(each), None in each.values) for n, each in enumerate(dimensions))
    strands = []
    for n, (text, url) in enumerate(things):
        path = _path(
            [
                (axis.percent * SIDE / 100, (1 - _height(dimension, dimension.values[n])) * SIDE)
                for axis, dimension in zip(axes, dimensions, strict=True)
            ]
        )
        strands.append(Strand(path, 1 + 5 * n // len(things), text, url))
    return Strands(axes, tuple(reversed(strands)), gap)


def without_outliers(values: Sequence[float]) -> tuple[float, float]:
    """The bounds of an axis of `values` without outliers, which would squeeze the rest: values more than three
    interquartile ranges outside the middle half. Source: Tukey's outer fences, "Exploratory Data Analysis"."""
    if len(values) < 4:
        return min(values), max(values)
    first, _, third = quantiles(values, n=4, method="inclusive")
    low, high = first - 3 * (third - first), third + 3 * (third - first)
    inside = [value for value in values if low <= value <= high]
    return min(inside), max(inside)


def _height(dimension: Dimension, value: float | str | None) -> float:
    """The position of a value on its axis, from 0 (bottom) to 1; values beyond its ends are drawn at the ends."""
    if value is None:
        return 0.0
    if dimension.choices:
        share = (list(dimension.choices).index(str(value)) + 0.5) / len(dimension.choices)
    else:
        number_, low, high = float(value), dimension.low, dimension.high
        if dimension.log:
            number_, low, high = (math.log10(max(each, SMALLEST)) for each in (number_, low, high))
        share = min(1.0, max(0.0, _share(number_, low, high))) if high > low else 0.5
    foot = FOOT if None in dimension.values else 0.0
    return foot + (1 - foot) * share


def _apart(dimension: Dimension, values: Sequence[float]) -> list[float]:
    """The ends of the ascending `values`, and those between them whose labels do not touch."""
    kept = list(values[:1])
    for value in values[1:-1]:
        height = _height(dimension, value)
        if height - _height(dimension, kept[-1]) >= NEAR <= _height(dimension, values[-1]) - height:
            kept.append(value)
    return [*kept, *values[1:][-1:]]


def _marks(dimension: Dimension) -> tuple[Tick, ...]:
    """The labels of an axis: its choices or settings, powers of ten or round numbers; the ends if there are fewer than two."""
    low, high = dimension.low, dimension.high
    if dimension.choices:
        step = -(-len(dimension.choices) // 12)
        return tuple(Tick(each, 100 * (1 - _height(dimension, each))) for each in dimension.choices[::step])
    different = sorted({float(each) for each in dimension.values if each is not None})
    if dimension.is_setting and len(different) <= SETTINGS:
        marks = _apart(dimension, different)
    elif dimension.log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        step = -(-(last - first + 1) // 6) or 1
        marks = [10.0**power for power in range(first, last + 1, step)]
        if len(marks) < 3:
            finer = (10.0**power * part for power in range(first - 1, last + 1) for part in (1, 2, 5))
            marks = [each for each in finer if low <= each <= high]
    else:
        marks = [each for each in ticks(low, high, 4) if low <= each <= high] if high > low else []
    if len(marks) < 2:
        marks = [low, high] if high > low else [low]
    said = {each: number(each) for each in marks}
    known = [float(each) for each in dimension.values if each is not None]
    for end, sign, is_beyond in (
        (low, "≤", min(known, default=low) < low), (high, "≥", max(known, default=high) > high),
    ):  # fmt: skip
        if is_beyond:
            near = [each for each in said if abs(_height(dimension, each) - _height(dimension, end)) < NEAR]
            said = {each: text for each, text in said.items() if each not in near} | {end: f"{sign} {number(end)}"}
    return tuple(Tick(text, 100 * (1 - _height(dimension, each))) for each, text in said.items())


def draw(
    title: str,
    lines: Iterable[Line],
    *,
    x_label: str,
    across: tuple[float, float] | None = None,
    from_zero: bool = False,
    numbers: tuple[str, Sequence[Line]] | None = None,
    axes: Sequence[str] = (),
) -> Chart:
    """The chart of `lines` over common axes that just contain them. `across` sets the bounds of the x axis; `from_zero`
    starts the y axis at zero, for values that are never negative. `numbers` are the x axis and the lines for the
    script, if the drawing shows others (smoothed, or over time); `axes` are the x axes that it offers: "x", "relative"
    (seconds since a line began) and "time". By default "x", and both others if a line has times."""
    lines = _coloured(lines)
    good = [point for line in lines for point in (*line.points, *_ends(line)) if _finite(*point)]
    x_low, x_high = across or _bounds([x for x, _ in good], widen=False)
    y_low, y_high = _bounds([y for _, y in good], widen=True)
    if from_zero:
        y_low = 0.0
    x_ticks = [x for x in ticks(x_low, x_high, 5, least=_least(x for x, _ in good)) if x_low <= x <= x_high]
    y_ticks = ticks(y_low, y_high, 4, least=_least(y for _, y in good))
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        return _share(x, x_low, x_high) * SIDE, (1 - _share(y, y_low, y_high)) * SIDE

    return Chart(
        title=title,
        x_label=x_label,
        lines=tuple(_drawn(line, place) for line in lines),
        x_ticks=tuple(Tick(number(x), 100 * _share(x, x_low, x_high)) for x in x_ticks) if good else (),
        y_ticks=tuple(Tick(number(y), 100 * (1 - _share(y, y_low, y_high))) for y in y_ticks) if good else (),
        data=_data(title, *((numbers[0], _coloured(numbers[1])) if numbers else (x_label, lines)), axes, from_zero),
    )


def series(colour: int, stroke: int = 0) -> int:
    """The number, from 1, of the style (charts.css) of one of COLOURS and one of STROKES, both from 0."""
    return 1 + colour % COLOURS + COLOURS * (stroke % STROKES)


def styled(groups: Sequence[tuple[int, Sequence[Line]]]) -> list[Line]:
    """The lines of several things, each with its series: the first line of a thing has it in all charts, and others have its
    colour with a stroke that nothing else has, if there is one left."""
    taken, found = {style for style, _ in groups}, list[Line]()
    for style, lines in groups:
        for n, line in enumerate(lines):
            others = (series(style - 1, (style - 1) // COLOURS + more) for more in range(1, STROKES))
            shown = style if n == 0 else next((each for each in others if each not in taken), style)
            taken.add(shown)
            found.append(replace(line, series=shown))
    return found


def _coloured(lines: Iterable[Line]) -> list[Line]:
    """The lines, each with a series."""
    return [replace(line, series=line.series or series(n, n // COLOURS)) for n, line in enumerate(lines)]


def _ends(line: Line) -> list[tuple[float, float]]:
    """The points at the edges of its band."""
    return [(x, y) for (x, _), pair in zip(line.points, line.spread, strict=False) for y in pair]


def _data(
    title: str,
    x_label: str,
    lines: Sequence[Line],
    axes: Sequence[str],
    from_zero: bool,
) -> str:
    timed = any(line.times for line in lines)
    said = {
        "title": title,
        "x": x_label,
        "axes": list(axes) or (["x", "relative", "time"] if timed else ["x"]),
        "zero": from_zero,
        "lines": [_numbers(line) for line in lines],
    }
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False)


def _numbers(line: Line) -> dict[str, object]:
    """A line as columns. Nine digits tell all 32-bit floats apart; times are seconds since `began`."""
    began = line.began if line.began is not None else min(line.times, default=0.0)
    good = [n for n in _thinned(line, MAX_SENT) if abs(line.points[n][0]) < LARGEST]
    points = [line.points[n] for n in good]
    return {
        "label": line.label,
        "x": [int(x) if x == int(x) else float(f"{x:.9g}") for x, _ in points],
        "y": [_nine(y) for _, y in points],
        # JSON has null for NaN and infinity, and for a time without numbers.
        **({} if line.has_gaps or not points or _finite(0, points[-1][1]) else {"end": number(points[-1][1])}),
        "dots": line.scattered,
        "series": line.series,
        "began": began,
        "times": [round(line.times[n] - began, 2) for n in good] if line.times else [],
        **({"spread": [[_nine(line.spread[n][end]) for n in good] for end in (0, 1)]} if line.spread else {}),
    }


def _nine(value: float) -> float | None:
    return float(f"{value:.9g}") if _finite(0, value) else None


def _thinned(line: Line, most: int) -> list[int]:
    """The indexes of about `most` points: evenly, the last one, and each that leaves a gap."""
    stride, last = -(-len(line.points) // most) or 1, len(line.points) - 1
    return [n for n, (x, y) in enumerate(line.points) if n % stride == 0 or n == last or not _finite(x, y)]


def draw_columns(
    title: str,
    columns: Sequence[tuple[str, Mapping[str, Decimal]]],
    *,
    unit: str = "",
    urls: Sequence[str] = (),
    most: Decimal | None = None,
    digits: int = 2,
    order: Sequence[str] = (),
    quiet: str = "",
) -> Columns:
    """Stacked columns of (label, value by name) over an axis from zero; `most` is that axis's minimum height. The
    largest names get a colour each and the rest share one. Names in `order` come first, and `quiet` is the remainder,
    drawn without a colour (series 0). Negative parts, which only corrections cause, are not drawn but keep their text."""
    sums: dict[str, Decimal] = {}
    for _, values in columns:
        for name, value in values.items():
            sums[name] = sums.get(name, Decimal(0)) + value
    places = {name: place for place, name in enumerate(order)}
    ranked = sorted(sums, key=lambda name: (places.get(name, len(places)), -sums[name], name))
    shown = ranked if len(ranked) <= MAX_PARTS else [*ranked[: MAX_PARTS - 1], OTHERS]
    series = {name: 0 if name == quiet else place for place, name in enumerate(shown, 1)}
    heights = [sum((max(value, Decimal(0)) for value in values.values()), Decimal(0)) for _, values in columns]
    top = float(max([*heights, most or Decimal(0)], default=Decimal(0))) or 1.0
    y_ticks = ticks(0.0, top, 4)
    scale = Decimal(y_ticks[-1])
    width = SIDE / max(len(columns), 1)

    def text(value: Decimal) -> str:
        return f"{value:,.{digits}f} {unit}".strip()

    drawn = []
    for n, (label, values) in enumerate(columns):
        merged = _merged(values, shown)
        whole = text(sum(values.values(), Decimal(0)))
        url = urls[n] if n < len(urls) else ""
        drawn.append(
            Column(label, whole, n * width, width, _blocks(merged, series, scale, n * width, width, text), url)
        )
    largest = max(range(len(columns)), key=lambda n: heights[n], default=None)
    sentence = f"{title}: {text(sum(sums.values(), Decimal(0)))} in all"
    if largest is not None and heights[largest]:
        sentence += f", the most in {columns[largest][0]} ({drawn[largest].text})"
    return Columns(
        title=title,
        legend=tuple((series[name], name) for name in shown),
        columns=tuple(drawn),
        x_ticks=_labels(drawn),
        y_ticks=tuple(Tick(number(y), 100 * (1 - y / y_ticks[-1])) for y in y_ticks),
        summary=sentence + ". The table below has the numbers.",
    )


def ticks(low: float, high: float, about: int, *, least: float = 0.0) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart, at least `least`) that enclose `low` and `high`. `low` < `high`, both
    finite. Source: Heckbert, "Nice numbers for graph labels", Graphics Gems (1990)."""
    rough = (high - low) / about
    if rough < sys.float_info.min:  # below, powers of ten lose their digits
        return [low, high]
    step = max(_nice(rough), least)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def number(value: float) -> str:
    """A number for display: 0.0312, 1.5, 12,300, 4.2e-07; NaN and infinity by name."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    size = abs(value)
    if size != 0 and (size < 1e-4 or size >= 1e9):
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _drawn(line: Line, place: Callable[[float, float], tuple[float, float]]) -> Drawn:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in (line.points[n] for n in _thinned(line, MAX_DRAWN)):
        if _finite(x, y):
            pieces[-1].append(place(x, y))
        if pieces[-1] and (line.scattered or not _finite(x, y)):
            pieces.append([])
    values = [y for x, y in line.points if _finite(x, y)]
    band = [
        (place(line.points[n][0], line.spread[n][1]), place(line.points[n][0], line.spread[n][0]))
        for n in (_thinned(line, MAX_DRAWN) if line.spread else ())
        if all(_finite(line.points[n][0], y) for y in line.spread[n])
    ]
    return Drawn(
        label=line.label,
        series=line.series,
        band=_path([high for high, _ in band] + [low for _, low in reversed(band)]) + "Z" if band else "",
        path=" ".join(_path(piece) for piece in pieces if len(piece) > 1),
        dots=tuple((round(piece[0][0], 1), round(piece[0][1], 1)) for piece in pieces if len(piece) == 1),
        latest=number(line.points[-1][1]) if line.points else NO_VALUE,
        smallest=number(min(values)) if values else NO_VALUE,
        largest=number(max(values)) if values else NO_VALUE,
        missing=0 if line.has_gaps else len(line.points) - len(values),
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _merged(values: Mapping[str, Decimal], shown: Sequence[str]) -> dict[str, Decimal]:
    """The values in the order of `shown`; other names are summed up as the last one."""
    merged: dict[str, Decimal] = {}
    for name, value in values.items():
        key = name if name in shown else OTHERS
        merged[key] = merged.get(key, Decimal(0)) + value
    return {name: merged[name] for name in shown if merged.get(name)}


def _blocks(
    values: Mapping[str, Decimal],
    series: Mapping[str, int],
    scale: Decimal,
    left: float,
    width: float,
    text: Callable[[Decimal], str],
) -> tuple[Block, ...]:
    # Limits the width of bars in charts with few columns.
    bar = min(width * 0.7, SIDE * 0.08)
    x, blocks, top = left + (width - bar) / 2, [], SIDE
    for name, value in values.items():
        height = float(max(value, Decimal(0)) / scale) * SIDE
        top -= height
        place = (round(x, 1), round(top, 2), round(bar, 1), round(height, 2))
        blocks.append(Block(series[name], name, text(value), *place))
    return tuple(blocks)


def _labels(columns: Sequence[Column]) -> tuple[Tick, ...]:
    """As many column labels as fit below a narrow chart."""
    step = -(-len(columns) // 6) or 1
    return tuple(Tick(each.label, (each.left + each.width / 2) * 100 / SIDE) for each in columns[::step])


def _finite(x: float, y: float) -> bool:
    return abs(x) < LARGEST and abs(y) < LARGEST


def _bounds(values: Sequence[float], *, widen: bool) -> tuple[float, float]:
    """The smallest and the largest value, never equal. `widen` leaves room around a flat line."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if high - low > max(1e-12 * max(abs(low), abs(high)), SMALLEST):
        return low, high
    room = abs(low) * 0.1 if abs(low) > SMALLEST * 10 else 1.0
    return (low - room, high + room) if widen else (low, low + room)


def _least(values: Iterable[float]) -> float:
    """The least distance of two labels: an axis of counts has none between two of them."""
    return 1.0 if all(value == int(value) for value in values) else 0.0


def _share(value: float, low: float, high: float) -> float:
    # Halves first: the difference of two floats may overflow. The half of the smallest float is 0.
    half = high / 2 - low / 2
    return (value / 2 - low / 2) / half if half else 0.0


def _nice(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    for factor in (1.0, 2.0, 5.0):
        if rough <= factor * power * (1 + 1e-9):
            return factor * power
    return 10.0 * power
