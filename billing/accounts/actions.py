"""Credits: money for an appcode. Its invoices use it up until it expires."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from billing.accounts.models import Credit
from billing.metering.segments import floor
from billing.money import cents
from billing.prices import file
from billing.prices.terms import wrong_reason
from portal.access import require_administrator
from portal.errors import FieldError, Invalid
from portal.events import record
from portal.models import Appcode, User

MOST_CREDIT = Decimal(10) ** 12


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
    """Gives `appcode` a credit, which the invoices of every month in which it is valid may use. It may begin in the
    past, but closed invoices do not change. Raises Invalid with paths amount, reason, valid_from, expires_at."""
    require_administrator(acting_user)
    now = floor(timezone.now())
    start, end = now if valid_from is None else floor(valid_from), expires_at and floor(expires_at)
    errors = wrong_reason(reason, required=True)
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
    """Adds `spent`, the exact charges that invoices have used of each credit, for `left`."""
    return rows.select_related("appcode").annotate(spent=Sum("entries__charge")).order_by("-pk")


def left(credit: Credit) -> Decimal:
    """What is left of a credit that `credits_of` returned."""
    spent: Decimal | None = getattr(credit, "spent", None)
    return credit.amount + cents(spent or Decimal(0))
