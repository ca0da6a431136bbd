from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from billing.accounts import actions
from billing.accounts.models import Credit
from billing.documents import Amount
from portal.api.documents import Answer, page_of
from portal.api.money import money
from portal.manifests import Strict


class CreditRequest(Strict):
    amount: Amount
    reason: Annotated[str, Field(max_length=200)]
    valid_from: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None


class CreditDocument(Answer):
    id: int
    appcode: str
    amount: str
    left: str
    currency: str
    reason: str
    valid_from: dt.datetime
    expires_at: dt.datetime | None


CreditPage = page_of("CreditPage", CreditDocument)


def credit_document(row: Credit) -> dict[str, Any]:
    return CreditDocument.of(
        row, appcode=row.appcode.code, amount=f"{row.amount:.2f}", left=f"{actions.left(row):.2f}",
        currency=money(Decimal(0)).currency,
    ).json_value()  # fmt: skip
