"""Invoices of generated examples say so, wherever they are shown."""

from __future__ import annotations

import csv
import datetime as dt
import io
from typing import Any

import pytest
from django.utils import timezone

from billing import history
from billing.invoices import closing, pdf
from billing.models import Invoice
from portal.models import Appcode
from tests.billing.test_history import _use as use

pytestmark = pytest.mark.django_db

SAID = "generated example data"


@pytest.fixture
def closed(people):
    """Months with invoices of the example and a real one of flight, whose owner sees nothing else."""
    history.make(timezone.now(), owner=people.alice)
    use(people.flight, timezone.now() - dt.timedelta(days=45))
    closing.close_due(timezone.now() + dt.timedelta(days=40))
    return people


def table(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(response.getvalue().decode(), newline="")))


def test_invoices_of_an_example_say_so_everywhere(client, closed, monkeypatch):
    example = Invoice.objects.filter(appcode__code="example-ads").latest("month")
    real = Invoice.objects.get(appcode=closed.flight)
    client.force_login(closed.root)
    page, true = f"/invoices/{example.code}/{example.month:%Y-%m}", f"/invoices/{real.code}/{real.month:%Y-%m}"
    for url, labelled in {
        "/invoices": True, "/admin/months": True, page: True, f"{page}/lines/1": True, true: False, f"{true}/lines/1": False,
        f"/invoices/example-ads/{timezone.now():%Y-%m}": True,
    }.items():  # fmt: skip
        answer = client.get(url)
        assert answer.status_code == 200, url
        assert (SAID in answer.content.decode()) is labelled, url
    listed = {row["invoice"]: row["generated"] for row in table(client.get("/invoices?format=csv"))}
    assert listed[example.number] == "true"
    assert listed[real.number] == ""
    assert {row["generated"] for row in table(client.get(f"{page}?format=csv"))} == {"true"}
    assert {row["generated"] for row in table(client.get(f"{true}?format=csv"))} == {""}
    told = {row["number"]: row["generated"] for row in client.get("/api/v1/invoices?limit=500").json()["items"]}
    assert (told[example.number], told[real.number]) == (True, False)
    assert client.get(f"/api/v1/appcodes/{example.code}/invoices/{example.month:%Y-%m}").json()["generated"] is True
    assert client.get(f"/api/v1/appcodes/{real.code}/invoices/{real.month:%Y-%m}").json()["generated"] is False
    papers = []
    paragraph = pdf.Paragraph
    monkeypatch.setattr(pdf, "Paragraph", lambda text, style: papers.append(text) or paragraph(text, style))
    assert client.get(f"{page}?format=pdf").content.startswith(b"%PDF")
    assert pdf.GENERATED in papers
    papers.clear()
    assert client.get(f"{true}?format=pdf").content.startswith(b"%PDF")
    assert papers
    assert pdf.GENERATED not in papers
    # Who sees nothing of the example reads nothing of it.
    client.force_login(closed.mallory)
    assert SAID not in client.get("/invoices").content.decode()
    assert Appcode.objects.filter(code="example-ads").exists()
