"""From the ledger to rows of FOCUS 1.2 (FinOps Open Cost and Usage Specification): pure functions and frozen values.

One row is one entry of the ledger that an invoice of the month covers, one credit that it used up, one credit note, or what
rounding its lines to cents made of the sum; so BilledCost adds up to what each document with its InvoiceId asks for, to the cent.
What was used in a month that was invoiced before is a correction: BillingPeriod is the month that it is billed in, ChargePeriod
the time of use.

Quantities are rounded to QUANTITY digits, and a cost is the exact product of a row's quantity and price, as the specification
wants it; what that leaves out (less than 10^-9 of a cent a row) is in the row of the rounding.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NamedTuple, TypeAlias

from billing.ledger.entries import Entry
from billing.money import SECONDS_PER_HOUR, SIZE, WIDE, family
from billing.periods import Period, month

VERSION = "1.2"
PROVIDER = "GPU cloud"
# Tags are the labels of tasks; the specification wants those that a provider sets to have a prefix.
TAG_PREFIX = "gpu-cloud/"
# Digits after the point: of a quantity, of a unit price (6 of the price times 4 of the percentage), and of their product.
QUANTITY, PRICE = 12, 10
COST = QUANTITY + PRICE

Cell: TypeAlias = str | Decimal | dt.datetime | None


class Row(NamedTuple):
    """The columns in their order; those that begin with x_ are ours. Columns of what this provider does not have (commitments,
    reservations, regions) are left out, as the specification has it; rules of the validator name CommitmentDiscountStatus and
    the pricing currency all the same."""

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
TIMES = frozenset({"BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"})
# The digits after the point of the columns with numbers.
NUMBERS = {
    "BilledCost": COST, "ContractedCost": COST, "EffectiveCost": COST, "ListCost": COST, "ContractedUnitPrice": PRICE,
    "ListUnitPrice": PRICE, "PricingCurrencyContractedUnitPrice": PRICE, "PricingCurrencyEffectiveCost": COST,
    "PricingCurrencyListUnitPrice": PRICE, "ConsumedQuantity": 3, "PricingQuantity": QUANTITY, "x_DiscountPercent": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Account:
    """Who is billed: an appcode (the sub account) and what pays for it (the billing account), its business line.

    An appcode that belonged to none pays for itself.
    """

    code: str
    name: str
    business_line: str = ""
    line_title: str = ""


@dataclass(frozen=True)
class Bill:
    """In which month, on which document (None: there is none yet) and in which currency something is billed."""

    period: Period
    currency: str
    invoice: str | None = None


@dataclass(frozen=True)
class _Meter:
    """How a SKU is sold: the unit of a price, the unit of the meter, how many metered units are one, and what it is a part of."""

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
    """One entry of the ledger, usage or reversal; `number` is its own."""
    meter = METERS[family(entry.sku)]
    hours = WIDE.divide(Decimal(entry.quantity), Decimal(SECONDS_PER_HOUR * SIZE[family(entry.sku)]))
    quantity = _rounded(hours, QUANTITY)
    listed = entry.per_hour
    agreed = WIDE.divide(WIDE.multiply(listed, 100 - entry.discount), Decimal(100))
    cost = WIDE.multiply(quantity, agreed)
    details: dict[str, str | int] = {meter.detail: 1}
    if model := entry.sku.partition(":")[2]:
        details["x_GpuModel"] = model
    said = f"{meter.meter}{f' ({model})' if model else ''} of {_named(entry) or entry.uid}"
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
        SkuMeter=meter.meter,
        SkuPriceDetails=_json(details),
        # A price of any GPU is that of several SKUs, and an identifier has one parent.
        SkuPriceId=f"{entry.sku}/{entry.price_id or 'unpriced'}",
        Tags=_json({TAG_PREFIX + name: value for name, value in entry.labels.items()}) if entry.labels else None,
        x_DiscountPercent=entry.discount,
        x_LedgerEntryId=str(number),
        x_LedgerKind=kind,
    )


def credit(amount: Decimal, reason: str, account: Account, bill: Bill, *, number: int) -> Row:
    """What an invoice used up of a credit; a negative `amount` is given back to it, for a month that was invoiced before."""
    back = amount < 0
    said, correction = (f"Credit given back: {reason}", "Correction") if back else (f"Credit: {reason}", None)
    return _money(
        -amount, account, bill, bill.period, said, category="Credit", kind="credit", number=number, correction=correction
    )  # fmt: skip


def credit_note(amount: Decimal, reason: str, account: Account, bill: Bill, used: Period) -> Row:
    """Takes back `amount` of the invoice of the month `used`; it is billed in the month in which it was issued."""
    said = f"Credit note: {reason}"
    correction = None if used == bill.period else "Correction"
    return _money(-amount, account, bill, used, said, category="Adjustment", kind="credit-note", correction=correction)


def rounding(amount: Decimal, account: Account, bill: Bill) -> Row:
    """What rounding the lines of an invoice to cents adds to the exact sum of its entries."""
    said = f"Rounding of the lines of {bill.invoice} to cents"
    return _money(amount, account, bill, bill.period, said, category="Adjustment", kind="rounding")


def text(value: Cell) -> str:
    """A cell as CSV has it: null is empty, a number has no exponent and no zeros at its end, a time is UTC's."""
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
    """A row that is about no SKU and no resource."""
    return Row(
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
        ConsumedQuantity=None,
        ConsumedUnit=None,
        ContractedUnitPrice=None,
        PricingCurrencyContractedUnitPrice=None,
        PricingCurrencyEffectiveCost=amount,
        ListUnitPrice=None,
        PricingCurrencyListUnitPrice=None,
        PricingCategory=None,
        PricingQuantity=None,
        PricingUnit=None,
        ResourceId=None,
        ResourceName=None,
        ResourceType=None,
        ServiceCategory="Other",
        ServiceName="Billing",
        ServiceSubcategory="Other (Other)",
        SkuId=None,
        SkuMeter=None,
        SkuPriceDetails=None,
        SkuPriceId=None,
        Tags=None,
        x_DiscountPercent=None,
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
    """ "show1-3-worker-0": cluster, run, role and index, as far as there are any; None for nothing but the identifier."""
    parts = [
        str(entry.labels[name]) for name in ("cluster", "run", "role", "index") if entry.labels.get(name, "") != ""
    ]
    named = "-".join(parts) or str(entry.labels.get("volume") or entry.labels.get("bucket", ""))
    return named if named and named != entry.uid else None


def _rounded(value: Decimal, digits: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN, context=WIDE)


def _json(pairs: Mapping[str, str | int]) -> str:
    return json.dumps(pairs, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
