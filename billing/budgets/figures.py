"""What budgets are compared with: the money of the month so far, what it will be when the month is over, and what runs now costs.

The sums are those of the dashboard, of any number of appcodes and business lines in a number of queries that does not depend on
how many there are; `steps.forecast` decides what they mean for the rest of the month.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from billing import hooks, periods
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
    """What was spent in the month so far, what it will be at its end, and what runs now costs an hour; unrounded."""

    spent: Decimal = Decimal(0)
    forecast: Decimal = Decimal(0)
    per_hour: Decimal = Decimal(0)


def month_of(now: dt.datetime) -> dt.date:
    return periods.month(now).since.date()


@dataclass(frozen=True)
class Rate:
    """What runs now, an hour: what goes on until somebody ends it, and what ends by itself."""

    lasting: Decimal = Decimal(0)
    passing: Decimal = Decimal(0)

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.lasting + other.lasting, self.passing + other.passing)


def figures(rows: Sequence[Budget], now: dt.datetime) -> dict[int, Figures]:
    """By the number of the budget; nine queries, however many budgets there are."""
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
    # Business lines are those of the moment of use, so for them everybody's usage is read.
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
    """The figures of all these appcodes together (None: of everybody); six queries."""
    now = floor(now)
    spent = over_time.read(_month(now), "appcode", now, appcodes=appcodes).total.cost
    lately = over_time.read(_mean(now), "appcode", now, appcodes=appcodes).totals
    rate = sum(_rates(appcodes, now).values(), Rate())
    return _figures(spent, {day: used.cost for day, used in lately}, rate, now)


def _figures(spent: Decimal, lately: Mapping[dt.date, Decimal], rate: Rate, now: dt.datetime) -> Figures:
    expected = steps.forecast(spent, lately, now, lasting=rate.lasting, passing=rate.passing)
    return Figures(spent, expected, rate.lasting + rate.passing)


def _month(now: dt.datetime) -> Range:
    first = month_of(now)
    return Range(first, periods.following(first), "month")


def _mean(now: dt.datetime) -> Range:
    """The days that a forecast goes on with."""
    return Range(steps.first_mean_day(now), now.date() + DAY, "day")


def _rates(appcodes: Sequence[int] | None, now: dt.datetime) -> dict[int, Rate]:
    """What runs now, by the number of the appcode."""
    running = split.usage(
        price_book(), by=["appcode", "consumer"], windows=[(now, now + SECOND)], now=now, appcodes=appcodes
    )
    judge = hooks.without_end.only
    lasting = set(judge([row.key[1] or "" for row in running])) if judge and running else set()
    found: defaultdict[int, Rate] = defaultdict(Rate)
    for row in running:
        each = Rate(lasting=row.cost_per_hour) if row.key[1] in lasting else Rate(passing=row.cost_per_hour)
        found[int(row.key[0] or 0)] += each
    return dict(found)


def lines_of(appcodes: Iterable[int]) -> dict[int, str]:
    """The business line of each appcode as it is now, "" where it has none; two queries."""
    titles = dict(OrgNode.objects.exclude(namespace=None).values_list("path", "title"))
    rows = Appcode.objects.filter(pk__in=list(appcodes)).select_related("org_node")
    return {row.pk: access.business_line(row.org_node, titles) for row in rows}
