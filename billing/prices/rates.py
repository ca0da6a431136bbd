"""From segments and dated prices to money: pure and exact.

A price is looked up by SKU, payer (an appcode and its business line at the time) and moment. The result is a `Rate`,
which applies for a stretch of time. Money is the sum of seconds × amount × rate over such stretches, as an exact number
of UNITs, so a month equals the sum of its days whatever the prices. Results are Decimals of `money.PRECISION` digits;
they are rounded once, half to even, for display or an invoice line (`money.display`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from billing.metering.segments import Resources, Segment, floor, whole_seconds
from billing.money import (
    SIZE,
    SPARE,
    UNIT,
    WIDE,
    WORTH,
    class_of,
    decimal,
    discounted,
    family,
    model_of,
    unclassed,
    wider,
)

BEGINNING = dt.datetime(1, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, order=True)
class DatedPrice:
    """From `valid_from` on, an hour of one `sku` ("gpu", "gpu:<model>", both also behind "spare-" and "urgent-", "cpu", "memory"
    or "storage") costs `per_hour`. It applies to one appcode, to one business line or, if neither is given, to everybody.
    `per_hour` None ends a special price: the more general one applies again."""

    sku: str
    valid_from: dt.datetime
    per_hour: Decimal | None
    appcode_id: int | None = None
    business_line: str = ""
    id: int | None = None

    @property
    def scope(self) -> tuple[int | None, str]:
        return self.appcode_id, self.business_line


@dataclass(frozen=True)
class DatedDiscount:
    """`percent` off in [valid_from, valid_until) for one appcode, one business line or everybody. `pattern` is a SKU,
    "gpu" for GPUs of every model and class, "spare-gpu" for the spare ones alone, or "*" for everything."""

    pattern: str
    percent: Decimal
    valid_from: dt.datetime
    valid_until: dt.datetime | None = None
    appcode_id: int | None = None
    business_line: str = ""
    id: int | None = None

    def applies(self, sku: str, appcode_id: int | None, line: str, moment: dt.datetime) -> bool:
        in_time = self.valid_from <= moment and (self.valid_until is None or moment < self.valid_until)
        meant = self.appcode_id in (None, appcode_id) and self.business_line in ("", line)
        return in_time and meant and self.pattern in discounted(sku)


@dataclass(frozen=True, order=True)
class Owner:
    """From `valid_from` on the appcode belongs to `business_line` ("" for none). Its first owner also applies to
    earlier times."""

    appcode_id: int
    valid_from: dt.datetime
    business_line: str


@dataclass(frozen=True)
class Rate:
    """What one SKU costs one payer in [since, until): a price less a discount. `until` None is for ever; without a
    price it is free."""

    since: dt.datetime
    until: dt.datetime | None
    price: DatedPrice | None
    discount: Decimal = Decimal(0)

    @property
    def list_price(self) -> Decimal:
        """Per hour, before the discount."""
        return self.price.per_hour if self.price and self.price.per_hour is not None else Decimal(0)

    @property
    def per_hour(self) -> Decimal:
        return WIDE.divide(WIDE.multiply(self.list_price, 100 - self.discount), Decimal(100))


# An appcode id if it has special terms, and its history of business lines with special terms: (since, line).
Payer = tuple[int | None, tuple[tuple[dt.datetime, str], ...]]
ANYBODY: Payer = (None, ((BEGINNING, ""),))


@dataclass(frozen=True)
class Prices:
    """A price book. The nearest price applies: the appcode's, then its business line's, then everybody's; within each,
    the GPU model's before that of any GPU. Without a price usage is free. A spare GPU costs its own price or that of the
    same GPU, whichever is lower, and an urgent one whichever is higher. The largest of several discounts applies; they do
    not add up. `owners` need only include appcodes that ever belonged to a business line with special terms."""

    dated: tuple[DatedPrice, ...]
    discounts: tuple[DatedDiscount, ...] = ()
    owners: tuple[Owner, ...] = ()
    _rates: dict[tuple[Payer, str], tuple[Rate, ...]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def gpu_models(self) -> frozenset[str]:
        """Models with a price or discount of their own."""
        skus = [price.sku for price in self.dated] + [discount.pattern for discount in self.discounts]
        return frozenset(model for sku in skus if (model := model_of(sku)))

    @cached_property
    def _terms(self) -> tuple[DatedPrice | DatedDiscount, ...]:
        return (*self.dated, *self.discounts)

    @cached_property
    def special_appcodes(self) -> frozenset[int]:
        return frozenset(each.appcode_id for each in self._terms if each.appcode_id is not None)

    @cached_property
    def special_lines(self) -> frozenset[str]:
        return frozenset(each.business_line for each in self._terms if each.business_line)

    @cached_property
    def payers(self) -> dict[int, Payer]:
        """Appcodes with special terms; those with the same terms share one key."""
        history: dict[int, list[tuple[dt.datetime, str]]] = {}
        for owner in sorted(self.owners):
            line = owner.business_line if owner.business_line in self.special_lines else ""
            lines = history.setdefault(owner.appcode_id, [])
            if not lines:
                lines.append((BEGINNING, line))
            elif lines[-1][1] != line:
                lines.append((floor(owner.valid_from), line))
        found: dict[int, Payer] = {}
        for appcode_id in history.keys() | self.special_appcodes:
            own = appcode_id if appcode_id in self.special_appcodes else None
            payer = (own, tuple(history.get(appcode_id, ANYBODY[1])))
            if payer != ANYBODY:
                found[appcode_id] = payer
        return found

    def rates(self, sku: str, appcode_id: int | None = None) -> tuple[Rate, ...]:
        """The rates of `sku` for an appcode (None: one without special terms), covering all time without gaps."""
        payer = ANYBODY if appcode_id is None else self.payers.get(appcode_id, ANYBODY)
        return self.rates_of(payer, sku)

    def rates_of(self, payer: Payer, sku: str) -> tuple[Rate, ...]:
        key = (payer, sku)
        if key not in self._rates:
            self._rates[key] = tuple(self._split(payer, sku))
        return self._rates[key]

    def _split(self, payer: Payer, sku: str) -> Iterator[Rate]:
        """Cuts time wherever anything may change, and merges neighbours with equal terms."""
        own, lines = payer
        names = dict(lines)
        mine = {(own, "")} | {(None, line) for line in names.values()} | {(None, "")}
        asked = wider(sku)
        prices = [price for scope in mine for each in asked for price in self._book.get((*scope, each), ())]
        discounts = [
            each for each in self.discounts
            if each.pattern in discounted(sku) and (each.appcode_id, each.business_line) in mine
        ]  # fmt: skip
        edges = {BEGINNING, *names, *(floor(price.valid_from) for price in prices)}
        edges |= {floor(each.valid_from) for each in discounts}
        edges |= {floor(each.valid_until) for each in discounts if each.valid_until}
        held: Rate | None = None
        for since in sorted(edges):
            line = [name for begun, name in lines if begun <= since][-1]
            price = self._price(own, line, sku, since)
            percent = [each.percent for each in discounts if each.applies(sku, own, line, since)]
            rate = Rate(since, None, price, max(percent, default=Decimal(0)))
            if held is None:
                held = rate
            elif (held.price, held.discount) != (rate.price, rate.discount):
                yield Rate(held.since, since, held.price, held.discount)
                held = rate
        if held:
            yield held

    @cached_property
    def _book(self) -> dict[tuple[int | None, str, str], list[DatedPrice]]:
        """The versions of every price by scope and SKU, latest first."""
        book: dict[tuple[int | None, str, str], list[DatedPrice]] = {}
        for price in sorted(self.dated, key=lambda price: price.valid_from, reverse=True):
            book.setdefault((*price.scope, price.sku), []).append(price)
        return book

    def _price(self, own: int | None, line: str, sku: str, moment: dt.datetime) -> DatedPrice | None:
        found = self._nearest(own, line, sku, moment)
        if not (kind := class_of(sku)):
            return found
        usual = self._nearest(own, line, unclassed(sku), moment)
        if found is None:
            return usual
        if kind == SPARE:
            return usual if usual is None or (usual.per_hour or 0) < (found.per_hour or 0) else found
        return usual if usual is not None and (usual.per_hour or 0) > (found.per_hour or 0) else found

    def _nearest(self, own: int | None, line: str, sku: str, moment: dt.datetime) -> DatedPrice | None:
        nearest = [(own, "")] if own is not None else []
        for scope in dict.fromkeys([*nearest, (None, line), (None, "")]):
            for each in dict.fromkeys([sku, sku.partition(":")[0]]):
                versions = self._book.get((*scope, each), ())
                version = next((price for price in versions if floor(price.valid_from) <= moment), None)
                if version and version.per_hour is not None:
                    return version
        return None

    def at(self, sku: str, moment: dt.datetime, appcode_id: int | None = None) -> Decimal:
        """The price per hour at `moment`, after the discount."""
        return next(rate for rate in reversed(self.rates(sku, appcode_id)) if rate.since <= moment).per_hour

    def next_change(self, after: dt.datetime) -> dt.datetime | None:
        """When the next rate takes effect; a cached hourly cost is outdated then."""
        return min((moment for moment in self._changes if moment > after), default=None)

    def last_change(self, until: dt.datetime) -> dt.datetime | None:
        """When a rate last took effect; an hourly cost cached before is outdated."""
        return max((moment for moment in self._changes if moment <= until), default=None)

    @cached_property
    def _changes(self) -> set[dt.datetime]:
        changes = {each.valid_from for each in self._terms}
        changes |= {each.valid_until for each in self.discounts if each.valid_until}
        return changes | {moment for _, lines in self.payers.values() for moment, _ in lines[1:]}


def quantities(resources: Resources) -> dict[str, int]:
    """Units metered per second, by SKU: GPUs, thousandths of a core, MiB. Zero amounts are left out."""
    gpu = f"gpu:{resources.gpu_model}" if resources.gpu_model else "gpu"
    units = {
        f"{resources.gpu_class}-{gpu}" if resources.gpu_class else gpu: resources.gpus,
        "cpu": resources.cpu_milli,
        "memory": resources.memory_mb,
        "storage": resources.storage_mb,
    }
    return {sku: amount for sku, amount in units.items() if amount}


def amounts(resources: Resources) -> dict[str, Fraction]:
    """Priced units (GPUs, cores, GiB) held, by SKU."""
    return {sku: Fraction(amount, SIZE[family(sku)]) for sku, amount in quantities(resources).items()}


def worth(sku: str, quantity: int, rate: Rate) -> Decimal:
    """The exact charge in UNITs for `quantity` unit-seconds of a SKU."""
    return WIDE.multiply(WIDE.multiply(Decimal(quantity), rate.per_hour), Decimal(WORTH[family(sku)]))


def charge(segment: Segment, prices: Prices, now: dt.datetime) -> Fraction:
    """The exact cost of the segment until `now`."""
    until = floor(now) if segment.ended is None else min(segment.ended, floor(now))
    total = Decimal(0)
    for sku, amount in quantities(segment.resources).items():
        for rate in prices.rates(sku, segment.appcode_id):
            end = until if rate.until is None else min(until, rate.until)
            seconds = whole_seconds(end - max(segment.started, rate.since))
            if seconds > 0:
                total = WIDE.add(total, worth(sku, seconds * amount, rate))
    return Fraction(total) / UNIT


def cost(segment: Segment, prices: Prices, now: dt.datetime) -> Decimal:
    """The cost of the segment until `now`, split to the second where a rate changes."""
    return decimal(charge(segment, prices, now))


def hourly(prices: Prices, at: dt.datetime, resources: Iterable[Resources], appcode_id: int | None = None) -> Decimal:
    """What these pods together cost an appcode per hour at the rates of `at`."""
    held = (pair for one in resources for pair in amounts(one).items())
    return decimal(sum((amount * Fraction(prices.at(sku, at, appcode_id)) for sku, amount in held), Fraction(0)))


def planned(
    prices: Prices, since: dt.datetime, seconds: int, resources: Iterable[Resources], appcode_id: int
) -> Decimal:
    """What these pods together will cost an appcode over `seconds` from `since` on, each second at its known price."""
    until = floor(since) + dt.timedelta(seconds=seconds)
    segments = (Segment("", appcode_id, "", {}, one, floor(since)) for one in resources)
    return decimal(sum((charge(each, prices, until) for each in segments), Fraction(0)))
