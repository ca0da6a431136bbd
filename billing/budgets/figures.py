"""The figures that budgets are compared with: this month's cost, its forecast, and the hourly cost of what runs now.

The sums are the dashboard's. The number of queries does not depend on how many appcodes and business lines there are.
`steps.forecast` computes the forecast.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from billing import extension_points, periods
from billing.budgets import steps
from billing.budgets.models import Budget
from billing.ledger.models import Group
from billing.metering.segments import floor
from billing.money import Used
from billing.periods import DAY, Range
from billing.prices import split
from billing.prices.book import price_book
from billing.sums import access, over_time
from portal.models import Appcode, OrgNode

SECOND = dt.timedelta(seconds=1)


@dataclass(frozen=True)
class Figures:
    """Cost of the month so far, forecast for the whole month, and hourly cost of what runs now; unrounded. `per_day` is the
    mean of `mean_days` that the forecast goes on with, None if it goes on with what runs now."""

    spent: Decimal = Decimal(0)
    forecast: Decimal = Decimal(0)
    per_hour: Decimal = Decimal(0)
    per_day: Decimal | None = None
    mean_days: int = 0


def month_of(now: dt.datetime) -> dt.date:
    return periods.month(now).since.date()


@dataclass(frozen=True)
class Rate:
    """Hourly cost of what runs now: `lasting` runs until a person ends it, `passing` ends by itself."""

    lasting: Decimal = Decimal(0)
    passing: Decimal = Decimal(0)

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.lasting + other.lasting, self.passing + other.passing)


def figures(rows: Sequence[Budget], now: dt.datetime) -> dict[int, Figures]:
    """Figures by budget id. Nine queries, however many budgets there are."""
    if not rows:
        return {}
    codes, paths = of_appcodes(
        [row.appcode_id for row in rows if row.appcode_id],
        [row.org_node.path for row in rows if row.org_node],
        now,
    )
    return {row.pk: codes.get(row.appcode_id or 0) or paths.get(str(row), Figures()) for row in rows}


def of_appcodes(
    appcodes: Collection[int], lines: Collection[str], now: dt.datetime
) -> tuple[dict[int, Figures], dict[str, Figures]]:
    """The figures of each of these appcodes and business lines."""
    now = floor(now)
    # Usage belongs to the business line of its time, so a line's sum needs every appcode's usage.
    read = None if lines else list(appcodes)
    groups: list[Group] = ["appcode", "line"] if lines else ["appcode"]
    spent = over_time.read(_month(now), "appcode", now, appcodes=read, also=groups)
    rates = _rates(read, now)
    line_rates: defaultdict[str, Rate] = defaultdict(Rate)
    if lines and rates:
        for pk, line in lines_of(rates).items():
            line_rates[line] += rates[pk]

    def of(by: Group, running: Mapping[Any, Rate], names: Collection[Any]) -> dict[Any, Figures]:
        if not names:
            return {}
        lately = over_time.read(_mean(now), by, now, appcodes=read).by_group
        found = {}
        for name in names:
            days = {day: used[str(name)].cost for day, used in lately.items() if str(name) in used}
            so_far = spent.by[by].get(str(name), Used()).cost
            found[name] = _figures(so_far, days, running.get(name, Rate()), now)
        return found

    return of("appcode", rates, appcodes), of("line", line_rates, lines)


def together(appcodes: Sequence[int] | None, now: dt.datetime) -> Figures:
    """The figures of these appcodes as one sum (None: all appcodes). Six queries."""
    now = floor(now)
    spent = over_time.read(_month(now), "appcode", now, appcodes=appcodes).total.cost
    lately = over_time.read(_mean(now), "appcode", now, appcodes=appcodes).totals
    rate = sum(_rates(appcodes, now).values(), Rate())
    return _figures(spent, {day: used.cost for day, used in lately}, rate, now)


def _figures(spent: Decimal, lately: Mapping[dt.date, Decimal], rate: Rate, now: dt.datetime) -> Figures:
    expected = steps.forecast(spent, lately, now, lasting=rate.lasting, passing=rate.passing)
    return Figures(spent, expected.total, rate.lasting + rate.passing, expected.per_day, expected.mean_days)


def _month(now: dt.datetime) -> Range:
    first = month_of(now)
    return Range(first, periods.following(first), "month")


def _mean(now: dt.datetime) -> Range:
    """The days whose mean the forecast uses."""
    return Range(steps.first_mean_day(now), now.date() + DAY, "day")


def _rates(appcodes: Sequence[int] | None, now: dt.datetime) -> dict[int, Rate]:
    """The hourly cost of what runs now, by appcode id."""
    running = split.usage(
        price_book(), by=["appcode", "consumer"], windows=[(now, now + SECOND)], now=now, appcodes=appcodes
    )
    judge = extension_points.without_end.only
    lasting = set(judge([row.key[1] or "" for row in running])) if judge and running else set()
    found: defaultdict[int, Rate] = defaultdict(Rate)
    for row in running:
        each = Rate(lasting=row.cost_per_hour) if row.key[1] in lasting else Rate(passing=row.cost_per_hour)
        found[int(row.key[0] or 0)] += each
    return dict(found)


def lines_of(appcodes: Iterable[int]) -> dict[int, str]:
    """The current business line of each appcode, "" if it has none. Two queries."""
    titles = dict(OrgNode.objects.exclude(namespace=None).values_list("path", "title"))
    rows = Appcode.objects.filter(pk__in=list(appcodes)).select_related("org_node")
    return {row.pk: access.business_line(row.org_node, titles) for row in rows}
