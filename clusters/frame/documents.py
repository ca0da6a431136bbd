"""What REST documents of several rooms are made of."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from django.conf import settings
from pydantic import Field

from portal.api.documents import Answer

Phase = Literal["Queued", "Starting", "Running", "Succeeded", "Failed", "Stopped"]


# Costs are estimates until billed: six decimals are exact enough and readable.
MILLIONTH = Decimal("0.000001")


class Money(Answer):
    amount: str = Field(
        examples=["0.184500"], description="A decimal number; a text, because JSON's numbers are not exact."
    )
    currency: str = Field(examples=["USD"])


def money(amount: Decimal) -> Money:
    return Money(amount=str(Decimal(amount).quantize(MILLIONTH)), currency=settings.CURRENCY)
