"""The current price book, read in one query, and figures that other rooms derive from it."""

from __future__ import annotations

from django.db import connection
from django.urls import reverse
from django.utils import timezone

from billing.metering.models import UsageSegment
from billing.money import CLASSES
from billing.prices.models import Price
from billing.prices.rates import DatedDiscount, DatedPrice, Owner, Prices
from portal.extension_points import GpuPrices, Step
from portal.models import Appcode

# One query, so that the parts of the book are consistent. Owners matter only for business lines with special terms.
PRICE_BOOK = """
WITH line AS (
    SELECT business_line FROM billing_price WHERE business_line <> ''
    UNION SELECT business_line FROM billing_discount WHERE business_line <> ''
)
SELECT 'price', id, sku, per_hour, valid_from, NULL::timestamptz, appcode_id, business_line FROM billing_price
UNION ALL
SELECT 'discount', id, sku, percent, valid_from, valid_until, appcode_id, business_line FROM billing_discount
UNION ALL
SELECT 'owner', id, '', NULL, valid_from, NULL, appcode_id, business_line FROM billing_ownership
WHERE appcode_id IN (SELECT appcode_id FROM billing_ownership JOIN line USING (business_line))
"""


def price_book() -> Prices:
    """All terms, in one query. They are few and rarely change, but pages must never show outdated ones, so there is no cache."""
    prices, discounts, owners = [], [], []
    with connection.cursor() as cursor:
        cursor.execute(PRICE_BOOK)
        for kind, pk, sku, value, since, until, appcode_id, line in cursor.fetchall():
            if kind == "price":
                prices.append(DatedPrice(sku, since, value, appcode_id, line, pk))
            elif kind == "discount":
                discounts.append(DatedDiscount(sku, value, since, until, appcode_id, line, pk))
            else:
                owners.append(Owner(appcode_id, since, line))
    return Prices(tuple(prices), tuple(discounts), tuple(owners))


def steps() -> list[Step]:
    """Billing's steps of the set-up checklist."""
    return [Step("Set prices", Price.objects.exists(), reverse("admin_prices"))]


def gpu_prices(appcode: Appcode | None) -> GpuPrices | None:
    """The current hourly price of the cheapest and of the most expensive GPU; None without any price."""
    prices, now = price_book(), timezone.now()
    skus = ["gpu", *(f"gpu:{model}" for model in prices.gpu_models)]
    found = [price for sku in skus if (price := prices.at(sku, now, appcode.pk if appcode else None))]
    return GpuPrices(min(found), max(found)) if found else None


def metered_skus() -> set[str]:
    """The SKUs of the GPU models that have been used, also of each class."""
    models = UsageSegment.objects.exclude(gpu_model="").values_list("gpu_model", flat=True).distinct()
    return {f"{kind}gpu:{model}" for model in models for kind in ("", *(f"{each}-" for each in CLASSES))}
