from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from billing.periods import Period
from billing.prices.split import Sum
from billing.sums.access import Amount
from billing.sums.breakdown import Part
from portal.api.documents import Answer
from portal.api.money import Money, money
from portal.models import Appcode


class UsageAmount(Answer):
    """Usage in the period so far, and what is held now."""

    gpu_seconds: int
    cost: Money
    running_gpus: int
    cost_per_hour: Money


class UsageRow(UsageAmount):
    """Usage of one role of one run. Names are kept after the named object is deleted."""

    consumer: str = Field(examples=["run 17"])
    cluster: str | None
    run: str | None
    role: str | None


class UsageMetadata(Answer):
    appcode: str
    since: dt.datetime = Field(alias="from")
    until: dt.datetime = Field(alias="to", description="The first second that does not count.")
    as_of: dt.datetime = Field(description="What still runs is counted until this time.")


class UsagePart(Answer):
    """All usage of one SKU at one price and discount."""

    sku: str = Field(examples=["gpu:A100"])
    unit_seconds: int = Field(description="Of GPUs, thousandths of a core, or MiB: exact.")
    per_hour: str = Field(description="The price of one GPU, core or GiB before the discount.")
    discount_percent: str
    cost: Money


class UsageDocument(Answer):
    kind: Literal["usage"] = "usage"
    metadata: UsageMetadata
    total: UsageAmount
    parts: list[UsagePart] = Field(description="What makes up the total.")
    items: list[UsageRow]


def usage_document(
    appcode: Appcode, period: Period, now: dt.datetime, rows: Sequence[Sum], parts: Sequence[Part]
) -> dict[str, Any]:
    """`rows` are sums by consumer, cluster, run and role."""
    return UsageDocument(
        metadata=UsageMetadata(appcode=appcode.code, since=period.since, until=period.until, as_of=now),
        total=UsageAmount(**_amount(Amount.total(rows))),
        parts=usage_parts(parts),
        items=[
            UsageRow(consumer=row.key[0] or "", cluster=row.key[1], run=row.key[2], role=row.key[3], **_amount(row))
            for row in rows
        ],
    ).json_value()


def usage_parts(parts: Sequence[Part]) -> list[UsagePart]:
    return [
        UsagePart.of(
            part,
            unit_seconds=part.quantity,
            per_hour=f"{part.per_hour:f}",
            discount_percent=f"{part.discount:f}",
            cost=money(part.cost),
        )
        for part in parts
    ]


def _amount(amount: Amount | Sum) -> dict[str, Any]:
    return {
        "gpu_seconds": amount.gpu_seconds,
        "cost": money(amount.cost),
        "running_gpus": amount.gpus,
        "cost_per_hour": money(amount.cost_per_hour),
    }
