"""Periods of usage, and their division into chart columns. Pure: the clock is an argument.

All days and months are UTC, so no day has 23 or 25 hours and daylight saving never bills anything twice or never.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, cast, get_args
from urllib.parse import urlencode

from portal.errors import FieldError, Invalid

DAY = dt.timedelta(days=1)
# The format of a month in URLs and parameters, for the REST schema.
MONTH_PATTERN = r"^20[0-9]{2}-(0[1-9]|1[0-2])$"
# Periods longer than this many days have a column per month.
MAX_DAILY = 62
Step = Literal["day", "month"]
STEPS: tuple[Step, ...] = get_args(Step)
# More columns are no chart; a program can read a table.
MAX_COLUMNS = 400
EARLIEST, LATEST = dt.datetime(2000, 1, 1, tzinfo=dt.UTC), dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Period:
    """[since, until) in UTC."""

    since: dt.datetime
    until: dt.datetime

    @property
    def window(self) -> tuple[dt.datetime, dt.datetime]:
        return self.since, self.until

    @property
    def query(self) -> str:
        """As the query string of a page."""
        return urlencode({"from": f"{self.since:%Y-%m-%d}", "to": f"{self.last_day:%Y-%m-%d}"})

    @property
    def last_day(self) -> dt.date:
        """The last day that it touches; people name a period by its first and last day."""
        return (self.until - dt.timedelta(microseconds=1)).date()

    @property
    def columns(self) -> list[tuple[dt.datetime, dt.datetime]]:
        """Adjoining days, or months for a long period; the first and last are cut to the period."""
        daily = self.until - self.since <= MAX_DAILY * DAY
        edges, edge = [self.since], self.since
        while edge < self.until:
            edge = _midnight(edge) + DAY if daily else month(edge).until
            edges.append(min(edge, self.until))
        return list(pairwise(edges))

    @property
    def monthly(self) -> bool:
        return self.until - self.since > MAX_DAILY * DAY


def month(moment: dt.datetime) -> Period:
    first = _midnight(moment).replace(day=1)
    return Period(first, (first + 31 * DAY).replace(day=1))


def month_of(day: dt.date) -> Period:
    return month(dt.datetime(day.year, day.month, 1, tzinfo=dt.UTC))


def following(day: dt.date) -> dt.date:
    """The first day of the next month."""
    return (day.replace(day=1) + 31 * DAY).replace(day=1)


def month_before(period: Period) -> Period:
    return month(month(period.since).since - DAY)


def month_after(period: Period) -> Period:
    return month(month(period.since).until)


def parse(since: str, until: str, now: dt.datetime) -> Period:
    """The period from `since` to `until`, each a date (2026-01-31; as the end it includes that day) or an exact time.
    Empty values mean the start of this month, and the later of the ends of `since`'s month and this month. Raises
    Invalid at "from" or "to"."""
    errors: list[FieldError] = []
    start = _moment(since, "from", errors) if since else month(now).since
    end = _moment(until, "to", errors, end=True) if until else max(month(start).until, month(now).until)
    if not errors and end <= start:
        errors.append(FieldError(("to",), "The end lies before the beginning."))
    if errors:
        raise Invalid(errors)
    return Period(start, end)


def _moment(text: str, name: str, errors: list[FieldError], *, end: bool = False, day: bool = False) -> dt.datetime:
    """Parses a time, or a date as its midnight in UTC (the next midnight if it is an `end`). Appends an error if it is
    invalid, not a date although `day` is set, or out of bounds."""
    unlike, beyond = (
        "Give a date like 2026-01-31 or a time like 2026-01-31T18:00:00Z.",
        "Give a time between the years 2000 and 2100.",
    )
    if day:
        unlike = beyond = "Give a day between the years 2000 and 2100, like 2026-01-31."
    try:
        moment = dt.datetime.fromisoformat(text)
        if len(text) <= len("2026-01-31"):
            moment = moment.replace(tzinfo=dt.UTC) + (DAY if end else dt.timedelta())
        elif day:
            raise ValueError("a time")
        elif moment.tzinfo is None:
            errors.append(FieldError((name,), "Give the time zone, for example 2026-01-31T18:00:00Z."))
            return EARLIEST
        moment = moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        errors.append(FieldError((name,), unlike))
        return EARLIEST
    if not EARLIEST <= moment <= LATEST:
        errors.append(FieldError((name,), beyond))
    return moment.replace(microsecond=0)


def _midnight(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@dataclass(frozen=True)
class Range:
    """The days [since, until) in columns of one `step`."""

    since: dt.date
    until: dt.date
    step: Step

    @property
    def last_day(self) -> dt.date:
        return self.until - DAY

    @property
    def window(self) -> tuple[dt.datetime, dt.datetime]:
        """Its bounds [first second, end) in UTC."""
        first, end = (dt.datetime.combine(day, dt.time(), dt.UTC) for day in (self.since, self.until))
        return first, end

    @property
    def columns(self) -> list[tuple[dt.date, dt.date]]:
        """Adjoining columns; the first and last month may be cut."""
        edges, edge = [self.since], self.since
        while edge < self.until:
            edge = edge + DAY if self.step == "day" else following(edge)
            edges.append(min(edge, self.until))
        return list(pairwise(edges))

    @property
    def before(self) -> Range:
        """The range before it, of as many days or whole months."""
        first = self.since.replace(day=1)
        if self.since == first and self.until == following(self.last_day):
            months = (self.until.year - self.since.year) * 12 + self.until.month - self.since.month
            for _ in range(months):
                first = (first - DAY).replace(day=1)
            return Range(first, self.since, self.step)
        return Range(self.since - (self.until - self.since), self.since, self.step)

    def place(self, day: dt.date) -> dt.date:
        return day if self.step == "day" else max(day.replace(day=1), self.since)


def parse_days(since: str, until: str, step: str, today: dt.date) -> Range:
    """Parses a range. Defaults: the last 30 days; daily columns, or monthly ones for many days. Raises Invalid at
    "from", "to" or "columns"."""
    errors: list[FieldError] = []
    end = _moment(until, "to", errors, end=True, day=True).date() if until else today + DAY
    first = _moment(since, "from", errors, day=True).date() if since else end - 30 * DAY
    if not errors and end <= first:
        errors.append(FieldError(("to",), "The end lies before the beginning."))
    chosen = step or ("day" if end - first <= MAX_DAILY * DAY else "month")
    if chosen not in STEPS:
        errors.append(FieldError(("columns",), "Choose day or month."))
    elif not errors and len(Range(first, end, chosen).columns) > MAX_COLUMNS:
        errors.append(FieldError(("columns",), f"These are more than {MAX_COLUMNS} {chosen}s; ask for fewer days."))
    if errors:
        raise Invalid(errors)
    return Range(first, end, cast("Step", chosen))


def midnight(day: dt.date) -> dt.datetime:
    return dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC)
