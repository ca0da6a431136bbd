"""Amounts of money in REST documents."""

from __future__ import annotations

from decimal import Decimal

from django.conf import settings
from pydantic import Field

from portal.api.documents import Answer

# Money is rounded for display only; a millionth is exact enough for a sum that still grows.
MILLIONTH = Decimal("0.000001")


class Money(Answer):
    amount: str = Field(examples=["0.184500"], description="A decimal number as text: JSON's are not exact.")
    currency: str = Field(examples=["USD"])


def money(amount: Decimal) -> Money:
    return Money(amount=str(Decimal(amount).quantize(MILLIONTH)), currency=settings.CURRENCY)
