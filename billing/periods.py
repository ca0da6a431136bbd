"""A stretch of time that people ask usage for, and how a chart divides it. Pure: the clock comes in as an argument.

All days and months are UTC's, so no day has 23 or 25 hours and nothing is billed twice or never when clocks change.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from itertools import pairwise

from portal.errors import FieldError, Invalid

DAY = dt.timedelta(days=1)
# How people and addresses write a month, for descriptions of them.
MONTH_PATTERN = r"^20[0-9]{2}-(0[1-9]|1[0-2])$"
# Beyond this many days a chart has a column for each month.
MAX_DAILY = 62
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
    def last_day(self) -> dt.date:
        """The last day that has a part in it; people name a period by its first and last day."""
        return (self.until - dt.timedelta(microseconds=1)).date()

    @property
    def columns(self) -> list[tuple[dt.datetime, dt.datetime]]:
        """Days, or months when there are many days; they adjoin, and the first and last are cut to the period."""
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
    """The calendar month that `moment` lies in."""
    first = _midnight(moment).replace(day=1)
    return Period(first, (first + 31 * DAY).replace(day=1))


def month_of(day: dt.date) -> Period:
    """The calendar month of a day."""
    return month(dt.datetime(day.year, day.month, 1, tzinfo=dt.UTC))


def following(day: dt.date) -> dt.date:
    """The first day of the month after that of `day`."""
    return (day.replace(day=1) + 31 * DAY).replace(day=1)


def month_before(period: Period) -> Period:
    return month(month(period.since).since - DAY)


def month_after(period: Period) -> Period:
    return month(month(period.since).until)


def parse(since: str, until: str, now: dt.datetime) -> Period:
    """The period from `since` to `until`, each a date (2026-01-31: the whole day, the last one included) or an exact
    time.

    Empty means the beginning of this month, and the end of the month of `since` or of today, whichever is later. Raises
    Invalid at "from" or "to".
    """
    errors: list[FieldError] = []
    start = _moment(since, "from", errors) if since else month(now).since
    end = _moment(until, "to", errors, end_of_day=True) if until else max(month(start).until, month(now).until)
    if not errors and end <= start:
        errors.append(FieldError(("to",), "The end lies before the beginning."))
    if errors:
        raise Invalid(errors)
    return Period(start, end)


def _moment(text: str, name: str, errors: list[FieldError], *, end_of_day: bool = False) -> dt.datetime:
    """The time that `text` means; notes an error for what is no time or lies outside of all reason."""
    try:
        # A date alone is its midnight in UTC; only a time needs a zone.
        whole_day = "T" not in text and " " not in text
        moment = dt.datetime.fromisoformat(text)
        if whole_day:
            moment = moment.replace(tzinfo=dt.UTC) + (DAY if end_of_day else dt.timedelta())
        elif moment.tzinfo is None:
            errors.append(FieldError((name,), "Give the time zone, for example 2026-01-31T18:00:00Z."))
            return EARLIEST
        moment = moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        errors.append(FieldError((name,), "Give a date like 2026-01-31 or a time like 2026-01-31T18:00:00Z."))
        return EARLIEST
    if not EARLIEST <= moment <= LATEST:
        errors.append(FieldError((name,), "Give a time between the years 2000 and 2100."))
    return moment.replace(microsecond=0)


def _midnight(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
