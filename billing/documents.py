"""Fields that documents of several rooms share. Money is text, because JSON numbers are not exact."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from django.conf import settings
from pydantic import BeforeValidator, Field

from billing.money import display
from portal.api.documents import Answer
from portal.manifests.appcode import decimal_text

Amount = Annotated[Decimal, BeforeValidator(decimal_text), Field(max_digits=20, examples=["1.25"])]
Code = Annotated[str, Field(max_length=63)]
Line = Annotated[str, Field(max_length=200, examples=["qunarcorp.ops"])]


# Money is rounded for display only; a millionth is exact enough for a sum that still grows.
DIGITS = 6


class Cost(Answer):
    amount: str = Field(examples=["0.184500"], description="A decimal number as text: JSON's are not exact.")
    currency: str = Field(examples=["USD"])


def money(amount: Decimal) -> Cost:
    return Cost(amount=str(display(amount, DIGITS)), currency=settings.CURRENCY)
