"""From the ledger to rows of FOCUS 1.2 (FinOps Open Cost and Usage Specification): pure functions and frozen values.

A row is one ledger entry that an invoice of the month covers, one credit that the invoice used, one credit note, or the
rounding of invoice lines to cents. So BilledCost adds up to the total of each document with its InvoiceId, to the cent.
Usage of a month that was invoiced before is a correction: BillingPeriod is the month in which it is billed,
ChargePeriod the time of use.

Quantities are rounded to QUANTITY digits. A cost is the exact product of the row's quantity and price, as the
specification requires; the rest (less than 10^-9 of a cent a row) is part of the rounding row.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NamedTuple, TypeAlias

from billing.ledger.entries import Entry
from billing.money import SECONDS_PER_HOUR, SIZE, WIDE, class_of, family, model_of
from billing.periods import Period, month

VERSION = "1.2"
PROVIDER = "GPU cloud"
# Tags are the labels of tasks. The specification requires a prefix for those that a provider sets.
TAG_PREFIX = "gpu-cloud/"
# Decimals of a quantity, of a unit price (6 of the price plus 4 of the percentage), and of their product.
QUANTITY, PRICE = 12, 10
COST = QUANTITY + PRICE

Cell: TypeAlias = str | Decimal | dt.datetime | None


class Row(NamedTuple):
    """The columns in order; those with the prefix x_ are ours. Columns for what this provider does not have
    (commitments, reservations, regions) are left out, as the specification allows; but rules of the validator require
    CommitmentDiscountStatus and the pricing currency."""

    BilledCost: Decimal
    BillingAccountId: str
    BillingAccountName: str
    BillingAccountType: str
    BillingCurrency: str
    BillingPeriodEnd: dt.datetime
    BillingPeriodStart: dt.datetime
    ChargeCategory: str
    ChargeClass: str | None
    ChargeDescription: str
    ChargeFrequency: str
    ChargePeriodEnd: dt.datetime
    ChargePeriodStart: dt.datetime
    CommitmentDiscountStatus: None
    ConsumedQuantity: Decimal | None
    ConsumedUnit: str | None
    ContractedCost: Decimal
    ContractedUnitPrice: Decimal | None
    EffectiveCost: Decimal
    InvoiceId: str | None
    InvoiceIssuerName: str
    ListCost: Decimal
    ListUnitPrice: Decimal | None
    PricingCategory: str | None
    PricingCurrency: str
    PricingCurrencyContractedUnitPrice: Decimal | None
    PricingCurrencyEffectiveCost: Decimal
    PricingCurrencyListUnitPrice: Decimal | None
    PricingQuantity: Decimal | None
    PricingUnit: str | None
    ProviderName: str
    PublisherName: str
    ResourceId: str | None
    ResourceName: str | None
    ResourceType: str | None
    ServiceCategory: str
    ServiceName: str
    ServiceSubcategory: str
    SkuId: str | None
    SkuMeter: str | None
    SkuPriceDetails: str | None
    SkuPriceId: str | None
    SubAccountId: str
    SubAccountName: str
    SubAccountType: str
    Tags: str | None
    x_DiscountPercent: Decimal | None
    x_LedgerEntryId: str | None
    x_LedgerKind: str


COLUMNS = Row._fields
NULLS = Row._make([None] * len(COLUMNS))
TIMES = frozenset({"BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"})
NUMBERS = {
    "BilledCost": COST, "ContractedCost": COST, "EffectiveCost": COST, "ListCost": COST, "ContractedUnitPrice": PRICE,
    "ListUnitPrice": PRICE, "PricingCurrencyContractedUnitPrice": PRICE, "PricingCurrencyEffectiveCost": COST,
    "PricingCurrencyListUnitPrice": PRICE, "ConsumedQuantity": 3, "PricingQuantity": QUANTITY, "x_DiscountPercent": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Account:
    """Who is billed: an appcode (the sub account) and its business line (the billing account). Without a business line
    the appcode is its own billing account."""

    code: str
    name: str
    business_line: str = ""
    line_title: str = ""


@dataclass(frozen=True)
class Bill:
    """Month, document (None if there is none yet) and currency of a charge."""

    period: Period
    currency: str
    invoice: str | None = None


@dataclass(frozen=True)
class _Meter:
    """How a SKU is sold: the unit of its price, the unit of its meter, metered units per quantity unit, and its FOCUS service."""

    priced: str
    metered: str
    per: int
    meter: str
    detail: str
    category: str = "Compute"
    service: str = "Clusters"
    subcategory: str = "Containers"
    resource: str = "Task"


METERS = {
    "gpu": _Meter("GPU-Hours", "GPU-Seconds", 1, "GPU time", "GpuCount"),
    "cpu": _Meter("Core-Hours", "Core-Seconds", 1000, "CPU time", "CoreCount"),
    "memory": _Meter("GiB-Hours", "MiB-Seconds", 1, "Memory", "MemorySize"),
    "storage": _Meter(
        "GiB-Hours",
        "MiB-Seconds",
        1,
        "Storage",
        "DiskSpace",
        "Storage",
        "Volumes and buckets",
        "Storage Platforms",
        "Volume",
    ),
}


def usage(entry: Entry, account: Account, bill: Bill, *, number: int, kind: str) -> Row:
    """The row of one ledger entry, usage or reversal; `number` is the entry's id."""
    meter = METERS[family(entry.sku)]
    hours = WIDE.divide(Decimal(entry.quantity), Decimal(SECONDS_PER_HOUR * SIZE[family(entry.sku)]))
    quantity = hours.quantize(Decimal(1).scaleb(-QUANTITY), rounding=ROUND_HALF_EVEN, context=WIDE)
    listed = entry.per_hour
    agreed = WIDE.divide(WIDE.multiply(listed, 100 - entry.discount), Decimal(100))
    cost = WIDE.multiply(quantity, agreed)
    details: dict[str, str | int] = {meter.detail: 1}
    if model := model_of(entry.sku):
        details["x_GpuModel"] = model
    # Its price is agreed beforehand, as all others are: what differs is the SKU, not the pricing category.
    if of := class_of(entry.sku):
        details["x_Class"] = of
    metered = f"{meter.meter}, {of}" if of else meter.meter
    said = f"{metered}{f' ({model})' if model else ''} of {_named(entry) or entry.uid}"
    return Row(
        **_common(account, bill),
        BilledCost=cost,
        EffectiveCost=cost,
        ContractedCost=cost,
        ListCost=WIDE.multiply(quantity, listed),
        ChargeCategory="Usage",
        ChargeClass="Correction" if month(entry.since) != bill.period else None,
        ChargeDescription=f"{said}, taken back" if entry.quantity < 0 else said,
        ChargeFrequency="Usage-Based",
        ChargePeriodStart=entry.since,
        ChargePeriodEnd=entry.until,
        ConsumedQuantity=WIDE.divide(Decimal(entry.quantity), Decimal(meter.per)),
        ConsumedUnit=meter.metered,
        ContractedUnitPrice=agreed,
        PricingCurrencyContractedUnitPrice=agreed,
        PricingCurrencyEffectiveCost=cost,
        ListUnitPrice=listed,
        PricingCurrencyListUnitPrice=listed,
        PricingCategory="Standard",
        PricingQuantity=quantity,
        PricingUnit=meter.priced,
        ResourceId=entry.uid,
        ResourceName=_named(entry),
        ResourceType=meter.resource,
        ServiceCategory=meter.category,
        ServiceName=meter.service,
        ServiceSubcategory=meter.subcategory,
        SkuId=entry.sku,
        SkuMeter=metered,
        SkuPriceDetails=_json(details),
        # An identifier has one parent SKU, but the price of any GPU applies to several SKUs.
        SkuPriceId=f"{entry.sku}/{entry.price_id or 'unpriced'}",
        Tags=_json({TAG_PREFIX + name: value for name, value in entry.labels.items()}) if entry.labels else None,
        x_DiscountPercent=entry.discount,
        x_LedgerEntryId=str(number),
        x_LedgerKind=kind,
    )


