"""From a segment to its ledger lines: pure functions and frozen values, the reference for what the database posts.

A line is one SKU of one segment over whole seconds within one month (UTC), one price, one discount and one owner. A
segment's lines adjoin, so the quantities of a ledger are exactly the seconds of its segments.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from billing.metering.segments import Segment, floor, whole_seconds
from billing.money import money
from billing.periods import month
from billing.prices.rates import BEGINNING, Owner, Prices, quantities, worth


@dataclass(frozen=True)
class Entry:
    """The charge for [since, until) of one SKU of one segment. `quantity` is in unit-seconds (of GPUs, thousandths of a
    core, MiB), `charge` in `money.UNIT`s; both are exact. `per_hour` is the price of one GPU, core or GiB before
    `discount` percent; `price_id` is None without a price."""

    uid: str
    sku: str
    since: dt.datetime
    until: dt.datetime
    quantity: int
    price_id: int | None
    per_hour: Decimal
    discount: Decimal
    charge: Decimal
    appcode_id: int
    business_line: str
    consumer: str
    labels: Mapping[str, str | int]

    @property
    def amount(self) -> Decimal:
        return money(self.charge)


def final_until(segment: Segment, now: dt.datetime) -> dt.datetime:
    """The time up to which the segment's lines are final: its end or, while it is open, the end of the last month that
    is over."""
    if segment.ended is not None and segment.ended <= now:
        return segment.ended
    return month(now).since


def entries_of(segment: Segment, prices: Prices, owners: Iterable[Owner], until: dt.datetime) -> tuple[Entry, ...]:
    """The segment's lines up to `until`, ordered by SKU and time. `owners` may include other appcodes."""
    until = floor(until) if segment.ended is None else min(segment.ended, floor(until))
    lines = [(BEGINNING, ""), *_lines(segment.appcode_id, owners)]
    if len(lines) > 1:
        # The first known owner applies to all earlier times.
        lines = [(BEGINNING, lines[1][1]), *lines[2:]]
    cuts = {moment for moment, _ in lines} | set(_months(segment.started, until))
    entries = []
    for sku, amount in quantities(segment.resources).items():
        for rate in prices.rates(sku, segment.appcode_id):
            first = max(segment.started, rate.since)
            last = until if rate.until is None else min(until, rate.until)
            inside = sorted(cut for cut in cuts if first < cut < last)
            for since, end in pairwise([first, *inside, last]) if first < last else ():
                quantity = whole_seconds(end - since) * amount
                entries.append(
                    Entry(
                        uid=segment.uid,
                        sku=sku,
                        since=since,
                        until=end,
                        quantity=quantity,
                        price_id=rate.price.id if rate.price else None,
                        per_hour=rate.list_price,
                        discount=rate.discount,
                        charge=worth(sku, quantity, rate),
                        appcode_id=segment.appcode_id,
                        business_line=[line for begun, line in lines if begun <= since][-1],
                        consumer=segment.consumer,
                        labels=segment.labels,
                    )
                )
    return tuple(sorted(entries, key=lambda entry: (entry.sku, entry.since)))


def _lines(appcode_id: int, owners: Iterable[Owner]) -> list[tuple[dt.datetime, str]]:
    """When each business line began to own the appcode; consecutive equal owners are merged."""
    found: list[tuple[dt.datetime, str]] = []
    for owner in sorted(owner for owner in owners if owner.appcode_id == appcode_id):
        if not found or found[-1][1] != owner.business_line:
            found.append((floor(owner.valid_from), owner.business_line))
    return found


def _months(since: dt.datetime, until: dt.datetime) -> list[dt.datetime]:
    """The starts of months strictly between."""
    edges, edge = [], month(since).until
    while edge < until:
        edges.append(edge)
        edge = month(edge).until
    return edges
