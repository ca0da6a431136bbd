"""Previews a change of prices: this month's usage so far, charged by the current and by the changed book."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from billing import periods
from billing.prices import file, split
from billing.prices.book import price_book
from billing.prices.models import Ownership
from billing.prices.rates import DatedPrice, Owner, Prices
from portal.models import Appcode


@dataclass(frozen=True)
class Row:
    """One appcode: cost so far, and hourly cost of what it holds now, before and after."""

    appcode: str
    before: Decimal
    after: Decimal
    hourly_before: Decimal
    hourly_after: Decimal

    @property
    def difference(self) -> Decimal:
        return self.after - self.before


@dataclass(frozen=True)
class Effect:
    """`rows` are the affected appcodes, largest change first; the sums cover all appcodes."""

    month: dt.date
    since: dt.datetime
    until: dt.datetime
    rows: tuple[Row, ...]
    before: Decimal
    after: Decimal
    hourly_before: Decimal
    hourly_after: Decimal
    # The added cost of the rest of this month if everything keeps running; None if every change comes later.
    rest: Decimal | None

    @property
    def difference(self) -> Decimal:
        return self.after - self.before

    @property
    def percent(self) -> Decimal | None:
        return self.difference / self.before * 100 if self.before else None


def effect(changes: Sequence[DatedPrice], now: dt.datetime) -> Effect:
    """The effect of `changes` as if they had been in force all month. A constant number of queries."""
    period = periods.month(now)
    old, owners = price_book(), _owners(changes)
    new = file.as_if(old, changes, period.since, owners)
    since = max(now, min((change.valid_from for change in changes), default=now))
    before, after = (
        {row.key[0]: row for row in split.usage(prices, by=["appcode"], windows=[period.window], now=now)}
        for prices in (old, new)
    )
    codes = dict(Appcode.objects.filter(pk__in=[int(pk or 0) for pk in before]).values_list("pk", "code"))
    rows = [
        Row(codes[int(pk or 0)], row.cost, after[pk].cost, row.cost_per_hour, after[pk].cost_per_hour)
        for pk, row in before.items()
    ]
    changed = [row for row in rows if row.difference or row.hourly_before != row.hourly_after]
    return Effect(
        month=period.since.date(),
        since=since,
        until=period.until,
        rows=tuple(sorted(changed, key=lambda row: (-abs(row.difference), row.appcode))),
        before=sum((row.before for row in rows), Decimal(0)),
        after=sum((row.after for row in rows), Decimal(0)),
        hourly_before=sum((row.hourly_before for row in rows), Decimal(0)),
        hourly_after=sum((row.hourly_after for row in rows), Decimal(0)),
        rest=_going_on(file.dated(old, changes, owners), now, period.until) - _going_on(old, now, period.until)
        if since < period.until
        else None,
    )


def _going_on(prices: Prices, now: dt.datetime, until: dt.datetime) -> Decimal:
    """The cost until then of everything that runs now, each second at its own price."""
    return sum((row.cost for row in split.usage(prices, by=["appcode"], windows=[(now, until)], now=until)), Decimal(0))


def _owners(changes: Sequence[DatedPrice]) -> list[Owner]:
    """All owners of appcodes that ever belonged to a business line whose prices change."""
    lines = {change.business_line for change in changes if change.business_line}
    if not lines:
        return []
    codes = Ownership.objects.filter(business_line__in=lines).values("appcode")
    return [row.owner for row in Ownership.objects.filter(appcode__in=codes)]