def credit(amount: Decimal, reason: str, account: Account, bill: Bill, *, number: int) -> Row:
    """What an invoice used of a credit. A negative `amount` is given back, for a month that was invoiced before."""
    back = amount < 0
    said, correction = (f"Credit given back: {reason}", "Correction") if back else (f"Credit: {reason}", None)
    return _money(
        -amount, account, bill, bill.period, said, category="Credit", kind="credit", number=number, correction=correction
    )  # fmt: skip


def credit_note(amount: Decimal, reason: str, account: Account, bill: Bill, used: Period) -> Row:
    """Takes back `amount` of the invoice of the month `used`; billed in the month of its issue."""
    said = f"Credit note: {reason}"
    correction = None if used == bill.period else "Correction"
    return _money(-amount, account, bill, used, said, category="Adjustment", kind="credit-note", correction=correction)


def rounding(amount: Decimal, account: Account, bill: Bill) -> Row:
    """The difference between an invoice's rounded lines and the exact sum of its entries."""
    said = f"Rounding of the lines of {bill.invoice} to cents"
    return _money(amount, account, bill, bill.period, said, category="Adjustment", kind="rounding")


def text(value: Cell) -> str:
    """A CSV cell: empty for null, numbers without exponent and trailing zeros, times in UTC."""
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        return f"{value.astimezone(dt.UTC).isoformat()[:19]}Z"
    if isinstance(value, Decimal):
        plain = f"{value:f}" if value else "0"
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    return value


