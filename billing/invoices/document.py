"""The contents of an invoice: pure functions and frozen values, from sums of ledger lines to a hashed document.

A line sums up one SKU at one price and discount for one business line and month of use. Its charge is exact; its amount
is rounded once, half to even. The document has one canonical form (JSON with sorted keys, no spaces, money as text).
Its SHA-256 is on every copy, so each copy can be checked against the document.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

from billing.invoices.issuer import Terms
from billing.ledger.entries import Entry
from billing.money import ORDER, UNITS, WIDE, cents, family, hours, money
from portal.text.zones import utc_text

T = TypeVar("T")

ZERO = Decimal("0.00")


@dataclass(frozen=True)
class Key:
    """What the entries of a line share; `month` is the first day of the month of use."""

    month: dt.date
    business_line: str
    sku: str
    price_id: int | None
    per_hour: Decimal
    discount: Decimal

    @classmethod
    def of(cls, entry: Entry) -> Key:
        month = entry.since.date().replace(day=1)
        return cls(month, entry.business_line, entry.sku, entry.price_id, entry.per_hour, entry.discount)


@dataclass(frozen=True)
class Line:
    """`quantity` is in unit-seconds, `charge` in `money.UNIT`s. Both are exact and add up to the ledger's."""

    key: Key
    quantity: int
    charge: Decimal

    @property
    def amount(self) -> Decimal:
        return cents(self.charge)

    @property
    def exact(self) -> Decimal:
        """The amount before rounding."""
        return money(self.charge)

    @property
    def hours(self) -> Decimal:
        """Priced units × hours, for display; `quantity` is the exact value."""
        return hours(self.key.sku, self.quantity)

    @property
    def unit(self) -> str:
        return UNITS[family(self.key.sku)]


@dataclass(frozen=True)
class Available:
    """A credit, in order of use: earliest expiry first. `left` is what a month may use of it, `spent` what invoices
    have used so far and not given back, and `paid` splits `spent` by month of use."""

    credit_id: int
    left: Decimal
    spent: Decimal
    reason: str
    paid: Mapping[dt.date, Decimal] = field(default_factory=dict)


@dataclass(frozen=True)
class Past:
    """A closed invoice: its amount for each month of use, and what it used of each credit (negative: gave back)."""

    month: dt.date
    amounts: Mapping[dt.date, Decimal]
    used: Mapping[int, Decimal]


@dataclass(frozen=True)
class Used:
    """What an invoice uses of a credit; a negative amount is given back."""

    credit_id: int
    amount: Decimal
    reason: str

    @property
    def given_back(self) -> bool:
        return self.amount < 0


@dataclass(frozen=True)
class Document:
    """One complete invoice. It covers the appcode's ledger entries with ids up to `mark`: those used in its month, and
    those of earlier months with ids over `after`, which were too late for the previous invoice."""

    number: str
    appcode: str
    name: str
    business_line: str
    month: dt.date
    currency: str
    closed_at: dt.datetime
    after: int
    mark: int
    lines: tuple[Line, ...]
    used: tuple[Used, ...] = field(default=())
    terms: Terms | None = None

    @property
    def subtotal(self) -> Decimal:
        return sum((line.amount for line in self.lines), Decimal("0.00"))

    @property
    def credited(self) -> Decimal:
        return sum((used.amount for used in self.used), Decimal("0.00"))

    @property
    def total(self) -> Decimal:
        """Before tax."""
        return self.subtotal - self.credited

    @property
    def tax(self) -> Decimal:
        return self.terms.tax(self.total) if self.terms else ZERO

    @property
    def gross(self) -> Decimal:
        return self.total + self.tax

    def facts(self) -> dict[str, Any]:
        """Everything that is hashed, under the API's names."""
        stated = (
            {"terms": self.terms.facts(), "tax": _text(self.tax, 2), "gross": _text(self.gross, 2)}
            if self.terms
            else {}
        )
        return {
            "number": self.number,
            "appcode": self.appcode,
            "name": self.name,
            "businessLine": self.business_line,
            "month": f"{self.month:%Y-%m}",
            "currency": self.currency,
            "closedAt": utc_text(self.closed_at),
            "ledger": {"after": self.after, "upTo": self.mark},
            "lines": [line_facts(line) for line in self.lines],
            "credits": [
                {"credit": used.credit_id, "reason": used.reason, "amount": _text(used.amount, 2)} for used in self.used
            ],
            "subtotal": _text(self.subtotal, 2),
            "credited": _text(self.credited, 2),
            "total": _text(self.total, 2),
            **stated,
        }

    def canonical(self) -> bytes:
        return canonical(self.facts())

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()


@dataclass(frozen=True)
class Note:
    """A credit note: takes back `amount`, and the `tax` on it, of the closed invoice with the number `invoice`, which itself
    never changes."""

    number: str
    invoice: str
    invoice_sha256: str
    appcode: str
    currency: str
    amount: Decimal
    reason: str
    issued_at: dt.datetime
    issued_by: str
    tax: Decimal = ZERO

    @property
    def gross(self) -> Decimal:
        return self.amount + self.tax

    def facts(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "invoice": self.invoice,
            "invoiceSha256": self.invoice_sha256,
            "appcode": self.appcode,
            "currency": self.currency,
            "amount": _text(self.amount, 2),
            **({"tax": _text(self.tax, 2)} if self.tax else {}),
            "reason": self.reason,
            "issuedAt": utc_text(self.issued_at),
            "issuedBy": self.issued_by,
        }

    def canonical(self) -> bytes:
        return canonical(self.facts())

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()


