"""The table as pages show it: headings that sort, cells, groups, pages and the menu of columns; and the same as lines of a CSV.

Rendered from values, so that the page of an appcode, the runs of a cluster and the trials of a sweep show one table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.html import conditional_escape, escape, strip_tags
from django.utils.safestring import SafeString

from clusters.results import coordinates as parallel
from clusters.results import query
from clusters.results.columns import BESIDE_THE_NAME, Columns, Facts, columns, value_of
from clusters.results.numbers import look_at
from clusters.results.query import ROWS, Row
from clusters.results.values import colours, is_judged, is_less_better
from clusters.results.view import FIELDS, NUMBERS, Column, View
from clusters.runs.models import Run
from portal.models import Appcode
from portal.pages.charts import COLOURS, number
from portal.templatetags.portal import elapsed, gpu_hours, money, state, time

KIND_WORDS = {"best": "best", "min": "smallest", "max": "largest", "last": ""}
# Rows of a CSV.
MOST_LINES = 10_000
# Longer numbers among parameters are rounded.
MAX_DIGITS = 9
AT_ONCE = 1000


@dataclass(frozen=True)
class Heading:
    """`url` sorts by it; `mark` says how rows are sorted now, `aria` the same for screen readers."""

    label: str
    note: str
    kind: str
    url: str
    mark: str
    aria: str
    title: str
    is_number: bool

    @property
    def words(self) -> str:
        return f"{self.label} {self.note}".strip()


@dataclass(frozen=True)
class Cell:
    """`text` and, smaller, `note`; `is_best`: no other row shown has a better value. `label`: its heading, for phones."""

    kind: str
    text: SafeString | str
    note: str = ""
    title: str = ""
    url: str = ""
    is_number: bool = False
    is_best: bool = False
    links: tuple[tuple[str, str], ...] = ()
    label: str = ""

    @property
    def html(self) -> SafeString:
        """The cell as HTML. Made here and not by a template, because a page has a thousand."""
        classes = f"{'num ' if self.is_number else ''}is-{self.kind}{' is-best' if self.is_best else ''}"
        title = f' data-label="{escape(self.label)}"' if self.label else ""
        title += f' title="{escape(self.title)}"' if self.title else ""
        if self.kind == "state":
            return SafeString(f'<td class="{classes}"{title}>{state(self.text, self.note)}</td>')
        inside = str(conditional_escape(self.text))
        if self.links:
            tags = (f'<a class="tag" href="?{escape(url)}">{escape(tag)}</a>' for tag, url in self.links)
            inside = f'<span class="run-tags" hx-boost="true">{"".join(tags)}</span>'
        elif self.url:
            inside = f'<a hx-boost="true" href="?{escape(self.url)}">{inside}</a>'
        elif inside and self.kind in ("note", "param"):
            inside = f'<span class="truncate">{inside}</span>'
        if self.note:
            inside += f" <small>{escape(self.note)}</small>"
        if self.is_best:
            inside += '<span class="visually-hidden"> best</span>'
        # Our own markup; what others wrote is escaped above.
        return SafeString(f'<td class="{classes}"{title}>{inside}</td>')


@dataclass(frozen=True)
class Line:
    """A row: its run, its cells, and whether it is pinned."""

    run: Run
    name: str
    url: str
    pin: str
    is_pinned: bool
    cells: list[Cell]
    # Where its trials are, if it is more than one, and how many.
    trials_url: str = ""
    trials: int = 0
    # Its colour in the charts above the table; 0: it is not in them.
    colour: int = 0
    # The query with it in the charts, or without; "" if it has no numbers.
    turned: str = ""


@dataclass(frozen=True)
class GroupLine:
    label: str
    url: str
    cells: list[Cell]


def _box(key: str, on: bool, label: str = "") -> str:
    said = f' aria-label="{escape(label)}"' if label else ""
    return f'<input type="checkbox" name="c" value="{escape(key)}"{" checked" if on else ""}{said}>'


@dataclass(frozen=True)
class Pick:
    """A line of the menu of columns: a name, and its check boxes as (key, word, whether it is shown)."""

    group: str
    name: str
    boxes: list[tuple[str, str, bool]]

    @property
    def html(self) -> SafeString:
        """As `Cell.html`: there may be hundreds."""
        name = escape(self.name)
        if len(self.boxes) == 1:
            [(key, _, on)] = self.boxes
            return SafeString(f'<div class="pick-line"><label class="pick-name">{_box(key, on)} {name}</label></div>')
        boxes = "".join(
            f"<label>{_box(key, on, f'{self.name}, {word}')} {word}</label>" for key, word, on in self.boxes
        )
        return SafeString(f'<div class="pick-line"><span class="pick-name" title="{name}">{name}</span>{boxes}</div>')


@dataclass(frozen=True)
class Table:
    """What the template needs. Exactly one of `lines` and `groups` is used, by `view.group`."""

    appcode: Appcode
    view: View
    headings: list[Heading]
    lines: list[Line]
    groups: list[GroupLine]
    total: int
    notes: list[str]
    columns: Columns
    is_live: bool
    pages: int
    picks: list[Pick] = field(default_factory=list)
    group_choices: list[tuple[str, str]] = field(default_factory=list)
    coordinates: parallel.Drawn | None = None

    @property
    def has_states(self) -> bool:
        """Whether the state has its own column, and so no sign beside the name."""
        return any(column.key == BESIDE_THE_NAME for column in self.columns.shown)

    @property
    def drawn(self) -> list[Line]:
        """The runs of the charts above the rows."""
        return [line for line in self.lines if line.colour]

    @property
    def charts(self) -> tuple[str, str]:
        """Key and query of the charts: of the metrics that the table shows. The key changes with whatever they are of."""
        metrics = dict.fromkeys(column.name for column in self.columns.shown if column.is_metric)
        runs = ",".join(line.name for line in self.drawn)
        query = urlencode([("runs", runs), *(("metric", name) for name in metrics), ("brief", "1")])
        is_over = all(line.run.is_terminal for line in self.drawn)
        return sha256(f"{query}{is_over}".encode()).hexdigest()[:16], query

    @property
    def first(self) -> int:
        return (self.view.page - 1) * ROWS + 1

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1

    @property
    def previous(self) -> str:
        return self.view.but(page=self.view.page - 1).query if self.view.page > 1 else ""

    @property
    def following(self) -> str:
        return self.view.but(page=self.view.page + 1).query if self.view.page < self.pages else ""


def table_of(appcode: Appcode, view: View) -> Table:
    """The table of a view. Asks for newer numbers of the living runs that it shows."""
    now = timezone.now()
    if view.group:
        return _grouped(appcode, view, now)
    found = query.find(appcode, view, now, with_newest=_needs_newest(view))
    page = min(view.page, -(-found.total // ROWS) or 1)
    view = view.but(page=page)
    look_at(appcode.pk, [row.run for row in found.rows])
    known = _columns(view, found, now)
    best = {column: _best_of(column, found.rows) for column in known.shown if column.is_metric}
    numeric = {column for column in known.shown if column.kind == "param" and _is_numeric(column.name, found.rows)}
    headings = [_heading(view, column, numeric) for column in known.shown]

    def cells(row: Row) -> list[Cell]:
        made = (_cell(row, column, best.get(column), view, now, is_numeric=column in numeric) for column in known.shown)
        return _labelled(made, headings)

    lines = _drawn([(row, _line(row, view, cells(row), appcode)) for row in found.rows], view)
    return Table(
        appcode, view, headings, lines, [], found.total, found.notes, known,
        any(not row.run.is_terminal for row in found.rows), -(-found.total // ROWS) or 1, _picks(known), _groups(known),
        _coordinates(zip(found.rows, lines, strict=True), known, view) if view.charts else None,
    )  # fmt: skip


def _drawn(lines: Sequence[tuple[Row, Line]], view: View) -> list[Line]:
    """The lines, with the colours of those in the charts."""
    if not view.charts:
        return [line for _, line in lines]
    # Those without numbers would waste a colour; a living one is drawn when it has some.
    able = {line.name: row.run.pk for row, line in lines if row.numbers}
    names = [name for name in able if view.drawn is None or name in view.drawn][:COLOURS]
    by_name = dict(zip(names, colours([able[name] for name in names]), strict=True))

    def turned(name: str) -> str:
        if name not in able:
            return ""
        rest = tuple(each for each in names if each != name)
        drawn = rest if name in by_name else (*rest[: COLOURS - 1], name)
        return view.but(drawn=drawn, page=view.page).query

    return [replace(line, colour=by_name.get(line.name, 0), turned=turned(line.name)) for _, line in lines]


def _coordinates(lines: Iterable[tuple[Row, Line]], known: Columns, view: View) -> parallel.Drawn | None:
    if (metric := parallel.metric_of(known.shown, view)) is None:
        return None
    runs = []
    for row, line in lines:
        value = value_of(metric, row.numbers[metric.name])[0] if metric.name in row.numbers else None
        if value is not None:
            runs.append(parallel.Point(line.name, line.url, row.parameters, value))
    names = [column.name for column in known.shown if column.kind == "param"]
    return parallel.drawn(runs, names, metric)


def _needs_newest(view: View) -> bool:
    return view.columns is None and not view.is_plain


def _columns(view: View, found: query.Found, now: dt.datetime) -> Columns:
    """Those that were chosen, or else those that tell the newest runs apart, so that a filter changes none."""
    newest = found.newest if _needs_newest(view) else found.rows
    return columns([_facts(row, now) for row in found.rows], _chosen(view), [_facts(row, now) for row in newest])


def _chosen(view: View) -> list[Column] | None:
    if view.columns is None:
        return None
    return [column for key in view.columns if (column := Column.of(key)) and column.key != "run"]


def _facts(row: Row, now: dt.datetime) -> Facts:
    return Facts({name: _text(name, row.run, now) for name in FIELDS}, row.parameters, row.numbers)


def _text(name: str, run: Run, now: dt.datetime) -> str:
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


def _is_numeric(name: str, rows: Sequence[Row]) -> bool:
    """Whether every value of a parameter is a number, so that they are read below each other."""
    return all(_is_number(row.parameters[name]) for row in rows if name in row.parameters)


def _line(row: Row, view: View, cells: list[Cell], appcode: Appcode) -> Line:
    run = row.run
    url = f"/clusters/{appcode.code}/{run.cluster.name}?run={run.number}"
    line = Line(run, row.name, url, view.pinned(row.name).query, row.name in view.pins, cells)
    if not row.trials:
        return line
    sweep = reverse("sweep", args=[appcode.code, run.cluster.part_of.removeprefix("sweeps/")])
    return replace(line, trials_url=sweep, trials=row.trials)


def _labelled(cells: Iterable[Cell], headings: Sequence[Heading]) -> list[Cell]:
    return [replace(cell, label=heading.words) for cell, heading in zip(cells, headings, strict=True)]


def _cell(row: Row, column: Column, best: float | None, view: View, now: dt.datetime, *, is_numeric: bool) -> Cell:
    if column.is_metric:
        if (summary := row.numbers.get(column.name)) is None:
            return Cell("metric", "", is_number=True)
        value, step = value_of(column, summary)
        if value is None:
            return Cell("metric", "", is_number=True)
        at = "" if column.kind == "last" else f"@ {step:,}"
        is_best = best is not None and value == best
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
        who = _text(name, run, now)
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _best_of(column: Column, rows: Sequence[Row]) -> float | None:
    """The best value of a column among the rows; None if fewer than two rows have one, or all the same."""
    if not is_judged(column.name):
        return None
    values = [value_of(column, row.numbers[column.name])[0] for row in rows if column.name in row.numbers]
    finite = [value for value in values if value is not None and value - value == 0]
    if len(finite) < 2 or len(set(finite)) == 1:
        return None
    is_low = column.kind == "min" or (column.kind != "max" and is_less_better(column.name))
    return min(finite) if is_low else max(finite)


def _heading(view: View, column: Column, numeric: Set[Column]) -> Heading:
    now = view.sorting
    is_sorted = now is not None and now[0] == column
    falls = bool(now and now[1])
    can_sort = column.kind != "field" or column.name not in ("tags", "note")
    word = KIND_WORDS.get(column.kind, "")
    is_fact = column.kind == "field" and column.name in ("started", *NUMBERS)
    is_number = column.is_metric or is_fact or column in numeric
    kind = "metric" if column.is_metric else column.name if column.kind == "field" else column.kind
    return Heading(
        label=column.name if column.kind != "field" else FIELDS[column.name], note=word, kind=kind,
        url=view.sorted_by(column).query if can_sort else "",
        mark=("↓" if falls else "↑") if is_sorted else "", aria=("descending" if falls else "ascending") if is_sorted else "",
        title=column.name if column.kind != "field" else "", is_number=is_number,
    )  # fmt: skip


def _picks(known: Columns) -> list[Pick]:
    shown = {column.key for column in known.shown}
    found = [
        Pick("Metrics", name, [(f"{kind}:{name}", word, f"{kind}:{name}" in shown) for kind, word in BOXES])
        for name in known.metrics
    ]
    found += [Pick("Parameters", name, [(f"param:{name}", "", f"param:{name}" in shown)]) for name in known.parameters]
    return found + [Pick("Run", title, [(name, "", name in shown)]) for name, title in FIELDS.items()]


BOXES = (("last", "last"), ("best", "best"), ("min", "smallest"), ("max", "largest"))


def _groups(known: Columns) -> list[tuple[str, str]]:
    return [("who", FIELDS["who"]), ("state", FIELDS["state"]), *((f"param:{name}", name) for name in known.parameters)]


def _grouped(appcode: Appcode, view: View, now: dt.datetime) -> Table:
    chosen = view.columns
    if chosen is None:
        # The metrics with which the table without groups begins.
        first = columns([_facts(row, now) for row in query.newest(appcode, view)], None).shown
        chosen = tuple(each.key for each in first if each.kind == "last")[: query.GROUP_METRICS]
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
    headings += [Heading(FIELDS[name], "", "field", "", "", "", "", True) for name in ("hours", "cost")]
    lines = []
    for each in found:
        cells = [Cell("field", f"{each.runs:,}", is_number=True)]
        for name in shown:
            for n, value in enumerate(each.numbers.get(name, (None, None))):
                text, is_best = ("", False) if value is None else (number(value), value == best[name][n])
                cells.append(Cell("metric", text, is_number=True, is_best=is_best))
        cells.append(Cell("field", gpu_hours(round(each.gpu_hours * 3600)), is_number=True))
        cells.append(Cell("field", money(each.cost), is_number=True))
        inside = _inside(view, column, each.value)
        lines.append(GroupLine(each.value or "none", inside, _labelled(cells, headings)))
    return Table(
        appcode,
        view,
        headings,
        [],
        lines,
        total,
        notes,
        Columns([], 0, shown, []),
        False,
        1,
        [],
        [(view.group, column.name)],
    )


def _least(values: Sequence[float | None], *, is_low: bool) -> float | None:
    found = [value for value in values if value is not None]
    if len(found) < 2 or len(set(found)) == 1:
        return None
    return min(found) if is_low else max(found)


def _inside(view: View, column: Column, value: str | None) -> str:
    """The address of the runs of a group; "" for those without a value, which no condition names."""
    if value is None:
        return ""
    if column.kind == "param":
        condition = f"param:{column.name} = {value}"
        return view.but(group="", where=f"{view.where}, {condition}" if view.where else condition).query
    return view.but(group="", **{"who" if column.name == "who" else "state": value}).query


def csv_of(appcode: Appcode, view: View) -> tuple[list[str], Iterator[list[str]]]:
    """The head and the lines of a CSV: the columns that the view shows, for all of its rows up to MOST_LINES, or its groups."""
    if view.group:
        table = table_of(appcode, view)
        head = [table.group_choices[0][1], *(each.words for each in table.headings)]
        return head, ([line.label, *(strip_tags(str(cell.text)) for cell in line.cells)] for line in table.groups)
    now = timezone.now()
    first = query.find(appcode, view.but(), now, with_newest=_needs_newest(view))
    shown = _columns(view, first, now).shown
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
            cells.append(_text(column.name, row.run, now))
    return cells
