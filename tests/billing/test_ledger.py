"""The ledger: what the database posts is what the pure functions say, whatever happened on the way."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest
from django.db import transaction

from billing import ledger, metering, posting
from billing.models import DailyUsage, LedgerEntry, MonthlyUsage, Ownership, Price, UsageSegment
from billing.usage import PodState

T0 = dt.datetime(2026, 3, 31, 22, tzinfo=dt.UTC)
NOW = dt.datetime(2026, 6, 10, 8, tzinfo=dt.UTC)
HOUR = 3600


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def pod(appcode: int, uid: str = "p-1", *, begin: int = 0, end: int | None = HOUR, **held: object) -> PodState:
    labels = {"cluster": "show1", "run": "1", "role": "worker", "index": "0", "framework": "tensorflow", "user": "bob"}
    held = {"gpus": 1, "cpu_milli": 1500, "memory_mb": 2048} | held
    state = PodState(uid, "local", appcode, "run 1", labels, "Running", scheduled_at=at(begin), **held)
    return state if end is None else replace(state, phase="Succeeded", finished_at=at(end))


def record(*states: PodState) -> None:
    with transaction.atomic():
        metering.record(states)


def standing() -> list[ledger.Entry]:
    """The lines that were not reversed."""
    found = LedgerEntry.objects.filter(kind="usage", reversals=None).order_by("uid", "sku", "since")
    return [row.entry for row in found]


def expected(now: dt.datetime = NOW) -> list[ledger.Entry]:
    """What the pure functions make of the stored segments."""
    prices, owners = metering.price_book(), [row.owner for row in Ownership.objects.all()]
    segments = [row.segment for row in UsageSegment.objects.order_by("uid")]
    return [e for s in segments for e in ledger.entries_of(s, prices, owners, ledger.final_until(s, now))]


def consistent(now: dt.datetime = NOW) -> None:
    """Everything that must hold between segments, ledger and its sums after `now` was posted."""
    assert standing() == expected(now)
    net = {}
    for row in LedgerEntry.objects.all():
        net[row.sku] = net.get(row.sku, 0) + row.quantity
    want = {}
    for entry in expected(now):
        want[entry.sku] = want.get(entry.sku, 0) + entry.quantity
    assert {sku: n for sku, n in net.items() if n} == want
    for table in (DailyUsage, MonthlyUsage):
        rows = list(table.objects.all())
        assert sum(r.gpu_seconds for r in rows) == sum(n for sku, n in want.items() if sku.startswith("gpu"))
        assert sum(r.cpu_milli_seconds for r in rows) == want.get("cpu", 0)
        charges = sum(r.gpu_charge + r.cpu_charge + r.memory_charge + r.storage_charge for r in rows)
        assert charges == sum(e.charge for e in expected(now))


@pytest.fixture
def prices(db):
    for sku, per_hour in (("gpu", "1.2"), ("cpu", "0.03"), ("memory", "0.004"), ("storage", "0.0001")):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


def test_what_has_ended_is_posted_once(ops, prices):
    record(pod(ops.pk))
    assert posting.post(NOW) == posting.Posted(1, 3, 0)
    assert posting.post(NOW) == posting.Posted()
    lines = {entry.sku: entry for entry in standing()}
    assert {sku: entry.quantity for sku, entry in lines.items()} == {"gpu": 3600, "cpu": 5400000, "memory": 7372800}
    assert {sku: entry.amount for sku, entry in lines.items()} == {
        "gpu": Decimal("1.2"), "cpu": Decimal("0.045"), "memory": Decimal("0.008"),
    }  # fmt: skip
    assert {entry.business_line for entry in lines.values()} == {"qunarcorp.ops"}
    consistent()
