"""Files contain all rows and REST lists lead to all items, however few a page shows."""

from __future__ import annotations

import csv
import datetime as dt
import io
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from billing.dashboards import reconciliation
from billing.efficiency import measured, waste
from billing.invoices import closing
from billing.ledger import posting
from billing.metering.segments import PodState
from billing.models import Invoice, LedgerEntry, Outcome, Price, Quarantined, UsageSegment, Waste
from billing.sums import access
from tests.billing.dashboards.test_dashboards import HOUR, pod, tell
from tests.billing.invoices.test_closing import IN_APRIL
from tests.billing.invoices.test_closing import pod as march
from tests.billing.invoices.test_closing import record as tell_march

pytestmark = pytest.mark.django_db

MANY = 7


@pytest.fixture
def much(people, monkeypatch):
    """Creates MANY of everything; pages show 3."""
    for module in (reconciliation, waste, measured):
        monkeypatch.setattr(module, "MOST_ROWS", 3)
    now = timezone.now().replace(microsecond=0)
    at = (now - dt.timedelta(days=2)).replace(hour=10, minute=0, second=0)
    Price.objects.create(sku="gpu", per_hour=Decimal(1), valid_from=at - dt.timedelta(days=30))
    for n in range(MANY):
        late = pod(people.ops, at, at + HOUR, uid=f"late-{n}", cluster=f"late{n}")
        tell(
            replace(pod(people.ops, at, at + HOUR, uid=f"mended-{n}", cluster=f"c{n}"), estimated=True),
            pod(people.ops, at, None, uid=f"endless-{n}", consumer=f"run over-{n}"),
            replace(late, estimated=True),
            PodState(f"strange-{n}", "local", people.ops.pk, "run 1", {}, "Dancing"),
        )
        waste.note_outcome(f"run over-{n}", people.ops.pk, "Stopped", "", now - HOUR)
        waste.note_outcome(f"run c{n}-1", people.ops.pk, "Failed", "Error", at + HOUR)
        measured.record([measured.Use(f"mended-{n}", at, at + HOUR, 3600, 0.01)])
    tell(pod(people.flight, at, at + HOUR, uid="flight"))
    posting.post(now)
    tell(*(pod(people.ops, at, at + 2 * HOUR, uid=f"late-{n}", cluster=f"late{n}") for n in range(MANY)))
    posting.post(now)
    waste.look()
    return people


def table(response: Any) -> list[dict[str, str]]:
    assert response.status_code == 200
    return list(csv.DictReader(io.StringIO(response.getvalue().decode(), newline="")))


FILES = {
    "/dashboard/reconciliation?format=csv&table=flagged": "mended",
    "/dashboard/reconciliation?format=csv&table=corrections": "late",
    "/dashboard/reconciliation?format=csv&table=endless": "endless",
    "/dashboard/waste?format=csv": "",
    "/dashboard/waste?format=csv&table=idle": "mended",
}


@pytest.mark.parametrize("path", FILES)
def test_a_file_has_all_rows(client, much, path):
    client.force_login(much.alice)
    rows = table(client.get(path))
    assert len(rows) == MANY
    if FILES[path]:
        assert {row["pod"] for row in rows} == {f"{FILES[path]}-{n}" for n in range(MANY)}
    client.force_login(much.mallory)
    assert table(client.get(path)) == []


def test_what_was_not_understood_is_for_administrators(client, much):
    client.force_login(much.root)
    rows = table(client.get("/dashboard/reconciliation?format=csv&table=quarantine"))
    assert len(rows) == Quarantined.objects.count() == MANY
    assert client.get("/dashboard/reconciliation?format=csv&table=else").status_code == 404
    client.force_login(much.alice)
    assert client.get("/dashboard/reconciliation?format=csv&table=quarantine").status_code == 404


LISTS = {
    "waste/cases": lambda row: row["cluster"],
    "waste/idle": lambda row: row["pod"],
    "reconciliation/flagged": lambda row: row["pod"],
    "reconciliation/without-end": lambda row: row["pod"],
    "reconciliation/corrections": lambda row: row["pod"],
    "reconciliation/quarantine": lambda row: row["raw"],
}


@pytest.mark.parametrize("path", LISTS)
def test_a_list_goes_on_until_all_were_there(client, much, path):
    client.force_login(much.root)
    url, found = f"/api/v1/dashboard/{path}?limit=2", []
    while url:
        page = client.get(url).json()
        assert len(page["items"]) <= 2
        found += map(LISTS[path], page["items"])
        url = page["next"]
    assert len(found) == len(set(found)) == MANY
    for query in ("limit=0", "cursor=%25", "from=x"):
        if (path, query) != ("reconciliation/quarantine", "from=x"):
            assert client.get(f"/api/v1/dashboard/{path}?{query}").status_code == 422
    client.force_login(much.mallory)
    answer = client.get(f"/api/v1/dashboard/{path}")
    assert answer.status_code == 404 if path.endswith("quarantine") else answer.json()["items"] == []


def test_the_first_of_them_stand_on_the_page_and_in_the_summary(client, much):
    client.force_login(much.alice)
    told = client.get("/api/v1/dashboard/reconciliation").json()
    assert [len(told[name]) for name in ("flagged", "withoutEnd", "corrected")] == [3, 3, 3]
    assert (told["corrections"], told["takenBack"]["amount"]) == (MANY, f"-{MANY}.000000")
    assert len(client.get("/api/v1/dashboard/waste").json()["dearest"]) == 3
    assert client.get("/dashboard/reconciliation").content.decode().count("the CSV has all of them") == 3
    assert UsageSegment.objects.filter(ended=None).count() == Outcome.objects.filter(word="Stopped").count() == MANY
    assert Waste.objects.count() == MANY


def test_the_file_of_a_run_has_all_its_segments(client, people, monkeypatch):
    monkeypatch.setattr(access, "MAX_SEGMENTS", 3)
    at = timezone.now() - dt.timedelta(minutes=9)
    tell(*(pod(people.ops, at, at + dt.timedelta(minutes=n + 1), index=n) for n in range(MANY)))
    client.force_login(people.alice)
    days = f"from={at:%F}&to={timezone.now():%F}"
    assert "the CSV has all of them" in client.get(f"/billing/ops-demo/show1/1?{days}").content.decode()
    rows = table(client.get(f"/billing/ops-demo/show1/1?{days}&format=csv"))
    assert sorted(int(row["index"]) for row in rows) == list(range(MANY))


def test_a_line_of_an_invoice_has_all_its_entries(client, people):
    Price.objects.create(sku="gpu", per_hour=Decimal("1.2"), valid_from=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    tell_march(march(people.ops.pk))
    posting.post(IN_APRIL)
    columns = ", ".join(f'"{each.column}"' for each in LedgerEntry._meta.local_fields if not each.primary_key)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO billing_ledgerentry ({columns}) SELECT {columns} FROM billing_ledgerentry,"
            " generate_series(1, 20000) WHERE sku = 'gpu'"
        )
    closing.close_due(IN_APRIL)
    invoice = Invoice.objects.get()
    client.force_login(people.alice)
    response = client.get("/invoices/ops-demo/2026-03/lines/1?format=csv")
    assert response.streaming
    rows = table(response)
    assert len(rows) == 20_001
    assert sum(int(row["unit_seconds"]) for row in rows) == invoice.lines.get(place=1).quantity
