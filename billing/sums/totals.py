"""A consumer's cost so far and how fast it grows, for pages that show a running number."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from billing.money import SECONDS_PER_HOUR
from billing.periods import EARLIEST
from billing.prices import split
from billing.prices.book import price_book


@dataclass(frozen=True)
class Totals:
    """A consumer's usage at `now` and its growth: value later = value + rate × seconds. `gpu_rate` is GPUs held
    (GPU-seconds per second), `cost_rate` money per second. They are exact until something begins, ends or changes its
    price (`Prices.next_change`)."""

    gpu_seconds: int = 0
    gpu_rate: int = 0
    cost: Decimal = Decimal(0)
    cost_rate: Decimal = Decimal(0)


def totals(consumers: Sequence[str], now: dt.datetime) -> dict[str, Totals]:
    """Usage and cost of each consumer from its beginning until `now`, zeros for an unknown one. Two queries. The window
    ends a second later: what began within this second has a rate but no usage yet."""
    if not consumers:
        return {}
    window = (EARLIEST, now + dt.timedelta(seconds=1))
    found = {
        row.key[0]: Totals(row.gpu_seconds, row.gpus, row.cost, row.cost_per_hour / SECONDS_PER_HOUR)
        for row in split.usage(price_book(), by=["consumer"], windows=[window], now=now, consumers=consumers)
    }
    return {consumer: found.get(consumer, Totals()) for consumer in consumers}
