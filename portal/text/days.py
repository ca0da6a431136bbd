"""Days as people say them: “yesterday”, “last week”, “since 2026-11-01”, “in November”. Pure: today is an argument."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from dataclasses import dataclass

_MONTHS = [name.lower() for name in calendar.month_name]
_SAID = re.compile(
    r"\b(?:(?P<since>since)|in|on|from|over|for|during|of)?\s*\b(?:the\s+)?(?P<days>"
    r"today|yesterday|(?P<which>this|last|past)\s+(?:(?P<count>\d{1,3})\s+)?(?P<unit>day|week|month|year)s?"
    rf"|(?P<month>{'|'.join(_MONTHS[1:])})(?:\s+(?P<year>20\d\d))?|(?P<date>20\d\d-\d\d-\d\d))\b",
    re.IGNORECASE,
)
_DAY = dt.timedelta(days=1)
_LENGTH = {"day": 1, "week": 7, "month": 30, "year": 365}


@dataclass(frozen=True)
class Days:
    """From the first day to the last, and how they were said."""

    first: dt.date
    last: dt.date
    said: str


def days_in(text: str, today: dt.date) -> tuple[str, Days | None]:
    """The text without its days, and these; None where it names none."""
    said = _SAID.search(text)
    if said is None:
        return text, None
    try:
        first, last = _range(said, today)
    except ValueError:  # 2026-02-30
        return text, None
    words = " ".join(said["days"].split())
    days = Days(first, max(first, today), f"since {words}") if said["since"] else Days(first, last, words)
    return f"{text[: said.start()]} {text[said.end() :]}".strip(), days


def _range(said: re.Match[str], today: dt.date) -> tuple[dt.date, dt.date]:
    if said["date"]:
        day = dt.date.fromisoformat(said["date"])
        return day, day
    if said["month"]:
        number = _MONTHS.index(said["month"].lower())
        # Without a year, the last one that has begun.
        first = dt.date(int(said["year"] or today.year - (number > today.month)), number, 1)
        return first, _last_of("month", first)
    if not said["unit"]:
        day = today if said["days"].lower() == "today" else today - _DAY
        return day, day
    which, unit = said["which"].lower(), said["unit"].lower()
    if said["count"] or which == "past":
        return today - (int(said["count"] or 1) * _LENGTH[unit] - 1) * _DAY, today
    first = _first_of(unit, today)
    if which == "last":
        first = _first_of(unit, first - _DAY)
    return first, _last_of(unit, first)


def _first_of(unit: str, day: dt.date) -> dt.date:
    if unit == "week":
        return day - day.weekday() * _DAY
    return day.replace(day=1 if unit != "day" else day.day, month=1 if unit == "year" else day.month)


def _last_of(unit: str, first: dt.date) -> dt.date:
    return _first_of(unit, first + (_LENGTH[unit] + 1 if unit != "day" else 1) * _DAY) - _DAY
