"""From segments and dated prices to money: pure functions, exact until somebody displays the result.

Money is a sum of seconds × amount × price per hour over every stretch in which the price was the same. Inside, sums are
fractions, so that a month adds up to its days whatever the prices; what leaves this module is a Decimal of PRECISION
digits, and it is rounded once, half to even, where a person or an invoice line reads it (`display`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from functools import cached_property

from billing.usage import Resources, Segment, floor, whole_seconds

SECONDS_PER_HOUR = 3600
PRECISION = 28
EXACTLY = Context(prec=PRECISION, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, order=True)
class DatedPrice:
    """From `valid_from` on, an hour of one `sku` ("gpu", "gpu:<model>", "cpu" or "memory") costs `per_hour`."""

    sku: str
    valid_from: dt.datetime
    per_hour: Decimal


@dataclass(frozen=True)
class Span:
    """One price in [since, until); `until` is None when no later price is known."""

    since: dt.datetime
    until: dt.datetime | None
    per_hour: Decimal


@dataclass(frozen=True)
class Prices:
    """A price book. A model of GPU without a price of its own, or before its first one, costs what "gpu" costs.

    What has no price at all costs nothing.
    """

    dated: tuple[DatedPrice, ...]

    @cached_property
    def gpu_models(self) -> frozenset[str]:
        """Models that have a price of their own."""
        return frozenset(price.sku.removeprefix("gpu:") for price in self.dated if price.sku.startswith("gpu:"))

    def spans(self, sku: str) -> tuple[Span, ...]:
        """When which price of `sku` holds, in order, without gaps after the first."""
        own = sorted(price for price in self.dated if price.sku == sku)
        if sku.startswith("gpu:"):
            general = sorted(price for price in self.dated if price.sku == "gpu")
            own = [price for price in general if not own or price.valid_from < own[0].valid_from] + own
        starts = [floor(price.valid_from) for price in own]
        return tuple(
            Span(since, until, price.per_hour)
            for price, since, until in zip(own, starts, [*starts, None][1:], strict=True)
            if since != until
        )

    def at(self, sku: str, moment: dt.datetime) -> Decimal:
        """The price per hour that holds at `moment`."""
        held = [span.per_hour for span in self.spans(sku) if span.since <= moment]
        return held[-1] if held else Decimal(0)

    def next_change(self, after: dt.datetime) -> dt.datetime | None:
        """When the next price begins to hold, for whoever keeps a rate of cost and must renew it then."""
        return min((price.valid_from for price in self.dated if price.valid_from > after), default=None)

    def last_change(self, until: dt.datetime) -> dt.datetime | None:
        """When a price began to hold for the last time: a rate of cost that was reckoned before is an old one."""
        return max((price.valid_from for price in self.dated if price.valid_from <= until), default=None)


def amounts(resources: Resources) -> dict[str, Fraction]:
    """How many priced units are held, by SKU; what is not held is left out."""
    units = {
        f"gpu:{resources.gpu_model}" if resources.gpu_model else "gpu": Fraction(resources.gpus),
        "cpu": Fraction(resources.cpu_milli, 1000),
        "memory": Fraction(resources.memory_mb, 1024),
    }
    return {sku: amount for sku, amount in units.items() if amount}


def charge(segment: Segment, prices: Prices, now: dt.datetime) -> Fraction:
    """What the segment costs until `now`, exactly."""
    until = floor(now) if segment.ended is None else min(segment.ended, floor(now))
    total = Fraction(0)
    for sku, amount in amounts(segment.resources).items():
        for span in prices.spans(sku):
            end = until if span.until is None else min(until, span.until)
            seconds = whole_seconds(end - max(segment.started, span.since))
            if seconds > 0:
                total += seconds * amount * Fraction(span.per_hour) / SECONDS_PER_HOUR
    return total


def cost(segment: Segment, prices: Prices, now: dt.datetime) -> Decimal:
    """What the segment costs until `now`, split to the second where a price changes."""
    return decimal(charge(segment, prices, now))


def hourly(prices: Prices, at: dt.datetime, resources: Iterable[Resources]) -> Decimal:
    """What all these pods together cost for an hour at the prices of `at`; one entry for each pod."""
    held = (pair for one in resources for pair in amounts(one).items())
    return decimal(sum((amount * Fraction(prices.at(sku, at)) for sku, amount in held), Fraction(0)))


def decimal(value: Fraction) -> Decimal:
    return EXACTLY.divide(Decimal(value.numerator), Decimal(value.denominator))


def display(amount: Decimal, digits: int = 2) -> Decimal:
    """Rounded for reading, half to even: the only place where money is rounded."""
    return amount.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN)
