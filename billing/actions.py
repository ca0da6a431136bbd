"""Changing prices: new ones from now on or from a later day. What has been charged stays as it was charged."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.models import Price
from billing.usage import floor
from portal.access import require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import record
from portal.models import Appcode, OrgNode, User

SKU = re.compile(r"gpu(:[^\s:][^:\x00-\x1f]{0,58}[^\s:])?|cpu|memory|storage")
MOST = Decimal(10) ** 8


@dataclass(frozen=True)
class Scope:
    """For whom terms are: one appcode, one business line (its path), or (neither given) everybody."""

    appcode: Appcode | None = None
    business_line: str = ""

    def __str__(self) -> str:
        return self.appcode.code if self.appcode else self.business_line or "everybody"


EVERYBODY = Scope()


@transaction.atomic
def add_price(
    sku: str,
    per_hour: Decimal | None,
    valid_from: dt.datetime | None,
    *,
    acting_user: User,
    scope: Scope = EVERYBODY,
) -> Price:
    """From `valid_from` (None: now) an hour of `sku` costs `per_hour` for those in `scope`; None ends a special price.

    Raises Invalid with paths sku, per_hour, valid_from, scope.
    """
    require_administrator(acting_user)
    now = floor(timezone.now())
    start = now if valid_from is None else floor(valid_from)
    errors = _wrong_scope(scope)
    if not SKU.fullmatch(sku):
        errors.append(FieldError(("sku",), "Use gpu, gpu:MODEL, cpu, memory or storage."))
    if per_hour is None:
        if scope == EVERYBODY and ":" not in sku:
            errors.append(FieldError(("per_hour",), "Only a special price can end; give 0 for what is free."))
    elif not per_hour.is_finite() or not 0 <= per_hour < MOST or per_hour != round(per_hour, 6):
        errors.append(FieldError(("per_hour",), "Give an amount from 0 to 100 million with at most six decimals."))
    if start < now:
        errors.append(FieldError(("valid_from",), "Past usage has its price; choose a time that is to come."))
    if errors:
        raise Invalid(errors)
    try:
        with transaction.atomic():
            price = Price.objects.create(
                sku=sku, per_hour=per_hour, valid_from=start, appcode=scope.appcode, business_line=scope.business_line
            )
    except IntegrityError as error:
        raise Invalid.at("valid_from", message=f"There is a price of {sku} from that very second.") from error
    said = f"{sku} costs {_amount(price)} an hour" if per_hour is not None else f"The special price of {sku} ends"
    _told("price.added", price, acting_user, f"{said} from {start:%Y-%m-%d %H:%M:%S} UTC for {scope}.")
    return price


def _wrong_scope(scope: Scope) -> list[FieldError]:
    if scope.appcode and scope.business_line:
        return [FieldError(("scope",), "Choose an appcode or a business line, not both.")]
    if scope.business_line and not OrgNode.objects.filter(path=scope.business_line).exclude(namespace=None).exists():
        return [FieldError(("scope",), f"There is no business line {scope.business_line}.")]
    return []


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
        appcode=price.appcode.code if price.appcode else "",
        per_hour=None if price.per_hour is None else str(price.per_hour),
        business_line=price.business_line,
        valid_from=price.valid_from.isoformat(),
    )


def _amount(price: Price) -> str:
    return "nothing special" if price.per_hour is None else f"{price.per_hour.normalize():f} {settings.CURRENCY}"
