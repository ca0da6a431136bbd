"""Discounts and credits: what is taken off prices for a time, and money that invoices use up."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from billing.invoices import document
from billing.metering.segments import floor
from billing.models import Credit, Discount
from billing.prices import file
from billing.prices.actions import Scope, wrong_scope
from portal.access import require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import record
from portal.models import Appcode, User

MOST_CREDIT = Decimal(10) ** 12


@transaction.atomic
def add_discount(
    sku: str,
    percent: Decimal,
    valid_from: dt.datetime | None,
    valid_until: dt.datetime | None,
    reason: str,
    *,
    acting_user: User,
    scope: Scope,
) -> Discount:
    """`percent` less on what `sku` means ("*" everything) from `valid_from` (None: now) until `valid_until`.

    Raises Invalid with paths sku, percent, valid_from, valid_until, reason, business_line.
    """
    require_administrator(acting_user)
    now = floor(timezone.now())
    start, end = now if valid_from is None else floor(valid_from), valid_until and floor(valid_until)
    errors = wrong_scope(scope)
    if sku != "*":
        errors += [FieldError(("sku",), "Use * for everything, or gpu, gpu:MODEL, cpu, memory, storage.")] * len(
            file.wrong_sku(sku)
        )
    if not percent.is_finite() or not 0 < percent <= 100 or percent != round(percent, 2):
        errors.append(FieldError(("percent",), "Give a number over 0, up to 100, with at most two decimals."))
    if start < now:
        errors.append(FieldError(("valid_from",), "Past usage has its price; choose a time that is to come."))
    if start >= file.LATEST:
        errors.append(FieldError(("valid_from",), "Give a time before the year 2100."))
    if end is not None and not start < end < file.LATEST:
        errors.append(FieldError(("valid_until",), "The end lies after the beginning, and before the year 2100."))
    errors += _wrong_reason(reason, required=False)
    if errors:
        raise Invalid(errors)
    discount = Discount.objects.create(
        sku=sku, percent=percent, valid_from=start, valid_until=end, reason=reason.strip(), appcode=scope.appcode,
        business_line=scope.business_line,
    )  # fmt: skip
    until = f" until {end:%Y-%m-%d %H:%M:%S} UTC" if end else ""
    said = f"{_percent(discount)} less on {sku} from {start:%Y-%m-%d %H:%M:%S} UTC{until} for {scope}."
    _told("discount.added", discount, acting_user, said)
    return discount


@transaction.atomic
def end_discount(discount: Discount, *, acting_user: User) -> None:
    """Ends a discount now, or takes back one that has not begun. Raises Conflict for one that is over."""
    require_administrator(acting_user)
    discount = Discount.objects.select_for_update().get(pk=discount.pk)
    now = floor(timezone.now())
    if discount.valid_from > now:
        _told(
            "discount.withdrawn",
            discount,
            acting_user,
            f"There will not be {_percent(discount)} less on {discount.sku}.",
        )
        discount.delete()
        return
    if discount.valid_until is not None and discount.valid_until <= now:
        raise Conflict("This discount is over already.")
    # The second after this one, because what was used in this one is being charged.
    discount.valid_until = now + dt.timedelta(seconds=1)
    discount.save(update_fields=["valid_until"])
    _told("discount.ended", discount, acting_user, f"{_percent(discount)} less on {discount.sku} has ended.")


@transaction.atomic
def give_credit(
    appcode: Appcode,
    amount: Decimal,
    reason: str,
    valid_from: dt.datetime | None,
    expires_at: dt.datetime | None,
    *,
    acting_user: User,
) -> Credit:
    """Money for an appcode, used up by its invoices of the months that it holds in. It may begin in the past: invoices that are
    closed stay as they are. Raises Invalid with paths amount, reason, valid_from, expires_at."""
    require_administrator(acting_user)
    now = floor(timezone.now())
    start, end = now if valid_from is None else floor(valid_from), expires_at and floor(expires_at)
    errors = _wrong_reason(reason, required=True)
    if not amount.is_finite() or not 0 < amount < MOST_CREDIT or amount != round(amount, 2):
        errors.append(FieldError(("amount",), "Give an amount over 0 with at most two decimals."))
    if not dt.datetime(2000, 1, 1, tzinfo=dt.UTC) <= start < file.LATEST:
        errors.append(FieldError(("valid_from",), "Give a time between the years 2000 and 2100."))
    if end is not None and not max(start, now) < end < file.LATEST:
        errors.append(FieldError(("expires_at",), "The end lies after the beginning, and is to come."))
    if errors:
        raise Invalid(errors)
    credit = Credit.objects.create(
        appcode=appcode, amount=amount, reason=reason.strip(), valid_from=start, expires_at=end,
        created_by=acting_user.username,
    )  # fmt: skip
    until = f", until {end:%Y-%m-%d %H:%M:%S} UTC" if end else ""
    record(
        "credit.given", actor=acting_user, object=f"credit {credit.pk}", appcode=appcode.code, amount=str(amount),
        message=f"{amount:,} {settings.CURRENCY} for {appcode.code}{until}: {credit.reason}",
    )  # fmt: skip
    return credit


def credits_of(rows: QuerySet[Credit]) -> QuerySet[Credit]:
    """With the exact charges that invoices have used of each, for `left`."""
    return rows.select_related("appcode").annotate(spent=Sum("entries__charge")).order_by("-pk")


def left(credit: Credit) -> Decimal:
    """What is still there of one of `credits_of`."""
    spent: Decimal | None = getattr(credit, "spent", None)
    return credit.amount + document.cents(spent or Decimal(0))


def _wrong_reason(reason: str, *, required: bool) -> list[FieldError]:
    if (required and not reason.strip()) or len(reason) > 200 or not reason.isprintable():
        return [FieldError(("reason",), "Say why, in one line of at most 200 characters.")]
    return []


def _percent(discount: Discount) -> str:
    return f"{discount.percent.normalize():f} %"


def _told(verb: str, discount: Discount, acting_user: User, message: str) -> None:
    record(
        verb, actor=acting_user, object=f"discount {discount.sku}", message=message, percent=str(discount.percent),
        appcode=discount.appcode.code if discount.appcode else "", business_line=discount.business_line,
        valid_from=discount.valid_from.isoformat(),
    )  # fmt: skip
