"""The demonstration's history: deterministic per day, plausible, and created by the same code as real usage."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from billing.invoices import closing, credit_notes
from billing.ledger import posting
from billing.models import Budget, Invoice, LedgerEntry, Observation, UsageSegment, Waste
from clusters.demo import history, plan
from portal.models import Appcode

NOW = dt.datetime(2026, 11, 21, 9, 30, tzinfo=dt.UTC)
# Tables of reports by people and clouds, and of charges.
KEPT = (
    "billing_observation", "billing_capacityrecord", "billing_ledgerentry", "billing_invoice", "billing_invoiceline",
    "billing_creditnote", "billing_price", "billing_closing", "portal_event",
)  # fmt: skip


def test_the_same_day_gives_the_same_history():
    assert plan.plan(NOW) == plan.plan(NOW + dt.timedelta(minutes=20))
    assert plan.plan(NOW) != plan.plan(NOW + dt.timedelta(days=1))


def test_nothing_of_it_lies_outside_its_time_and_never_more_is_held_than_there_is():
    jobs = plan.plan(NOW)
    assert len(jobs) > 300
    changes: dict[str, list[tuple[dt.datetime, int]]] = {model: [] for model in plan.POOL}
    for job in jobs:
        for pod in job.pods:
            assert plan.begins(NOW) <= pod.reserved < pod.started < pod.ended <= plan.ends(NOW)
            changes[job.model] += [(pod.reserved, pod.gpus), (pod.ended, -pod.gpus)]
    for model, moments in changes.items():
        held = 0
        for at, change in sorted(moments):
            held += change
            assert held <= plan.POOL[model][at >= plan.begins(NOW) + plan.MORE_AFTER * dt.timedelta(days=1)]


@pytest.mark.django_db
def test_it_is_metered_posted_invoiced_and_proved_as_all_usage_and_nothing_of_it_goes(people):
    made = history.fill(timezone.now(), owner=people.root, viewer=people.alice)
    assert made > 300
    assert Observation.objects.count() > 2 * UsageSegment.objects.count() - 5
    assert not UsageSegment.objects.filter(ended=None).exists()
    assert LedgerEntry.objects.filter(kind="reversal").exists()
    assert not LedgerEntry.objects.filter(sku__startswith="gpu", per_hour=0).exists()
    assert set(Waste.objects.values_list("kind", flat=True)) == {"failed", "outlived", "reserved"}
    assert posting.wrong_sums() == {"billing_dailyusage": [], "billing_monthlyusage": []}
    assert set(Budget.objects.values_list("policy", flat=True)) == {"block", "stop_services", "notify"}
    closing.close_due(timezone.now() + dt.timedelta(days=40))
    ads = Appcode.objects.get(code="ads")
    credit_notes.issue(
        Invoice.objects.filter(appcode=ads).earliest("month"), Decimal(1), "A slow node", acting_user=people.root
    )
    call_command("verify_invoices")
    for table in KEPT:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {table})")
            assert cursor.fetchone() == (True,), table
            with pytest.raises(IntegrityError, match=r"append-only|charged|has begun"), transaction.atomic():
                cursor.execute(f"DELETE FROM {table}")