def _money(
    amount: Decimal, account: Account, bill: Bill, period: Period, said: str, *, category: str, kind: str,
    number: int | None = None, correction: str | None = None,
) -> Row:  # fmt: skip
    """A row without SKU and resource."""
    return NULLS._replace(
        **_common(account, bill),
        BilledCost=amount,
        EffectiveCost=amount,
        ContractedCost=amount,
        ListCost=amount,
        ChargeCategory=category,
        ChargeClass=correction,
        ChargeDescription=said,
        ChargeFrequency="One-Time",
        ChargePeriodStart=period.since,
        ChargePeriodEnd=period.until,
        PricingCurrencyEffectiveCost=amount,
        ServiceCategory="Other",
        ServiceName="Billing",
        ServiceSubcategory="Other (Other)",
        x_LedgerEntryId=None if number is None else str(number),
        x_LedgerKind=kind,
    )


def _common(account: Account, bill: Bill) -> Mapping[str, Any]:
    line = account.business_line
    return {
        "BillingAccountId": line or account.code,
        "BillingAccountName": (account.line_title or line) if line else account.name,
        "BillingAccountType": "Business line" if line else "Appcode",
        "BillingCurrency": bill.currency,
        "BillingPeriodStart": bill.period.since,
        "BillingPeriodEnd": bill.period.until,
        "CommitmentDiscountStatus": None,
        "InvoiceId": bill.invoice,
        "InvoiceIssuerName": PROVIDER,
        "PricingCurrency": bill.currency,
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "SubAccountId": account.code,
        "SubAccountName": account.name,
        "SubAccountType": "Appcode",
    }


def _named(entry: Entry) -> str | None:
    """ "show1-3-worker-0": cluster, run, role and index as far as labelled, else volume or bucket; None if only the uid
    is known."""
    parts = [
        str(entry.labels[name]) for name in ("cluster", "run", "role", "index") if entry.labels.get(name, "") != ""
    ]
    named = "-".join(parts) or str(entry.labels.get("volume") or entry.labels.get("bucket", ""))
    return named if named and named != entry.uid else None


def _json(pairs: Mapping[str, str | int]) -> str:
    return json.dumps(pairs, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
