from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.db import transaction
from django.utils import timezone

from billing.metering.segments import floor
from billing.money import URGENT, class_of
from billing.prices import file
from billing.prices.actions import Scope, wrong_scope
from billing.prices.models import Discount
from portal.access import require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import record
from portal.models import User


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
    """Adds a discount of `percent` on `sku` ("*" everything) from `valid_from` (None: now) until `valid_until`. Raises
    Invalid with paths sku, percent, valid_from, valid_until, reason, business_line."""
    require_administrator(acting_user)
    now = floor(timezone.now())
    start, end = now if valid_from is None else floor(valid_from), valid_until and floor(valid_until)
    errors = wrong_scope(scope)
    if sku != "*":
        errors += [
            FieldError(
                ("sku",), "Use * for everything, or gpu, gpu:MODEL, spare-gpu, spare-gpu:MODEL, cpu, memory, storage."
            )
        ] * len(file.wrong_sku(sku))
    if class_of(sku) == URGENT:
        errors.append(FieldError(("sku",), "Urgent GPUs never cost less than others; name gpu, which includes them."))
    if not percent.is_finite() or not 0 < percent <= 100 or percent != round(percent, 2):
        errors.append(FieldError(("percent",), "Give a number over 0, up to 100, with at most two decimals."))
    if start < now:
        errors.append(FieldError(("valid_from",), "Past usage has its price; choose a time that is to come."))
    if start >= file.LATEST:
        errors.append(FieldError(("valid_from",), "Give a time before the year 2100."))
    if end is not None and not start < end < file.LATEST:
        errors.append(FieldError(("valid_until",), "The end lies after the beginning, and before the year 2100."))
    errors += wrong_reason(reason, required=False)
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
    """Ends a discount now, or withdraws one that has not begun. Raises Conflict if it is over."""
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
    # One second later, because usage of the current second is already being charged.
    discount.valid_until = now + dt.timedelta(seconds=1)
    discount.save(update_fields=["valid_until"])
    _told("discount.ended", discount, acting_user, f"{_percent(discount)} less on {discount.sku} has ended.")


def wrong_reason(reason: str, *, required: bool) -> list[FieldError]:
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
