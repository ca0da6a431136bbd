"""Documents of prices and discounts. Money is decimal text, because JSON numbers are not exact."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from billing.documents import Amount, Code, Line
from billing.prices.actions import Import
from billing.prices.effects import Effect
from billing.prices.file import Row
from billing.prices.models import Discount, Price
from portal.api.documents import Answer, page_of
from portal.api.money import Money, money
from portal.manifests import Strict

Sku = Annotated[str, Field(max_length=70, examples=["gpu:A100"])]


class PriceRequest(Strict):
    """For an appcode, a business line (its path), or everybody if neither is given."""

    sku: Sku
    per_hour: Amount | None
    valid_from: AwareDatetime | None = None
    appcode: Code = ""
    business_line: Line = ""


class PriceDocument(Answer):
    id: int
    sku: str
    per_hour: str | None
    currency: str
    valid_from: dt.datetime
    appcode: str
    business_line: str


PricePage = page_of("PricePage", PriceDocument)


class EffectRow(Answer):
    appcode: str
    before: Money
    after: Money


class EffectDocument(Answer):
    """`before` and `after` are this month so far; `items` are the affected appcodes, largest change first."""

    kind: Literal["price-effect"] = "price-effect"
    month: str = Field(examples=["2026-10"])
    before: Money
    after: Money
    per_hour_before: Money = Field(description="What runs now costs an hour.")
    per_hour_after: Money
    items: list[EffectRow]


class ImportDocument(Answer):
    """Numbers of prices that are new, replaced one not in force yet, or were in the book already."""

    added: int
    changed: int
    unchanged: int


class DiscountRequest(Strict):
    sku: Sku
    percent: Amount
    valid_from: AwareDatetime | None = None
    valid_until: AwareDatetime | None = None
    appcode: Code = ""
    business_line: Line = ""
    reason: Annotated[str, Field(max_length=200)] = ""


class DiscountDocument(Answer):
    id: int
    sku: str
    percent: str
    valid_from: dt.datetime
    valid_until: dt.datetime | None
    appcode: str
    business_line: str
    reason: str


DiscountPage = page_of("DiscountPage", DiscountDocument)


def price_document(price: Price) -> dict[str, Any]:
    code = price.appcode.code if price.appcode else ""
    row = Row(price.sku, code, price.business_line, price.per_hour, price.valid_from)
    return PriceDocument(
        id=price.pk, sku=row.sku, per_hour=row.cells[3] or None, currency=money(Decimal(0)).currency,
        valid_from=row.valid_from, appcode=row.appcode, business_line=row.business_line,
    ).json_value()  # fmt: skip


def effect_document(effect: Effect) -> dict[str, Any]:
    return EffectDocument(
        month=f"{effect.month:%Y-%m}",
        before=money(effect.before),
        after=money(effect.after),
        per_hour_before=money(effect.hourly_before),
        per_hour_after=money(effect.hourly_after),
        items=[EffectRow(appcode=row.appcode, before=money(row.before), after=money(row.after)) for row in effect.rows],
    ).json_value()


def import_document(done: Import) -> dict[str, Any]:
    changed = sum(1 for change in done.changes if change.old)
    return ImportDocument(
        added=len(done.changes) - changed, changed=changed, unchanged=done.unchanged
    ).json_value()  # fmt: skip


def discount_document(row: Discount) -> dict[str, Any]:
    code = row.appcode.code if row.appcode else ""
    return DiscountDocument.of(row, percent=f"{row.percent.normalize():f}", appcode=code).json_value()
