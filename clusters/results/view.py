"""A view of the table as a value: what its address says, and the address that says it. Pure.

Everything that somebody chose is in the query of the address, so a link shows the same to everyone who may see the runs. What an
address says that nobody can mean (an unknown column, a page that is no number) is left out, except conditions: a filter that is
silently ignored would show the wrong rows, so `Conditions` keeps what it did not understand, with the reason.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import parse_qs, quote, urlencode

from clusters.results.values import is_less_better
from portal.text.days import days_in

# How charts are drawn, as static/portal/charts.js keeps it after the # of an address.
_LOOK = re.compile(r"view\?[A-Za-z0-9%&=+.*_~:-]{1,2000}")
MAX_TEXT, MAX_WHERE, MAX_CONDITIONS, MAX_COLUMNS, MAX_PINS, MAX_PAGE = 200, 1000, 8, 40, 20, 10_000
Operator = Literal["<", "<=", ">", ">=", "=", "!=", "~"]
# No run is drawn.
NONE = "none"
# What a column shows: a fact of the run, a parameter, or of a metric the last, the best, the smallest or the largest value.
KINDS = ("last", "best", "min", "max", "param")
FIELDS = {
    "state": "State", "who": "By", "started": "Started", "duration": "Took", "gpus": "GPUs", "hours": "GPU-hours", "cost": "Cost",
    "tags": "Tags", "note": "Note",
}  # fmt: skip
# By which numbers of a run rows can be filtered: `cost > 5`.
NUMBERS = {"duration": "seconds", "gpus": "GPUs", "hours": "GPU-hours", "cost": "money"}
# By which texts of a run, with =, != and ~: `state = failed`.
TEXTS = ("run", "state", "who", "tags", "note")
# By which time of a run: `started > yesterday`.
STARTED = "started"
# The words beside a metric in the headings of the table, and others of the same meaning.
WORDS = {
    "last": "last", "best": "best", "smallest": "min", "lowest": "min", "min": "min",
    "largest": "max", "highest": "max", "max": "max",
}  # fmt: skip
# As one writes them in a condition.
CONDITIONS = ("state", "started", "took", "cost", "hours", "gpus", "who", "tag", "note", "name")
# Other names of these, beside the headings of the table.
ALIASES = {title: name for name, title in FIELDS.items()} | {
    "took": "duration", "by": "who", "user": "who", "tag": "tags", "name": "run", "cluster": "run", "Run": "run",
    "status": "state",
}  # fmt: skip
SORTABLE = ("run", "state", "who", "started", *NUMBERS)
# train/3
RUN_NAME = re.compile(r"[a-z0-9-]{1,63}/[0-9]{1,9}")
_CONDITION = re.compile(r"(.+?)\s*(<=|>=|!=|==|=|<|>|~)\s*(.*)", re.DOTALL)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)\b\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
# `LR in (0.1, 0.2)` and `name contains mlp`.
_IN = re.compile(r"\s+in\s*[(\[]([^)\]]*)[)\]]", re.IGNORECASE)
_CONTAINS = re.compile(r"\s+contains\s+", re.IGNORECASE)
_OR = re.compile(r"\s+(?:or|\|\|)\s+", re.IGNORECASE)
# As other trackers write it: `metrics.loss`, `params.LR`, `config.LR`.
_PREFIXES = {"metrics": "last", "summary": "last", "params": "param", "config": "param"}
_AND = re.compile(r"\s+(?:and|&&)\s+|\s*[;,]\s*|\n", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """`kind` "field" and the name of one of FIELDS, or one of KINDS and the name of a metric or parameter."""

    kind: str
    name: str

    @classmethod
    def of(cls, text: str) -> Column | None:
        """From `cost`, `last:loss` or `param:lr`; None if it is none."""
        kind, mark, name = text.partition(":")
        if not mark:
            return cls("field", text) if text in FIELDS or text == "run" else None
        return cls(kind, name[:MAX_TEXT]) if kind in KINDS and name else None

    @property
    def key(self) -> str:
        return self.name if self.kind == "field" else f"{self.kind}:{self.name}"

    @property
    def is_metric(self) -> bool:
        return self.kind in ("last", "best", "min", "max")


@dataclass(frozen=True)
class Condition:
    """`loss < 0.3`. `kind` is "" where the condition does not say whether it means a metric, a parameter or a fact of the run."""

    kind: str
    name: str
    operator: Operator
    value: str
    # As somebody typed it.
    text: str = field(default="", compare=False)

    @property
    def fact(self) -> str:
        """One of NUMBERS or TEXTS, if it is about one."""
        name = ALIASES.get(self.name, self.name)
        return name if not self.kind and (name in NUMBERS or name in TEXTS or name == STARTED) else ""

    @property
    def values(self) -> list[str]:
        """One of which it needs, or needs none: `LR = 0.1 | 0.2`."""
        several = self.operator in ("=", "!=", "~")
        return [part.strip().strip("\"'") for part in self.value.split("|")] if several else [self.value]

    @property
    def number(self) -> float | None:
        """The value as a number; of a duration (“1 h 30 min”) in seconds."""
        try:
            return float(self.value)
        except ValueError:
            return seconds_of(self.value) if self.fact == "duration" else None

    def __str__(self) -> str:
        return self.text or f"{f'{self.kind}:' if self.kind else ''}{self.name} {self.operator} {self.value}"


def alternatives(text: str) -> tuple[list[list[Condition]], list[str]]:
    """What a text says, divided by “or”: each its conditions, of which all must hold. And the parts that are no conditions."""
    text = _IN.sub(lambda said: " = " + "|".join(part.strip() for part in said[1].split(",")), text)
    found, unclear = list[list[Condition]](), list[str]()
    for part in _OR.split(_CONTAINS.sub(" ~ ", text)):
        several, strange = _conditions(part, MAX_CONDITIONS - sum(map(len, found)))
        found += [several] if several else []
        unclear += strange
    return found, unclear


def conditions(text: str) -> tuple[list[Condition], list[str]]:
    """All conditions of a text, and its parts that are none."""
    found, unclear = alternatives(text)
    return [each for several in found for each in several], unclear


def _conditions(text: str, most: int) -> tuple[list[Condition], list[str]]:
    """Those of a text that divides them by commas, lines or “and”."""
    found, unclear = list[Condition](), list[str]()
    for part in filter(None, (each.strip() for each in _AND.split(text))):
        said = _CONDITION.fullmatch(part)
        # `<>` and `=<` are no operators, and what follows is no value.
        if said is None or len(found) == most or part[said.end(2) :].startswith(("<", ">", "=")):
            unclear.append(part)
            continue
        name, operator, value = said[1].strip(), said[2].replace("==", "="), said[3].strip().strip("\"'")
        kind, name = _named(name)
        found.append(Condition(kind, name, operator, value, part))  # type: ignore[arg-type]
    return found, unclear


def _named(text: str) -> tuple[str, str]:
    """Kind and name, from `best:loss`, from “loss best” as the table heads its column, and from “best loss”."""
    kind, mark, rest = text.partition(":")
    if mark and kind in KINDS and rest.strip():
        return kind, rest.strip()
    prefix, mark, rest = text.partition(".")
    if mark and prefix.lower() in _PREFIXES and rest.strip():
        return _PREFIXES[prefix.lower()], rest.strip()
    first, *others = text.split()
    if others and (kind := WORDS.get(others[-1].lower(), "")):
        return kind, text[: -len(others[-1])].strip()
    if others and (kind := WORDS.get(first.lower(), "")):
        return kind, text[len(first) :].strip()
    return "", text


def seconds_of(text: str) -> float | None:
    """From “90 s”, “1 h 30 min” or “2 days”; None if it is no duration."""
    parts = list(_SPAN.finditer(text.lower()))
    if not parts or "".join(part[0] for part in parts) != text.lower():
        return None
    return sum(float(part[1]) * _SECONDS[part[2][0]] for part in parts)


def span_of(text: str, now: dt.datetime) -> tuple[dt.datetime, dt.datetime] | None:
    """Beginning and end of “2026-11-30”, “yesterday”, “last week”, “7 days ago”, “2026-11-30 14:00”, in the zone of `now`. A
    moment ends where it begins. None if it is no time."""
    rest, days = days_in(text, now.date())
    try:
        if days and not rest:
            begin, last = (dt.datetime.combine(day, dt.time(), now.tzinfo) for day in (days.first, days.last))
            return begin, last + dt.timedelta(days=1)
        if (ago := seconds_of(text.strip().lower().removesuffix("ago").strip())) is not None:
            at = now - dt.timedelta(seconds=ago)
        else:
            at = dt.datetime.fromisoformat(text.strip().upper())
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=now.tzinfo)
    return at, at


@dataclass(frozen=True)
class View:
    """What is shown. `cluster` and `whole` (a `Cluster.part_of`) narrow the table to their runs. `columns` is None until somebody
    chose some. With `charts`, the curves of runs stand above the rows: of those in `drawn`, or until somebody chose some of
    the first. `pins` are runs (`train/3`) that stay at the top
    whatever the filters say. `look` is how the charts are drawn: browsers do not send it, and a kept view has it."""

    search: str = ""
    state: str = ""
    who: str = ""
    tag: str = ""
    where: str = ""
    sort: str = ""
    group: str = ""
    cluster: str = ""
    whole: str = ""
    page: int = 1
    charts: bool = True
    drawn: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    pins: tuple[str, ...] = field(default=())
    look: str = ""

    @classmethod
    def read(cls, said: Mapping[str, Sequence[str]]) -> View:
        """From the parameters of an address, each with all of its values."""

        def one(name: str, most: int = MAX_TEXT) -> str:
            values = said.get(name) or [""]
            return values[-1].replace("\0", "").strip()[:most]

        group = Column.of(one("group"))
        page = one("page")
        columns = [
            each.key for text in said.get("c", [])[: 2 * MAX_COLUMNS] if (each := Column.of(text.replace("\0", "")))
        ]
        return cls(
            search=one("search"), state=one("state"), who=one("who"), tag=one("tag"), where=one("where", MAX_WHERE),
            sort=one("sort") if _sorting(one("sort")) else "", group=group.key if group and _groups(group) else "",
            cluster=one("cluster"), whole=one("of"),
            page=min(int(page), MAX_PAGE) if page.isascii() and page.isdecimal() and len(page) < 9 and int(page) else 1,
            charts=one("charts") != "0", drawn=_runs(said["draw"]) if "draw" in said else None,
            columns=tuple(dict.fromkeys(columns))[:MAX_COLUMNS] if "c" in said else None,
            pins=_runs(said.get("pin", [])),
        )  # fmt: skip

    @classmethod
    def of_query(cls, query: str) -> View:
        """From the query of an address, and what follows it."""
        query, _, look = query.partition("#")
        view = cls.read(parse_qs(query, keep_blank_values=True))
        return replace(view, look=look if _LOOK.fullmatch(look) else "")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The parameters of its address, in a fixed order."""
        simple = (
            ("search", self.search), ("state", self.state), ("who", self.who), ("tag", self.tag), ("where", self.where),
            ("group", self.group), ("cluster", self.cluster), ("of", self.whole), ("sort", self.sort),
            ("page", str(self.page) if self.page > 1 else ""), ("pin", ",".join(self.pins)),
            ("charts", "" if self.charts else "0"),
            ("draw", "" if self.drawn is None else ",".join(self.drawn) or NONE),
        )  # fmt: skip
        # An empty choice is one, too.
        columns = self.columns if self.columns != () else ("",)
        return [*(pair for pair in simple if pair[1]), *(("c", key) for key in columns or ())]

    @property
    def query(self) -> str:
        return urlencode(self.pairs, safe="/,:", quote_via=quote)

    @property
    def address(self) -> str:
        """Its query, never empty: without one, a page begins with the view that somebody kept. And its look."""
        return (self.query or "view=plain") + (f"#{self.look}" if self.look else "")

    def but(self, **changes: object) -> View:
        """This view with changes, on its first page unless that is said."""
        return replace(self, **({"page": 1} | changes))  # type: ignore[arg-type]

    @property
    def scope(self) -> str:
        """Which table it is a view of: "" for that of the appcode."""
        return f"clusters/{self.cluster}" if self.cluster else self.whole

    @property
    def sorting(self) -> tuple[Column, bool] | None:
        """The column by which rows are sorted, and whether the largest come first."""
        return _sorting(self.sort)

    @property
    def is_narrowed(self) -> bool:
        """Whether filters that somebody set may hide runs."""
        return any((self.search, self.state, self.who, self.tag, self.where))

    @property
    def is_plain(self) -> bool:
        """Whether it shows the newest runs, in their order."""
        return not (self.is_narrowed or self.sort or self.pins or self.group) and self.page == 1

    def sorted_by(self, column: Column) -> View:
        """By a click on the heading: numbers that are good when large, and times, begin with the largest; then the other way
        round; then as at first."""
        first, second = (f"-{column.key}", column.key) if _falls(column) else (column.key, f"-{column.key}")
        return self.but(sort=second if self.sort == first else "" if self.sort == second else first)

    def pinned(self, run: str) -> View:
        """With this run at the top, or without, if it is there."""
        rest = tuple(each for each in self.pins if each != run)
        return replace(self, pins=rest if len(rest) < len(self.pins) else (*self.pins, run)[-MAX_PINS:])


def link_of(name: str, kept: str) -> str:
    """The address of a kept view that has a name, which tells it from another one of the same rows."""
    query, mark, look = kept.partition("#")
    rows = "" if query == View().address else f"{query}&"
    return f"{rows}view={quote(name)}{mark}{look}"


def _runs(said: Sequence[str]) -> tuple[str, ...]:
    names = (name for text in said for name in text[:2000].split(",") if RUN_NAME.fullmatch(name))
    return tuple(dict.fromkeys(names))[:MAX_PINS]


def _sorting(text: str) -> tuple[Column, bool] | None:
    column = Column.of(text.removeprefix("-"))
    if column is None or (column.kind == "field" and column.name not in SORTABLE):
        return None
    return column, text.startswith("-")


def _groups(column: Column) -> bool:
    return column.kind == "param" or column.key in ("who", "state")


def _falls(column: Column) -> bool:
    if column.kind in ("last", "best"):
        return not is_less_better(column.name)
    return column.kind == "max" or (column.kind == "field" and column.name in ("started", *NUMBERS))