def number(month: dt.date, code: str) -> str:
    return f"INV-{month:%Y%m}-{code}"


def note_number(invoice: str, place: int) -> str:
    return f"CN-{invoice.removeprefix('INV-')}-{place}"


def lines(sums: Iterable[Line], month: dt.date) -> tuple[Line, ...]:
    """An invoice's lines in order: its own month, then corrections, oldest month first. Lines that were taken back
    entirely are left out."""
    found = (line for line in sums if line.quantity or line.charge)
    return tuple(sorted(found, key=lambda line: _place(line.key, month)))


def added(entries: Iterable[tuple[Key, int, Decimal]]) -> list[Line]:
    """One line per key, with quantity and charge added up."""
    sums: dict[Key, tuple[int, Decimal]] = {}
    for key, quantity, charge in entries:
        held = sums.get(key, (0, Decimal(0)))
        sums[key] = (held[0] + quantity, WIDE.add(held[1], charge))
    return [Line(key, quantity, charge) for key, (quantity, charge) in sums.items()]


def use(credits_: Sequence[Available], lines_: Iterable[Line], month: dt.date) -> tuple[Used, ...]:
    """What each credit pays of the lines of the invoice of `month`: never more than is due, nor than is left of the
    credit. If more is taken back than used, credits get back what they paid for the corrected months, the last used
    first. What was paid in money is owed in money."""
    amounts = by_month((line.key.month, line.amount) for line in lines_)
    subtotal = sum(amounts.values(), ZERO)
    if subtotal >= 0:
        used = _portions([(credit, credit.left) for credit in credits_], subtotal)
        return tuple(Used(credit.credit_id, amount, credit.reason) for credit, amount in used)
    last_first = list(reversed(credits_))
    paid: dict[int, Decimal] = {}
    for corrected, amount in amounts.items():
        if corrected != month:
            for credit, of in _portions([(each, each.paid.get(corrected, ZERO)) for each in last_first], -amount):
                paid[credit.credit_id] = paid.get(credit.credit_id, ZERO) + of
    most = [(credit, min(paid.get(credit.credit_id, ZERO), credit.spent)) for credit in last_first]
    return tuple(Used(credit.credit_id, -amount, credit.reason) for credit, amount in _portions(most, -subtotal))


def paid_by_credits(past: Iterable[Past], order: Sequence[int]) -> dict[int, dict[dt.date, Decimal]]:
    """What each credit has paid for each month of use, from all invoices so far, oldest first; `order` is the credits'
    order of use. When an invoice takes back usage of a month, the credits that paid for it become free. They are given
    back or, like newly used credits, pay for the invoice's other lines, its own month first."""
    paid: dict[dt.date, dict[int, Decimal]] = {}
    for invoice in past:
        free: dict[int, Decimal] = {}
        for month, amount in invoice.amounts.items():
            if amount < 0:
                _move(paid.setdefault(month, {}), free, -amount, order[::-1])
        for credit, amount in invoice.used.items():
            free[credit] = max(free.get(credit, ZERO) + amount, ZERO)
        for month in sorted(invoice.amounts, key=lambda each: (each != invoice.month, each)):
            _move(free, paid.setdefault(month, {}), invoice.amounts[month], order)
    found: dict[int, dict[dt.date, Decimal]] = {}
    for month, amounts in paid.items():
        for credit, amount in amounts.items():
            found.setdefault(credit, {})[month] = amount
    return found


def _move(from_: dict[int, Decimal], to: dict[int, Decimal], wanted: Decimal, order: Iterable[int]) -> None:
    for credit, amount in list(_portions([(each, from_.get(each, ZERO)) for each in order], wanted)):
        from_[credit] -= amount
        to[credit] = to.get(credit, ZERO) + amount


def by_month(amounts: Iterable[tuple[dt.date, Decimal]]) -> dict[dt.date, Decimal]:
    """Added up, oldest month first."""
    found: dict[dt.date, Decimal] = {}
    for month, amount in amounts:
        found[month] = found.get(month, ZERO) + amount
    return dict(sorted(found.items()))


def _portions(most: Iterable[tuple[T, Decimal]], wanted: Decimal) -> Iterator[tuple[T, Decimal]]:
    """Splits `wanted` over the items in order, each up to its limit."""
    for each, limit in most:
        amount = min(limit, wanted)
        if amount > 0:
            yield each, amount
            wanted -= amount


def line_facts(line: Line) -> dict[str, Any]:
    key = line.key
    return {
        "month": f"{key.month:%Y-%m}",
        "businessLine": key.business_line,
        "sku": key.sku,
        "price": key.price_id,
        "perHour": _text(key.per_hour, 6),
        "discountPercent": _text(key.discount, 2),
        "quantity": line.quantity,
        "charge": _text(line.charge, 10),
        "amount": _text(line.amount, 2),
    }


def canonical(facts: dict[str, Any]) -> bytes:
    """JSON with sorted keys and no spaces, in UTF-8: for values without fractions the same as RFC 8785."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _place(key: Key, month: dt.date) -> tuple[object, ...]:
    return (
        key.month != month, key.month, key.business_line, ORDER[family(key.sku)], key.sku, key.price_id or 0, key.per_hour,
        key.discount,
    )  # fmt: skip


def _text(value: Decimal, digits: int) -> str:
    return f"{WIDE.quantize(value, Decimal(1).scaleb(-digits)):f}"
