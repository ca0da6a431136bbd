"""Closing months: usage is on exactly one invoice, to the second and the cent, whatever happens meanwhile."""

import csv
import datetime as dt
import hashlib
import io
import json
import os
import re
import signal
import threading
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pypdf import PdfReader

from billing import periods
from billing.accounts.actions import credits_of, left
from billing.exports import files
from billing.invoices import closing as invoices_closing
from billing.invoices import credit_notes, drafts
from billing.invoices import document as invoices_document
from billing.ledger import posting
from billing.metering import record as metering_record
from billing.models import (
    Closing,
    Credit,
    CreditNote,
    Discount,
    Invoice,
    InvoiceCredit,
    InvoiceLine,
    LedgerEntry,
    Mail,
    Ownership,
    Price,
    UsageSegment,
)
from billing.money import UNIT, WIDE, cents
from billing.prices.rates import quantities
from portal.errors import Conflict, Invalid
from portal.models import Event
from tests.billing.pods import HOUR, T0, at, pod, record

DAY = 86400
MARCH, APRIL, MAY = (dt.date(2026, month, 1) for month in (3, 4, 5))
# After the grace periods of March, April and May.
IN_APRIL, IN_MAY, IN_JUNE = (dt.datetime(2026, month, 4, tzinfo=dt.UTC) for month in (4, 5, 6))


@pytest.fixture
def prices(db):
    since = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for sku, per_hour in (("gpu", "1.2"), ("cpu", "0.03"), ("memory", "0.004"), ("storage", "0.0001")):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=since)


def check(now: dt.datetime) -> None:
    """Asserts every invariant between segments, ledger and invoices."""
    assert [found for _, found in invoices_closing.proof() if found] == []
    for invoice in Invoice.objects.all():
        assert invoices_closing.problems(invoice) == []
        assert hashlib.sha256(invoice.document.canonical()).hexdigest() == invoice.sha256
        # Credits pay for usage, and get back what is reversed of it.
        assert invoice.credited == 0 or invoice.credited * invoice.total >= 0
        assert invoice.credited * invoice.subtotal >= 0
    in_the_order_of_months()
    last = Closing.objects.exclude(closed_at=None).order_by("-month").first()
    if last is None:
        return
    until, mark = periods.month_of(last.month).until, last.mark
    ledger, charges, lines, line_charges = Counter(), Counter(), Counter(), Counter()
    for row in LedgerEntry.objects.filter(pk__lte=mark, since__lt=until).exclude(kind="credit"):
        ledger[row.appcode_id, row.sku, row.month] += row.quantity
        charges[row.appcode_id, row.sku, row.month] += Fraction(row.charge)
    for row in InvoiceLine.objects.select_related("invoice"):
        lines[row.invoice.appcode_id, row.sku, row.month] += row.quantity
        line_charges[row.invoice.appcode_id, row.sku, row.month] += Fraction(row.charge)
        assert row.amount == cents(row.charge)
        assert abs(Fraction(row.charge) / UNIT - Fraction(row.amount)) <= Fraction(1, 200)
    nonzero = lambda counter: {key: value for key, value in counter.items() if value}  # noqa: E731
    assert nonzero(ledger) == nonzero(lines)
    assert nonzero(charges) == nonzero(line_charges)
    for credit in Credit.objects.all():
        spent = sum(row.amount for row in credit.uses.all())
        assert 0 <= spent <= credit.amount
        assert spent == -sum(cents(row.charge) for row in credit.entries.all())
    assert now


def in_the_order_of_months() -> None:
    """Asserts that nobody gets back more money than they paid in money (each line is rounded once), and that a credit gets back
    at most what it paid for the corrected months, or for months that replaced those."""
    paid, lines = Counter(), Counter()
    before: dict[int, list[tuple[set, set, dict]]] = {}
    for invoice in Invoice.objects.order_by("month").prefetch_related("lines", "credits"):
        code = invoice.appcode_id
        paid[code] += invoice.total
        lines[code] += invoice.line_count
        assert paid[code] >= -Decimal("0.005") * lines[code]
        sums = Counter()
        for line in invoice.lines.all():
            sums[line.month] += line.amount
        used = {row.credit_id: row.amount for row in invoice.credits.all()}
        wanted = {month for month, amount in sums.items() if amount < 0}
        back = -sum(amount for amount in used.values() if amount < 0)
        assert back <= -sum(sums[month] for month in wanted)
        behind, left_ = set(wanted), Counter()
        for asked, taken, spent in reversed(before.setdefault(code, [])):
            if asked & behind or taken & behind:
                behind |= taken
                left_.update(spent)
        for credit_id, amount in used.items():
            assert amount > 0 or -amount <= left_[credit_id]
        before[code].append(({month for month, amount in sums.items() if amount > 0}, wanted, used))


def of_segments(until: dt.datetime) -> Counter:
    """Returns the resource-seconds of all segments before a time, by appcode and SKU, without the ledger."""
    found = Counter()
    for row in UsageSegment.objects.all():
        end = min(row.ended or until, until)
        for sku, amount in quantities(row.segment.resources).items():
            found[row.appcode_id, sku] += amount * max(0, int((end - row.started).total_seconds()))
    return found


def table(invoice: Invoice) -> list[tuple]:
    return [(row.month, row.sku, row.quantity, row.amount) for row in invoice.lines.all()]


# Successive months


def test_a_month_is_closed_after_its_grace_time(ops, prices):
    record(pod(ops.pk))
    posting.post(at(2 * HOUR))
    assert invoices_closing.close_due(dt.datetime(2026, 4, 3, 23, 59, tzinfo=dt.UTC)) == 0
    assert Closing.objects.get().state == "closing"
    assert invoices_closing.close_due(IN_APRIL) == 1
    invoice = Invoice.objects.get()
    assert (invoice.number, invoice.code, invoice.business_line) == ("INV-202603-ops-demo", "ops-demo", "qunarcorp.ops")
    assert table(invoice) == [
        (MARCH, "gpu", 3600, Decimal("1.20")),
        (MARCH, "cpu", 5_400_000, Decimal("0.04")),  # 0.045 to even
        (MARCH, "memory", 7_372_800, Decimal("0.01")),
    ]
    assert (invoice.subtotal, invoice.credited, invoice.total) == (Decimal("1.25"), 0, Decimal("1.25"))
    assert invoices_closing.close_due(IN_APRIL) == 0
    check(IN_APRIL)
    said = list(Event.objects.values_list("verb", "appcode", "actor_name").order_by("id"))
    assert said == [("invoice.closed", "ops-demo", "portal"), ("month.closed", "", "portal")]


