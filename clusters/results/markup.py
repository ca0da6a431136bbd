"""What the table is made of: headings, cells, lines and the menu of columns, as values that know their HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import urlencode

from django.utils.html import conditional_escape, escape
from django.utils.safestring import SafeString

from clusters.results import coordinates as parallel
from clusters.results.columns import BESIDE_THE_NAME, Columns
from clusters.results.query import ROWS
from clusters.results.view import FIELDS, Column, View
from clusters.runs.models import Run
from portal.models import Appcode
from portal.pages.charts import LINES
from portal.templatetags.portal import state


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
    # How the charts above the table draw it; 0: they do not.
    series: int = 0
    # The query with it in the charts, or without; "" if it has no numbers, or no more can be drawn.
    turned: str = ""
    is_drawable: bool = False


@dataclass(frozen=True)
class GroupLine:
    label: str
    url: str
    cells: list[Cell]
    # How the charts above the table draw it; 0: they do not. And the name of its line there.
    series: int = 0
    curve: str = ""


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
    def pinned(self) -> int:
        """How many runs are there because somebody pinned them, whether they match or not."""
        return sum(line.is_pinned for line in self.lines)

    @property
    def drawn(self) -> list[Line]:
        """The runs of the charts above the rows."""
        return [line for line in self.lines if line.series]

    @property
    def drawn_names(self) -> str:
        return ",".join(line.name for line in self.drawn)

    @property
    def drawable(self) -> int:
        """How many runs of the page have numbers."""
        return sum(line.is_drawable for line in self.lines)

    @property
    def draw_more(self) -> str:
        """The query that draws as many as a chart holds; "" if no more can be drawn."""
        names = [line.name for line in self.lines if line.is_drawable]
        more = [name for name in names if name not in {line.name for line in self.drawn}][: LINES - len(self.drawn)]
        chosen = {*more, *(line.name for line in self.drawn)}
        drawn = tuple(name for name in names if name in chosen)
        return self.view.but(drawn=drawn, page=self.view.page).query if more else ""

    @property
    def group_name(self) -> str:
        """By what it is grouped, in words."""
        column = Column.of(self.view.group)
        return "" if column is None else FIELDS[column.name] if column.kind == "field" else column.name

    @property
    def has_curves(self) -> bool:
        """Whether charts stand above the rows, or the groups."""
        return bool(self.drawn) or any(line.series for line in self.groups)

    @property
    def charts(self) -> tuple[str, str]:
        """Key and query of the charts: of the metrics that the table shows. The key changes with whatever they are of."""
        if self.view.group:
            query = self.view.but(columns=tuple(f"last:{name}" for name in self.columns.metrics)).query
            return sha256(f"{query}{self.total}{self.is_live}".encode()).hexdigest()[:16], query
        metrics = dict.fromkeys(column.name for column in self.columns.shown if column.is_metric)
        query = urlencode([("runs", self.drawn_names), *(("metric", name) for name in metrics), ("brief", "1")])
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
