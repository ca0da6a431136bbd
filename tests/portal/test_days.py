"""Days as people say them."""

from __future__ import annotations

import datetime as dt

import pytest

from portal.text.days import days_in

# A Wednesday.
TODAY = dt.date(2026, 3, 4)


@pytest.mark.parametrize(
    ("text", "rest", "first", "last"),
    [
        ("runs today", "runs", "2026-03-04", "2026-03-04"),
        ("failed yesterday by bob", "failed  by bob", "2026-03-03", "2026-03-03"),
        ("since yesterday", "", "2026-03-03", "2026-03-04"),
        ("costs of the last week", "costs", "2026-02-23", "2026-03-01"),
        ("this week", "", "2026-03-02", "2026-03-08"),
        ("Last Month", "", "2026-02-01", "2026-02-28"),
        ("this year", "", "2026-01-01", "2026-12-31"),
        ("last year", "", "2025-01-01", "2025-12-31"),
        ("in the last 7 days", "", "2026-02-26", "2026-03-04"),
        ("over the past month", "", "2026-02-03", "2026-03-04"),
        ("in January", "", "2026-01-01", "2026-01-31"),
        ("in november", "", "2025-11-01", "2025-11-30"),
        ("february 2024", "", "2024-02-01", "2024-02-29"),
        ("since 2026-02-28", "", "2026-02-28", "2026-03-04"),
    ],
)
def test_days(text: str, rest: str, first: str, last: str) -> None:
    found, days = days_in(text, TODAY)
    assert days
    assert (found, f"{days.first}", f"{days.last}") == (rest, first, last)


@pytest.mark.parametrize("text", ["runs", "my last run", "2026-02-30", "todays", "last-week-1"])
def test_no_days(text: str) -> None:
    assert days_in(text, TODAY) == (text, None)