def test_who_used_nothing_has_no_invoice(ops, flight, prices):
    record(pod(ops.pk, cpu_milli=0, memory_mb=0), pod(flight.pk, "p-2", begin=3 * HOUR, end=4 * HOUR))
    invoices_closing.close_due(IN_APRIL)
    assert [row.code for row in Invoice.objects.all()] == ["ops-demo"]
    assert invoices_closing.close_due(IN_MAY) == 1
    check(IN_MAY)


def test_what_lasts_over_a_month_is_on_both(ops, prices):
    record(pod(ops.pk, end=None, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    record(pod(ops.pk, end=3 * HOUR, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_MAY)
    march, april = Invoice.objects.order_by("month")
    assert table(march) == [(MARCH, "gpu", 2 * HOUR, Decimal("2.40"))]
    assert table(april) == [(APRIL, "gpu", HOUR, Decimal("1.20"))]
    check(IN_MAY)


def test_late_usage_is_a_correction_that_names_its_month(ops, prices):
    record(pod(ops.pk, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    record(
        pod(ops.pk, "late", end=HOUR // 2, cpu_milli=0, memory_mb=0),
        pod(ops.pk, "own", begin=3 * HOUR, end=4 * HOUR, cpu_milli=0, memory_mb=0),
    )
    invoices_closing.close_due(IN_MAY)
    april = Invoice.objects.get(month=APRIL)
    assert table(april) == [(APRIL, "gpu", HOUR, Decimal("1.20")), (MARCH, "gpu", HOUR // 2, Decimal("0.60"))]
    assert april.document.facts()["lines"][1]["month"] == "2026-03"
    check(IN_MAY)


def test_an_end_that_was_found_out_late_gives_money_back(ops, prices):
    record(pod(ops.pk, end=None, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    record(pod(ops.pk, end=HOUR // 2, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_MAY)
    assert table(Invoice.objects.get(month=APRIL)) == [(MARCH, "gpu", -3 * HOUR // 2, Decimal("-1.80"))]
    check(IN_MAY)


def test_a_correction_that_changes_nothing_is_no_line(ops, prices):
    record(pod(ops.pk, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    Ownership.objects.create(appcode=ops, business_line="elsewhere", valid_from=at(HOUR // 2))
    posting.post(IN_APRIL)
    Ownership.objects.create(appcode=ops, business_line="qunarcorp.ops", valid_from=at(HOUR // 2 + 1))
    posting.post(IN_APRIL)
    invoices_closing.close_due(IN_MAY)
    # One second moves from one business line to the other.
    lines = Invoice.objects.get(month=APRIL).lines.values_list("business_line", "quantity", "amount")
    assert sorted(lines) == [("elsewhere", 1, Decimal("0.00")), ("qunarcorp.ops", -1, Decimal("0.00"))]
    check(IN_MAY)


def test_usage_of_the_next_month_that_is_posted_already_waits_for_its_own(ops, prices):
    record(pod(ops.pk, begin=-DAY), pod(ops.pk, "p-2", begin=5 * HOUR, end=6 * HOUR))
    posting.post(IN_APRIL)
    invoices_closing.close_due(IN_APRIL)
    assert {line.month for line in InvoiceLine.objects.all()} == {MARCH}
    invoices_closing.close_due(IN_MAY)
    assert Invoice.objects.get(month=APRIL).lines.count() == 3
    check(IN_MAY)


def test_months_of_the_past_are_closed_in_their_order_without_mail(ops, prices):
    record(
        pod(ops.pk), pod(ops.pk, "p-2", begin=3 * HOUR, end=4 * HOUR), pod(ops.pk, "p-3", begin=40 * DAY, end=41 * DAY)
    )
    posting.post(IN_JUNE)
    assert invoices_closing.close_due(IN_JUNE) == 3
    assert list(Closing.objects.values_list("month", flat=True)) == [MARCH, APRIL, MAY]
    assert {mail.key for mail in Mail.objects.all()} == {"invoice INV-202604-ops-demo", "invoice INV-202605-ops-demo"}
    check(IN_JUNE)


def test_a_month_waits_for_the_one_before(ops, prices):
    record(pod(ops.pk), pod(ops.pk, "p-2", begin=3 * HOUR, end=4 * HOUR))
    posting.post(IN_MAY)
    invoices_closing.plan(IN_MAY)
    assert invoices_closing.close(Closing.objects.get(month=APRIL), IN_MAY) == 0
    assert not Invoice.objects.exists()


def test_an_administrator_may_end_the_grace_time(ops, alice, root, prices):
    record(pod(ops.pk))
    posting.post()
    with pytest.raises(Exception, match="no such page"):
        invoices_closing.close_now(MARCH, acting_user=alice)
    for month in (dt.date(2026, 2, 1), dt.date(2036, 2, 1)):
        with pytest.raises(Conflict, match="is over"):
            invoices_closing.close_now(month, acting_user=root)
    invoices_closing.close_now(MARCH, acting_user=root)
    invoices_closing.close_due()
    with pytest.raises(Conflict, match="closed already"):
        invoices_closing.close_now(MARCH, acting_user=root)


# Money


def test_rounding_is_half_to_even_once_per_line():
    def charge(amount: str) -> Decimal:
        return Decimal(amount) * UNIT

    assert [str(cents(charge(amount))) for amount in ("0.005", "0.015", "0.025", "-0.005", "-0.015")] == [
        "0.00", "0.02", "0.02", "0.00", "-0.02",
    ]  # fmt: skip
    # Just above half a cent rounds up, however large the sum; a precision of 28 digits would lose the difference.
    assert cents(WIDE.add(charge("123456789012.005"), Decimal("0.0000000001"))) == Decimal("123456789012.01")


def credit(appcode, amount, since=T0, until=None) -> Credit:
    return Credit.objects.create(
        appcode=appcode, amount=Decimal(amount), reason="sorry", valid_from=since, expires_at=until, created_by="root"
    )


def test_credits_are_used_up_what_ends_first_first(ops, flight, prices):
    endless = credit(ops, "1")
    ending = credit(ops, "0.5", until=at(30 * DAY))
    credit(ops, "9", until=at(-40 * DAY), since=at(-50 * DAY))
    credit(flight, "9")
    later = credit(ops, "9", since=at(2 * HOUR))
    record(pod(ops.pk), pod(ops.pk, "p-2", begin=3 * HOUR, end=4 * HOUR))
    invoices_closing.close_due(IN_APRIL)
    march = Invoice.objects.get()
    assert (march.subtotal, march.credited, march.total) == (Decimal("1.25"), Decimal("1.25"), 0)
    used = [(row.credit_id, row.amount) for row in march.credits.all()]
    assert used == [(ending.pk, Decimal("0.50")), (endless.pk, Decimal("0.75"))]
    invoices_closing.close_due(IN_MAY)
    april = Invoice.objects.get(month=APRIL)
    assert [(row.credit_id, row.amount) for row in april.credits.all()] == [
        (endless.pk, Decimal("0.25")), (later.pk, Decimal("1.00")),
    ]  # fmt: skip
    check(IN_MAY)
    assert LedgerEntry.objects.filter(kind="credit").count() == 4


def test_a_credit_cannot_be_spent_twice(ops, prices):
    given_ = credit(ops, "1")
    facts = {
        "kind": "credit", "credit": given_, "appcode": ops, "sku": "credit", "since": at(0), "until": at(1),
        "quantity": 0, "per_hour": 0, "discount": 0, "labels": {},
    }  # fmt: skip
    LedgerEntry.objects.create(charge=-UNIT, **facts)
    with pytest.raises(IntegrityError, match="used up"), transaction.atomic():
        LedgerEntry.objects.create(charge=-1, **facts)
    LedgerEntry.objects.create(charge=UNIT, **facts)
    with pytest.raises(IntegrityError, match="less than that was used"), transaction.atomic():
        LedgerEntry.objects.create(charge=1, **facts)


def credited(invoice: Invoice) -> list[tuple[int, Decimal]]:
    return [(row.credit_id, row.amount) for row in invoice.credits.all()]


def test_what_a_credit_paid_for_and_a_correction_takes_back_is_the_credits(ops, prices):
    given_ = credit(ops, "100")
    record(pod(ops.pk, end=None, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    march = Invoice.objects.get()
    assert (march.subtotal, march.credited, march.total) == (Decimal("2.40"), Decimal("2.40"), 0)
    record(pod(ops.pk, end=HOUR // 2, cpu_milli=0, memory_mb=0))
    draft = drafts.draft(ops, APRIL, IN_APRIL).document
    assert draft.used == (invoices_document.Used(given_.pk, Decimal("-1.80"), "sorry"),)
    invoices_closing.close_due(IN_MAY)
    april = Invoice.objects.get(month=APRIL)
    assert (april.subtotal, april.credited, april.total) == (Decimal("-1.80"), Decimal("-1.80"), 0)
    (entry,) = LedgerEntry.objects.filter(kind="credit", charge__gt=0)
    assert (entry.charge, entry.credit_id, entry.labels) == (
        Decimal("1.8") * UNIT,
        given_.pk,
        {"invoice": april.number},
    )
    assert [left(row) for row in credits_of(Credit.objects.all())] == [Decimal("99.40")]
    check(IN_MAY)
    call_command("verify_invoices", stdout=io.StringIO())
    call_command("replay", verify=True, stdout=io.StringIO())
    # The credit can be used again.
    record(pod(ops.pk, "p-2", begin=40 * DAY, end=40 * DAY + HOUR, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_JUNE)
    assert credited(Invoice.objects.get(month=MAY)) == [(given_.pk, Decimal("1.20"))]
    check(IN_JUNE)


def test_a_credit_given_back_is_called_so_everywhere(ops, prices, client, root):
    credit(ops, "100")
    seen = replace(pod(ops.pk, cpu_milli=0, memory_mb=0), estimated=True)
    record(seen)
    invoices_closing.close_due(IN_APRIL)
    record(replace(seen, estimated=False, finished_at=at(HOUR // 2)))
    invoices_closing.close_due(IN_MAY)
    client.force_login(root)
    assert "Credit given back" in client.get("/invoices/ops-demo/2026-04").content.decode()
    cells = list(csv.DictReader(io.StringIO(client.get("/invoices/ops-demo/2026-04?format=csv").content.decode())))
    assert [(row["sku"], row["amount"]) for row in cells] == [("gpu", "-0.60"), ("credit given back: sorry", "0.60")]
    paper = PdfReader(io.BytesIO(client.get("/invoices/ops-demo/2026-04?format=pdf").content)).pages[0].extract_text()
    assert "Credit given back: sorry" in paper
    rows = list(files.rows(APRIL, None))
    assert [(row.ChargeCategory, row.ChargeClass, row.BilledCost) for row in rows[-1:]] == [
        ("Credit", "Correction", Decimal("0.60"))
    ]
    assert sum(row.BilledCost for row in rows) == 0


def test_only_what_was_paid_in_money_is_owed_in_money(ops, prices):
    """The credit that expires first is used first and returned last; nothing is returned twice."""
    ending, endless = credit(ops, "0.50", until=at(30 * DAY)), credit(ops, "1")
    first, second = (
        replace(pod(ops.pk, uid, end=2 * HOUR, cpu_milli=0, memory_mb=0), estimated=True) for uid in ("p-1", "p-2")
    )
    record(first, second)
    invoices_closing.close_due(IN_APRIL)
    march = Invoice.objects.get()
    assert (march.subtotal, march.total) == (Decimal("4.80"), Decimal("3.30"))
    record(replace(first, estimated=False, finished_at=at(HOUR)))
    invoices_closing.close_due(IN_MAY)
    april = Invoice.objects.get(month=APRIL)
    assert (april.subtotal, april.total) == (Decimal("-1.20"), 0)
    assert credited(april) == [(endless.pk, Decimal("-1.00")), (ending.pk, Decimal("-0.20"))]
    record(replace(second, estimated=False, finished_at=at(HOUR // 2)))
    invoices_closing.close_due(IN_JUNE)
    may = Invoice.objects.get(month=MAY)
    assert (may.subtotal, may.total) == (Decimal("-1.80"), Decimal("-1.50"))
    assert credited(may) == [(ending.pk, Decimal("-0.30"))]
    check(IN_JUNE)


def test_what_was_paid_in_money_goes_to_no_credit(ops, prices):
    """March is paid in money, April by a credit that expires before March is corrected."""
    seen = replace(pod(ops.pk, begin=-DAY, end=-DAY + 20 * HOUR, cpu_milli=0, memory_mb=0), estimated=True)
    other = replace(pod(ops.pk, "p-2", begin=DAY, end=DAY + 20 * HOUR, cpu_milli=0, memory_mb=0), estimated=True)
    record(seen, other)
    invoices_closing.close_due(IN_APRIL)
    ending = credit(ops, "100", until=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    invoices_closing.close_due(IN_MAY)
    record(replace(seen, estimated=False, finished_at=seen.started_at + dt.timedelta(hours=1)))
    assert drafts.draft(ops, MAY, IN_JUNE).document.used == ()
    invoices_closing.close_due(IN_JUNE)
    march, april, may = Invoice.objects.order_by("month")
    assert (march.total, april.total, credited(april)) == (24, 0, [(ending.pk, 24)])
    assert (may.subtotal, may.credited, may.total) == (Decimal("-22.80"), 0, Decimal("-22.80"))
    # What the credit paid for goes back to the credit, even after it expired.
    record(replace(other, estimated=False, finished_at=other.started_at + dt.timedelta(hours=1)))
    in_july = dt.datetime(2026, 7, 4, tzinfo=dt.UTC)
    invoices_closing.close_due(in_july)
    june = Invoice.objects.get(month=dt.date(2026, 6, 1))
    assert (june.subtotal, june.total, credited(june)) == (Decimal("-22.80"), 0, [(ending.pk, Decimal("-22.80"))])
    check(in_july)


def test_what_a_credit_paid_for_stays_its_own_where_it_paid_for_another_month_instead(ops, prices):
    """A credit pays for March. Its correction frees the credit for April, which is corrected too."""
    given_ = credit(ops, "24")
    states = [
        replace(pod(ops.pk, uid, begin=begin, end=begin + 20 * HOUR, cpu_milli=0, memory_mb=0), estimated=True)
        for uid, begin in (("p-1", -DAY), ("p-2", DAY))
    ]
    record(*states)
    invoices_closing.close_due(IN_APRIL)
    for state, now in zip(states, (IN_MAY, IN_JUNE), strict=True):
        record(replace(state, estimated=False, finished_at=state.started_at + dt.timedelta(hours=1)))
        invoices_closing.close_due(now)
    march, april, may = Invoice.objects.order_by("month")
    # April costs 24.00 minus the 22.80 returned for March; the rest is paid in money.
    assert [(row.subtotal, row.total) for row in (march, april, may)] == [
        (24, 0),
        (Decimal("1.20"), Decimal("1.20")),
        (Decimal("-22.80"), 0),
    ]
    assert credited(may) == [(given_.pk, Decimal("-22.80"))]
    check(IN_JUNE)


def test_a_correction_that_a_credit_paid_for_is_the_credits_when_it_is_taken_back(ops, prices):
    record(pod(ops.pk, end=2 * HOUR, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    given_ = credit(ops, "9")
    seen = replace(pod(ops.pk, "late", end=HOUR, cpu_milli=0, memory_mb=0), estimated=True)
    record(seen)
    invoices_closing.close_due(IN_MAY)
    record(replace(seen, estimated=False, finished_at=at(1)))
    invoices_closing.close_due(IN_JUNE)
    may = Invoice.objects.get(month=MAY)
    assert (may.subtotal, may.total, credited(may)) == (Decimal("-1.20"), 0, [(given_.pk, Decimal("-1.20"))])
    check(IN_JUNE)


def test_discounts_make_lines_of_their_own(ops, prices):
    Discount.objects.create(sku="gpu", percent=Decimal("12.5"), valid_from=at(1800))
    record(pod(ops.pk, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    lines = Invoice.objects.get().lines.values_list("discount", "quantity", "amount")
    assert list(lines) == [(Decimal(0), 1800, Decimal("0.60")), (Decimal("12.50"), 1800, Decimal("0.52"))]


# Closed is closed


@pytest.fixture
def closed(ops, prices):
    record(pod(ops.pk))
    credit(ops, "0.25")
    invoices_closing.close_due(IN_APRIL)
    return Invoice.objects.get()


def test_the_hash_is_that_of_the_canonical_document(closed):
    text = closed.document.canonical()
    assert hashlib.sha256(text).hexdigest() == closed.sha256
    out = io.StringIO()
    call_command("verify_invoices", stdout=out)
    assert "1 invoices are what" in out.getvalue()
    facts = json.loads(text)
    assert text == json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert (facts["subtotal"], facts["credited"], facts["total"]) == ("1.25", "0.25", "1.00")
    assert facts["lines"][0]["charge"] == f"{Decimal('1.2') * UNIT:.10f}"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE billing_invoice SET total = 0, subtotal = credited", "DELETE FROM billing_invoice", "DELETE FROM billing_closing",
        "UPDATE billing_invoiceline SET amount = 0", "DELETE FROM billing_invoiceline", "DELETE FROM billing_invoicecredit",
        "UPDATE billing_closing SET mark = mark + 1", "UPDATE billing_closing SET closed_at = NULL",
        (
            "INSERT INTO billing_invoiceline SELECT id + 1000, place + 1000, month, business_line, sku, price_id, per_hour,"
            " discount, quantity, charge, amount, invoice_id FROM billing_invoiceline"
        ),
    ],
)  # fmt: skip
def test_nothing_of_a_closed_invoice_changes(closed, change):
    words = r"append-only|has begun|no more lines"
    with pytest.raises(DatabaseError, match=words), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)


def test_an_invoice_without_its_lines_cannot_be_committed(closed, flight):
    closed.pk, closed.number, closed.appcode = None, "INV-202603-flight-demo", flight
    with pytest.raises(IntegrityError, match="not complete"), transaction.atomic():
        closed.save(force_insert=True)
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_credit_notes_take_back_at_most_the_total(closed, root, alice):
    with pytest.raises(Exception, match="no such page"):
        credit_notes.issue(closed, Decimal("0.5"), "mistake", acting_user=alice)
    for amount, reason, path in [
        ("0", "x", "amount"),
        ("1.001", "x", "amount"),
        ("1.01", "x", "amount"),
        ("1", " ", "reason"),
    ]:
        with pytest.raises(Invalid) as caught:
            credit_notes.issue(closed, Decimal(amount), reason, acting_user=root)
        assert [error.path for error in caught.value.errors] == [(path,)]
    first = credit_notes.issue(closed, Decimal("0.4"), "a node was slow", acting_user=root)
    assert first.number == "CN-202603-ops-demo-1"
    assert hashlib.sha256(first.note.canonical()).hexdigest() == first.sha256
    with pytest.raises(Invalid, match=r"At most 0\.60"):
        credit_notes.issue(closed, Decimal("0.61"), "more", acting_user=root)
    credit_notes.issue(closed, Decimal("0.6"), "the rest", acting_user=root)
    with pytest.raises(IntegrityError, match="exceed"), transaction.atomic():
        CreditNote.objects.create(
            number="x", invoice=closed, amount=1, reason="", issued_at=IN_MAY, issued_by="root", sha256=""
        )
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        first.delete()
    assert invoices_closing.problems(closed) == []
    assert Event.objects.filter(verb="invoice.credit-note", appcode="ops-demo", actor=root).count() == 2


def told_late(ops, *ends: int, given_: str = "") -> list[Invoice]:
    """Closes March with an estimated end after two hours (2.40). Each further end makes one correcting invoice; returns all."""
    if given_:
        credit(ops, given_)
    seen = replace(pod(ops.pk, end=2 * HOUR, cpu_milli=0, memory_mb=0), estimated=True)
    record(seen)
    invoices_closing.close_due(IN_APRIL)
    for end, now in zip(ends, (IN_MAY, IN_JUNE), strict=False):
        record(replace(seen, estimated=False, finished_at=at(end)))
        invoices_closing.close_due(now)
    return list(Invoice.objects.order_by("month"))


def at_most(invoice: Invoice, amount: str, root) -> None:
    """Asserts that both the action and the database refuse one cent more than `amount` and accept `amount`."""
    words = rf"At most {amount.replace('.', '[.]')} USD"
    more = Decimal(amount) + Decimal("0.01")
    with pytest.raises(Invalid, match=words) as caught:
        credit_notes.issue(invoice, more, "a slow node", acting_user=root)
    assert [error.path for error in caught.value.errors] == [("amount",)]
    facts = {"invoice": invoice, "reason": "", "issued_at": IN_JUNE, "issued_by": "root", "sha256": ""}
    with pytest.raises(IntegrityError, match="exceed"), transaction.atomic():
        CreditNote.objects.create(number="x", amount=more, **facts)
    if Decimal(amount):
        credit_notes.issue(invoice, Decimal(amount), "a slow node", acting_user=root)
        with pytest.raises(Invalid, match=r"At most 0[.]00 USD"):
            credit_notes.issue(invoice, Decimal("0.01"), "a slow node", acting_user=root)


@pytest.mark.parametrize(
    ("end", "credit_", "sums", "left"),
    [
        (1, "", ("2.40", "-2.40"), "0.00"),
        (HOUR // 2, "", ("2.40", "-1.80"), "0.60"),
        # A credit paid 2.00 of 2.40 and got back 1.80: 0.40 was paid in money, and none of it returned.
        (HOUR // 2, "2", ("0.40", "0.00"), "0.40"),
        # The credit got back all of it, and 0.20 returned in money.
        (600, "2", ("0.40", "-0.20"), "0.20"),
        (1, "2", ("0.40", "-0.40"), "0.00"),
    ],
)
def test_a_credit_note_takes_back_nothing_that_a_correction_has(ops, root, prices, end, credit_, sums, left):
    march, april = told_late(ops, end, given_=credit_)
    assert (march.total, april.total) == tuple(map(Decimal, sums))
    at_most(march, left, root)
    at_most(april, "0.00", root)
    check(IN_JUNE)


def test_nobody_gets_back_more_than_everything_paid(ops, root, prices):
    """May takes back the 1.20 that April charged for March, so credit notes of March and April together reach only 2.40."""
    record(pod(ops.pk, end=2 * HOUR, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    seen = replace(pod(ops.pk, "late", end=HOUR, cpu_milli=0, memory_mb=0), estimated=True)
    record(seen)
    invoices_closing.close_due(IN_MAY)
    record(replace(seen, estimated=False, finished_at=at(1)))
    invoices_closing.close_due(IN_JUNE)
    march, april, may = Invoice.objects.order_by("month")
    assert [row.total for row in (march, april, may)] == [Decimal("2.40"), Decimal("1.20"), Decimal("-1.20")]
    credit_notes.issue(march, Decimal("1.20"), "a slow node", acting_user=root)
    at_most(april, "1.20", root)
    with pytest.raises(Invalid, match=r"At most 0[.]00 USD .* taken back already"):
        credit_notes.issue(march, Decimal("0.01"), "a slow node", acting_user=root)


def test_corrections_of_one_month_leave_the_notes_of_others_alone(ops, root, prices):
    """March is credited in full and then corrected: a credit note can still return all of April."""
    seen = replace(pod(ops.pk, end=2 * HOUR, cpu_milli=0, memory_mb=0), estimated=True)
    record(seen, *(pod(ops.pk, f"p-{n}", begin=n * DAY, end=n * DAY + HOUR, cpu_milli=0, memory_mb=0) for n in (5, 40)))
    invoices_closing.close_due(IN_APRIL)
    march = Invoice.objects.get()
    at_most(march, "2.40", root)
    invoices_closing.close_due(IN_MAY)
    record(replace(seen, estimated=False, finished_at=at(1)))
    invoices_closing.close_due(IN_JUNE)
    april, may = Invoice.objects.order_by("month")[1:]
    assert (april.total, may.subtotal) == (Decimal("1.20"), Decimal("-1.20"))
    at_most(april, "1.20", root)
    at_most(may, "0.00", root)


def test_corrections_take_back_what_was_asked_for_first_first(ops, root, prices):
    """Usage of March is charged in March and, late, in April; May takes back almost all of it."""
    seen = replace(pod(ops.pk, end=2 * HOUR, cpu_milli=0, memory_mb=0), estimated=True)
    late = replace(pod(ops.pk, "late", end=HOUR, cpu_milli=0, memory_mb=0), estimated=True)
    record(seen)
    invoices_closing.close_due(IN_APRIL)
    record(late)
    invoices_closing.close_due(IN_MAY)
    record(*(replace(state, estimated=False, finished_at=at(HOUR // 4)) for state in (seen, late)))
    invoices_closing.close_due(IN_JUNE)
    march, april, may = Invoice.objects.order_by("month")
    assert [row.total for row in (march, april, may)] == [Decimal("2.40"), Decimal("1.20"), Decimal("-3.00")]
    at_most(march, "0.00", root)
    at_most(april, "0.60", root)


def test_what_somebody_did_to_the_rows_by_force_is_seen(closed):
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_invoiceline DISABLE TRIGGER append_only")
        cursor.execute("UPDATE billing_invoiceline SET quantity = quantity - 1 WHERE place = 1")
    found = invoices_closing.problems(Invoice.objects.get())
    assert len(found) == 2
    assert "hash" in found[0]
    assert "ledger" in found[1]
    with pytest.raises(CommandError, match="1 of 1 invoices"):
        call_command("verify_invoices", stdout=io.StringIO())


GUARDED = ("invoice", "invoiceline", "invoicecredit", "creditnote", "ledgerentry")


def by_force(*statements: str) -> None:
    """Changes rows as a database superuser could: with triggers disabled."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for name in GUARDED:
            cursor.execute(f"ALTER TABLE billing_{name} DISABLE TRIGGER USER")
        for statement in statements:
            cursor.execute(statement)


def proof() -> str:
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("verify_invoices", stdout=out)
    return f"{out.getvalue()}{caught.value}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE billing_invoice SET subtotal = subtotal + 1000, total = total + 1000", "total is 1001.00, but by its document"),
        ("UPDATE billing_invoice SET credited = 0, total = subtotal", "credited is 0.00, but by its document 0.25"),
        ("UPDATE billing_invoice SET line_count = 4", "number of lines is 4"),
        ("UPDATE billing_invoiceline SET amount = amount + 1000 WHERE place = 2", "amount of line 2 is 1000.04"),
        (
            "UPDATE billing_invoice SET appcode_id = (SELECT id FROM portal_appcode WHERE code = 'flight-demo')",
            "the appcode is flight-demo, but by its document ops-demo",
        ),
        ("UPDATE billing_ledgerentry SET charge = charge + 1 WHERE kind = 'credit'", "credit \\d+ is not what the ledger says"),
        (
            "DELETE FROM billing_invoicecredit; UPDATE billing_invoice SET credited = 0, total = subtotal",
            "no invoice that used this credit",
        ),
        (
            "DELETE FROM billing_invoiceline; DELETE FROM billing_invoicecredit; DELETE FROM billing_invoice",
            "INV-202603-ops-demo: it is not there",
        ),
        ("UPDATE billing_invoice SET mark = mark + 1", "covers other entries of the ledger than its month"),
        ("UPDATE billing_creditnote SET number = 'CN-202603-ops-demo-2'", "is number 1 of its invoice"),
    ],
)  # fmt: skip
def test_the_proof_covers_what_people_pay_by(closed, flight, root, change, said):
    credit_notes.issue(closed, Decimal("0.1"), "a slow node", acting_user=root)
    call_command("verify_invoices", stdout=io.StringIO())
    if change.startswith("DELETE FROM billing_invoiceline"):
        change = f"DELETE FROM billing_creditnote; {change}"
    by_force(*change.split("; "))
    assert re.search(said, proof())


def test_a_month_whose_closing_is_gone_is_missed(ops, prices):
    record(*(pod(ops.pk, f"p-{n}", begin=n * 30 * DAY, end=n * 30 * DAY + 1) for n in range(3)))
    assert invoices_closing.close_due(IN_JUNE) == 3
    call_command("verify_invoices", stdout=io.StringIO())
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_closing DISABLE TRIGGER USER")
        cursor.execute("DELETE FROM billing_closing WHERE month = '2026-04-01'")
    found = proof()
    assert "March 2026: the closing of the month after it is not there" in found
    assert "INV-202604-ops-demo: its month was never closed" in found


# Open months


def facts(document) -> list[dict]:
    return [invoices_document.line_facts(line) for line in document.lines]


def test_an_open_invoice_says_what_it_would_if_it_were_closed_now(ops, flight, prices):
    record(pod(ops.pk), pod(ops.pk, "p-2", begin=HOUR, end=None, gpus=3), pod(flight.pk, "p-3"))
    now = at(HOUR + 1800)
    draft = drafts.draft(ops, MARCH, now)
    assert (draft.state, draft.due_at) == ("open", IN_APRIL)
    gpu = draft.document.lines[0]
    assert (gpu.quantity, gpu.amount) == (3600 + 3 * 1800, Decimal("3.00"))
    posting.post(now)
    assert facts(drafts.draft(ops, MARCH, now).document) == facts(draft.document)
    later = dt.datetime(2026, 4, 2, tzinfo=dt.UTC)
    draft = drafts.draft(ops, MARCH, later)
    assert draft.state == "closing"
    credit(ops, "1")
    record(pod(ops.pk, "p-2", begin=HOUR, end=2 * DAY, gpus=3))
    invoices_closing.close_due(IN_APRIL)
    closed = Invoice.objects.get(appcode=ops)
    assert facts(closed.document) == facts(draft.document)
    assert closed.credited == 1


def test_an_open_invoice_has_what_came_late_for_the_last_one(ops, prices):
    record(pod(ops.pk, end=None, cpu_milli=0, memory_mb=0))
    invoices_closing.close_due(IN_APRIL)
    record(pod(ops.pk, end=HOUR, cpu_milli=0, memory_mb=0))
    for _ in range(2):
        (line,) = drafts.draft(ops, APRIL, IN_APRIL).document.lines
        assert (line.key.month, line.quantity, line.amount) == (MARCH, -HOUR, Decimal("-1.20"))
        posting.post(IN_APRIL)


# Any sequence of events: hypothesis on the real database

lengths = st.one_of(st.integers(0, 2 * HOUR), st.integers(0, 40 * DAY))
pods = st.tuples(
    st.integers(-20 * DAY, 60 * DAY), lengths, st.booleans(), st.booleans(),
    st.fixed_dictionaries(
        {
            "gpus": st.integers(0, 8), "gpu_model": st.sampled_from(["", "A100", "T4"]), "cpu_milli": st.integers(0, 9000),
            "memory_mb": st.integers(0, 9000), "storage_mb": st.integers(0, 3),
        }
    ),
)  # fmt: skip
terms = st.lists(
    st.tuples(
        st.sampled_from(["gpu", "gpu:A100", "cpu", "memory", "storage"]), st.decimals(min_value=0, max_value=1000, places=6),
        st.integers(-20 * DAY, 60 * DAY), st.booleans(),
    ),
    max_size=6, unique_by=lambda row: (row[0], row[2], row[3]),
)  # fmt: skip
steps = st.lists(
    st.one_of(
        st.tuples(st.just("pods"), st.lists(pods, max_size=3)),
        st.tuples(st.just("ends"), st.lists(lengths, max_size=3)),
        st.tuples(st.just("post"), st.integers(0, 5 * DAY)),
        st.tuples(st.just("month"), st.just(None)),
        st.tuples(st.just("discount"), st.decimals(min_value=Decimal("0.01"), max_value=100, places=2)),
        st.tuples(st.just("move"), st.integers(-20 * DAY, 60 * DAY)),
        st.tuples(st.just("credit"), st.decimals(min_value=Decimal("0.01"), max_value=5000, places=2)),
    ),
    min_size=2, max_size=10,
)  # fmt: skip


class Story:
    """The events of two appcodes, step by step; `now` only moves forward."""

    def __init__(self, ops, flight, portion: int) -> None:
        self.codes, self.portion = (ops, flight), portion
        self.now, self.states, self.number = at(-10 * DAY), {}, 0

    def step(self, what: str, value) -> None:
        self.number += 1
        getattr(self, what)(value)

    def pods(self, drawn) -> None:
        new = [
            pod(self.codes[mine].pk, f"d-{self.number}-{k}", begin=begin, end=begin + length if over else None, **held)
            for k, (begin, length, over, mine, held) in enumerate(drawn)
        ]
        self.states |= {state.uid: state for state in new}
        metering_record.record(new)

    def ends(self, lengths) -> None:
        """Reports other ends: an end wins over none, and a later one over an earlier one."""
        for uid, length in zip(list(self.states), lengths, strict=False):
            state = self.states[uid]
            end = max(state.started_at + dt.timedelta(seconds=length), state.finished_at or state.started_at)
            self.states[uid] = replace(state, phase="Succeeded", finished_at=end)
            metering_record.record([self.states[uid]])

    def post(self, seconds: int) -> None:
        self.now += dt.timedelta(seconds=seconds)
        posting.post(self.now)

    def discount(self, percent: Decimal) -> None:
        Discount.objects.create(sku="*", percent=percent, valid_from=self.now, appcode=self.codes[0])

    def move(self, since: int) -> None:
        facts = {"business_line": f"line{self.number}"}
        Ownership.objects.get_or_create(appcode=self.codes[0], valid_from=at(since), defaults=facts)

    def credit(self, amount: Decimal) -> None:
        until = self.now + dt.timedelta(days=40) if self.number % 2 else None
        credit(self.codes[0], amount, self.now, until)

    def month(self, _) -> None:
        """Moves to the next month and closes the last; its invoices must equal their drafts from just before."""
        self.now = periods.month_of(self.now.date().replace(day=1)).until + dt.timedelta(days=4)
        posting.post(self.now)
        invoices_closing.plan(self.now)
        for closing in Closing.objects.filter(closed_at=None):
            open_ = [drafts.draft(code, closing.month, self.now).document for code in self.codes]
            invoices_closing.close(closing, self.now, self.portion)
            for code, document in zip(self.codes, open_, strict=True):
                found = Invoice.objects.filter(appcode=code, month=closing.month).first()
                assert facts(document) == (facts(found.document) if found else [])
                assert document.used == (found.document.used if found else ())


@pytest.mark.timeout(600)
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(terms, steps, st.integers(1, 2))
def test_segments_ledger_and_invoices_agree(ops, flight, drawn, steps_, portion):
    with transaction.atomic():
        for sku, per_hour, since, special in drawn:
            Price.objects.create(sku=sku, per_hour=per_hour, valid_from=at(since), appcode=ops if special else None)
        story = Story(ops, flight, portion)
        for what, value in [*steps_, *4 * [("month", None)]]:
            story.step(what, value)
            if what == "month":
                check(story.now)
        if last := Closing.objects.order_by("-month").first():
            billed: Counter = Counter()
            for row in InvoiceLine.objects.select_related("invoice"):
                billed[row.invoice.appcode_id, row.sku] += row.quantity
            assert {key: value for key, value in billed.items() if value} == +of_segments(
                periods.month_of(last.month).until
            )
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        transaction.set_rollback(True)


estimates = st.lists(
    st.tuples(st.integers(0, 50 * DAY), st.integers(HOUR, 30 * DAY), st.integers(0, 30 * DAY), st.integers(0, 3)),
    min_size=1, max_size=5,
)  # fmt: skip
grants = st.lists(st.tuples(st.decimals(min_value=1, max_value=400, places=2), st.integers(0, 3)), max_size=4)


@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(estimates, grants)
def test_credits_come_back_whatever_was_estimated_too_high(ops, flight, prices, drawn, given_):
    """Ends are estimated, and the true ones arrive some months later."""
    with transaction.atomic():
        story = Story(ops, flight, 1)
        true = []
        for n, (begin, estimate, length, told) in enumerate(drawn):
            seen = replace(pod(ops.pk, f"e-{n}", begin=begin, end=begin + estimate), estimated=True)
            metering_record.record([seen])
            true.append((told, replace(seen, estimated=False, finished_at=at(begin + min(length, estimate)))))
        for month in range(6):
            for amount, _ in (each for each in given_ if each[1] == month):
                story.step("credit", amount)
            metering_record.record([state for told, state in true if told == month])
            story.step("month", None)
        check(story.now)
        # The invoices charge the true usage, and money and credits together paid for it.
        billed = sum(invoice.subtotal for invoice in Invoice.objects.all())
        exact = sum(Fraction(row.charge) for row in LedgerEntry.objects.exclude(kind="credit")) / UNIT
        assert abs(Fraction(billed) - exact) <= Fraction(InvoiceLine.objects.count(), 200)
        paid = sum(invoice.total for invoice in Invoice.objects.all())
        spent = sum(credit.amount - left(credit) for credit in credits_of(Credit.objects.all()))
        assert paid + spent == billed
        transaction.set_rollback(True)


# Crashes and concurrency


@pytest.fixture
def three(transactional_db, make_appcode, request):
    """Creates three appcodes with posted usage and credits in March."""
    people = request.getfixturevalue("people")
    codes = [people.ops, people.flight, make_appcode("third-demo", org="corp.x", namespace="x", owner=people.alice)]
    since = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    Price.objects.create(sku="gpu", per_hour=Decimal("1.2"), valid_from=since)
    for n, code in enumerate(codes):
        record(pod(code.pk, f"p-{n}", cpu_milli=0, memory_mb=0))
        credit(code, "0.5")
    posting.post(IN_APRIL)
    return codes


def close_and_die(after: int) -> bool:
    """Closes March in a process that is killed before statement number `after`. Returns True if it finished."""
    pid = os.fork()
    if pid == 0:
        try:
            # The socket belongs to the parent, so do not close it.
            connection.connection = None
            count = 0

            def counting(execute, sql, params, many, context):
                nonlocal count
                count += 1
                if count == after:
                    os.kill(os.getpid(), signal.SIGKILL)
                return execute(sql, params, many, context)

            invoices_closing.plan(IN_APRIL)
            with connection.execute_wrapper(counting):
                invoices_closing.close(Closing.objects.get(), IN_APRIL, portion=1)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
    return status == 0


def everything_once() -> None:
    assert Invoice.objects.count() == 3
    assert InvoiceLine.objects.count() == 3
    assert InvoiceCredit.objects.count() == 3
    assert LedgerEntry.objects.filter(kind="credit").count() == 3
    assert Mail.objects.count() == 3
    assert Event.objects.filter(verb="invoice.closed").count() == 3
    assert Event.objects.filter(verb="month.closed").count() == 1
    check(IN_APRIL)


@pytest.mark.timeout(600)
def test_killed_before_any_statement_nothing_is_half_or_twice(three):
    """Each try is killed one statement later than the last and continues its work."""
    after = 1
    seen = set()
    while not close_and_die(after):
        made = Invoice.objects.count()
        seen.add(made)
        assert made == Mail.objects.count() == InvoiceCredit.objects.count() == InvoiceLine.objects.count()
        assert made == Event.objects.filter(verb="invoice.closed").count()
        for invoice in Invoice.objects.all():
            assert invoices_closing.problems(invoice) == []
        after += 1
    assert seen == {0, 1, 2, 3}
    everything_once()


def test_credit_notes_of_two_invoices_at_once_wait_for_each_other(transactional_db, people):
    """In either order none fails, and together they never exceed the amount paid."""
    Price.objects.create(sku="gpu", per_hour=Decimal("1.2"), valid_from=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    held = {"cpu_milli": 0, "memory_mb": 0}
    record(pod(people.ops.pk, **held), pod(people.ops.pk, "p-2", begin=DAY, end=DAY + HOUR, **held))
    assert invoices_closing.close_due(IN_MAY) == 2
    march, april = Invoice.objects.order_by("month")
    barrier, errors = threading.Barrier(4), []

    def issuer(invoice: Invoice) -> None:
        try:
            barrier.wait()
            for _ in range(6):
                credit_notes.issue(invoice, Decimal("0.10"), "a slow node", acting_user=people.root)
        except Exception as error:  # noqa: BLE001 - asserted below
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=issuer, args=[invoice]) for invoice in (march, april, march, april)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    for invoice in (march, april):
        with pytest.raises(Invalid, match=r"At most 0[.]00 USD"):
            credit_notes.issue(invoice, Decimal("0.01"), "a slow node", acting_user=people.root)
    check(IN_MAY)


def test_a_month_that_goes_while_it_is_closed_is_left_alone(ops, prices):
    record(pod(ops.pk))
    posting.post(IN_APRIL)
    invoices_closing.plan(IN_APRIL)
    gone = Closing.objects.get()
    span = invoices_closing._mark(gone, IN_APRIL)
    by_force("ALTER TABLE billing_closing DISABLE TRIGGER USER", "DELETE FROM billing_closing")
    assert invoices_closing._make(invoices_closing.lines_of(span), gone, span, IN_APRIL) == 0
    assert invoices_closing.close(gone, IN_APRIL) == 0
    assert not Invoice.objects.exists()


def test_two_closers_at_once_make_everything_once(three):
    invoices_closing.plan(IN_APRIL)
    barrier, errors = threading.Barrier(4), []

    def closer() -> None:
        try:
            barrier.wait()
            invoices_closing.close(Closing.objects.get(), IN_APRIL, portion=1)
        except Exception as error:  # noqa: BLE001 - asserted below
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=closer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    everything_once()
