"""Fields that documents of several rooms share. Money is text, because JSON numbers are not exact."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field

from portal.manifests.appcode import decimal_text

Amount = Annotated[Decimal, BeforeValidator(decimal_text), Field(max_digits=20, examples=["1.25"])]
Code = Annotated[str, Field(max_length=63)]
Line = Annotated[str, Field(max_length=200, examples=["qunarcorp.ops"])]
