"""Changing prices: new ones from now on or from a later day. What has been charged stays as it was charged."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.models import Price
from billing.usage import floor
from portal.access import require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import record
from portal.models import User

SKU = re.compile(r"gpu(:[^\s:][^:\x00-\x1f]{0,58}[^\s:])?|cpu|memory")
MOST = Decimal(10) ** 8


@transaction.atomic
def add_price(sku: str, per_hour: Decimal, valid_from: dt.datetime | None, *, acting_user: User) -> Price:
    """From `valid_from` (None: now) an hour of `sku` costs `per_hour`. Raises Invalid with paths sku, per_hour,
    valid_from."""
    require_administrator(acting_user)
    now = floor(timezone.now())
    start = now if valid_from is None else floor(valid_from)
    errors = []
    if not SKU.fullmatch(sku):
        errors.append(FieldError(("sku",), "Use gpu, gpu:MODEL, cpu or memory."))
    if not per_hour.is_finite() or not 0 <= per_hour < MOST or per_hour != round(per_hour, 6):
        errors.append(FieldError(("per_hour",), "Give an amount from 0 to 100 million with at most six decimals."))
    if start < now:
        errors.append(FieldError(("valid_from",), "Past usage has its price; choose a time that is to come."))
    if errors:
        raise Invalid(errors)
    try:
        with transaction.atomic():
            price = Price.objects.create(sku=sku, per_hour=per_hour, valid_from=start)
    except IntegrityError as error:
        raise Invalid.at("valid_from", message=f"There is a price of {sku} from that very second.") from error
    _told(
        "price.added", price, acting_user, f"{sku} costs {_amount(price)} an hour from {start:%Y-%m-%d %H:%M:%S} UTC."
    )
    return price


@transaction.atomic
def withdraw_price(price: Price, *, acting_user: User) -> None:
    """Takes back a price that does not hold yet. Raises Conflict once it does."""
    require_administrator(acting_user)
    if price.valid_from <= timezone.now():
        raise Conflict("This price holds already and has been charged; add another one instead.")
    _told("price.withdrawn", price, acting_user, f"{price.sku} will not cost {_amount(price)} an hour.")
    price.delete()


def _told(verb: str, price: Price, acting_user: User, message: str) -> None:
    record(
        verb,
        actor=acting_user,
        object=f"price {price.sku}",
        message=message,
        per_hour=str(price.per_hour),
        valid_from=price.valid_from.isoformat(),
    )


def _amount(price: Price) -> str:
    return f"{price.per_hour.normalize():f} {settings.CURRENCY}"
