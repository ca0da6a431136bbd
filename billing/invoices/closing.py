"""Closes months: makes invoices from the ledger, once, in portions that are each complete.

A closing first writes its mark, the last ledger id that it covers, while posting is locked out. Entries up to the mark
never change, so from then on the invoices are determined. Every portion of appcodes is one transaction that makes whole
invoices; after a crash, or in parallel, another closer makes only the missing ones. Entries posted above the mark for
that month are late; the next invoice has them as corrections.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

from django.conf import settings
from django.db import transaction
from django.db.models import BooleanField, Exists, ExpressionWrapper, Max, Min, OuterRef, Q, Sum
from django.utils import timezone

from billing import mails, periods, wakeups
from billing.accounts.models import Credit
from billing.invoices import document as invoices_document
from billing.invoices.document import Available, Document, Line, Past
from billing.invoices.issuer import InvoicingSpec, terms_of
from billing.invoices.models import Closing, Invoice, InvoiceCredit, InvoiceLine, Invoicing
from billing.invoices.spans import Span, lines_of, mark_before, span_of
from billing.ledger import posting
from billing.ledger.models import LedgerEntry, MonthlyUsage
from billing.metering.segments import floor
from billing.money import UNIT, cents
from billing.prices.models import Ownership
from portal.access import require_administrator
from portal.errors import Conflict
from portal.events import entry, record, record_all
from portal.models import Appcode, Event, User

PORTION = 200
# Closing years of history must not send mail about each month.
MAIL_UNTIL = dt.timedelta(days=62)


def grace() -> dt.timedelta:
    found: dt.timedelta = settings.INVOICE_GRACE
    return found


# Closing


def close_due(now: dt.datetime | None = None) -> int:
    """Closes every due month in order; returns the number of invoices made. May be killed, repeated and run twice at once."""
    moment = now or timezone.now()
    posting.post(moment)
    plan(moment)
    made = 0
    for closing in Closing.objects.filter(closed_at=None).order_by("month"):
        if closing.due_at > moment:
            break
        made += close(closing, moment)
    return made


def plan(now: dt.datetime) -> None:
    """Adds the closing of every month that is over, from the first with any usage on."""
    last = Closing.objects.order_by("-month").first()
    first = periods.following(last.month) if last else MonthlyUsage.objects.aggregate(first=Min("month"))["first"]
    this = periods.month(now).since.date()
    rows, month = [], first
    while month is not None and month < this:
        rows.append(Closing(month=month, due_at=periods.month_of(month).until + grace()))
        month = periods.following(month)
    if rows:
        Closing.objects.bulk_create(rows, ignore_conflicts=True)


def close(closing: Closing, now: dt.datetime, portion: int = PORTION) -> int:
    """Makes the missing invoices of a month; returns how many. All earlier months have to be closed."""
    span = _mark(closing, now)
    if span is None:
        return 0
    sums = lines_of(span)
    codes = sorted(sums)
    made = 0
    for first in range(0, len(codes), portion):
        made += _make({code: sums[code] for code in codes[first : first + portion]}, closing, span, now)
    with transaction.atomic():
        if Closing.objects.filter(pk=closing.pk, closed_at=None).update(closed_at=now):
            count = Invoice.objects.filter(month=closing.month).count()
            said = f"{closing.month:%B %Y} is closed: {count} invoices."
            record("month.closed", actor=None, object=f"month {closing}", message=said, invoices=count)
    return made


@transaction.atomic
def _mark(closing: Closing, now: dt.datetime) -> Span | None:
    """Fixes what the month covers. Returns None if the month is closed already, or cannot be while an earlier one is open."""
    posting.keep_others_out()
    row = Closing.objects.select_for_update().filter(pk=closing.pk).first()
    # The row is None if it was deleted with the example data that was the month's only usage.
    if row is None or row.closed_at is not None or Closing.objects.filter(month__lt=row.month, closed_at=None).exists():
        return None
    if row.mark is None:
        last = LedgerEntry.objects.order_by("-pk").values_list("pk", flat=True).first()
        # A mark is never lower than the previous month's, even if the ledger got shorter.
        after = mark_before(row.month)
        row.mark, row.marked_at = max(last or 0, after), now
        before = Closing.objects.filter(month__lt=row.month).aggregate(latest=Max("latest"))["latest"]
        new = LedgerEntry.objects.filter(pk__gt=after, pk__lte=row.mark).exclude(kind=LedgerEntry.Kind.CREDIT)
        begun = new.aggregate(latest=Max("since"))["latest"]
        row.latest = max(filter(None, (before, begun)), default=None)
        row.save(update_fields=["mark", "marked_at", "latest"])
    return span_of(row)


@transaction.atomic
def _make(sums: dict[int, list[Line]], closing: Closing, span: Span, now: dt.datetime) -> int:
    """Makes the missing invoices of these appcodes, complete with lines, credits, events and mail; returns how many."""
    # One closer at a time, and none once the month is closed.
    if Closing.objects.select_for_update().filter(pk=closing.pk, closed_at=None).first() is None:
        return 0
    there = Invoice.objects.filter(month=span.month, appcode__in=list(sums)).values_list("appcode", flat=True)
    missing = sorted(sums.keys() - set(there))
    if not missing:
        return 0
    codes = Appcode.objects.in_bulk(missing)
    owners, credits_ = owners_of(missing, span.period.until), available_credits(missing, span.period)
    spec = invoicing()
    documents = {
        pk: document_of(codes[pk], owners.get(pk, ""), span, sums[pk], credits_.get(pk, ()), now, spec)
        for pk in missing
    }
    rows = Invoice.objects.bulk_create(Invoice.of(document, pk) for pk, document in documents.items())
    InvoiceLine.objects.bulk_create(
        InvoiceLine.of(row, place, line)
        for row, document in zip(rows, documents.values(), strict=True)
        for place, line in enumerate(document.lines, 1)
    )
    _spend(rows, documents.values(), span)
    record_all([_closed_event(row) for row in rows])
    if now - span.period.until < MAIL_UNTIL:
        mails.queue([invoice_mail(row) for row in rows], now)
    return len(rows)


def document_of(
    appcode: Appcode,
    line: str,
    span: Span,
    sums: Sequence[Line],
    credits_: Sequence[Available],
    now: dt.datetime,
    spec: InvoicingSpec,
) -> Document:
    document = Document(
        number=invoices_document.number(span.month, appcode.code),
        appcode=appcode.code,
        name=appcode.name,
        business_line=line,
        month=span.month,
        currency=settings.CURRENCY,
        closed_at=floor(now),
        after=span.after,
        mark=span.mark,
        lines=invoices_document.lines(sums, span.month),
        terms=terms_of(spec, line, now.date()),
    )
    return replace(document, used=invoices_document.use(credits_, document.lines, span.month))


def invoicing() -> InvoicingSpec:
    """What invoices state that are closed now."""
    return InvoicingSpec.stored(Invoicing.objects.values_list("spec", flat=True).first() or {})


def _spend(rows: Sequence[Invoice], documents: Iterable[Document], span: Span) -> None:
    """Records the credits that were used or given back, in the ledger and with the invoices."""
    since, until = span.period.window
    spent = [
        (row, place, used)
        for row, document in zip(rows, documents, strict=True)
        for place, used in enumerate(document.used, 1)
    ]
    if not spent:
        return
    entries = LedgerEntry.objects.bulk_create(
        LedgerEntry(
            kind=LedgerEntry.Kind.CREDIT, credit_id=used.credit_id, appcode_id=row.appcode_id, sku="credit", since=since,
            until=until, quantity=0, per_hour=0, discount=0, charge=-used.amount * UNIT,
            business_line=row.business_line, labels={"invoice": row.number},
        )
        for row, _, used in spent
    )  # fmt: skip
    InvoiceCredit.objects.bulk_create(
        InvoiceCredit(
            invoice=row, place=place, credit_id=used.credit_id, entry=line, reason=used.reason, amount=used.amount
        )
        for (row, place, used), line in zip(spent, entries, strict=True)
    )


def owners_of(appcodes: Sequence[int], until: dt.datetime) -> dict[int, str]:
    """Each appcode's business line in the last second before `until`. Its first known one also applies to earlier times."""
    found: dict[int, str] = {}
    for row in Ownership.objects.filter(appcode__in=appcodes).order_by("appcode", "valid_from"):
        if row.valid_from < until or row.appcode_id not in found:
            found[row.appcode_id] = row.business_line
    return found


def available_credits(appcodes: Sequence[int], period: periods.Period) -> dict[int, list[Available]]:
    """The credits of each appcode, earliest expiry first: what is left of those valid in any part of the month, and for
    every used credit which months of use it has paid for, since that may be given back."""
    found: dict[int, list[Available]] = {}
    holding = Q(valid_from__lt=period.until) & (Q(expires_at=None) | Q(expires_at__gt=period.since))
    rows = Credit.objects.filter(appcode__in=appcodes).annotate(
        charged=Sum("entries__charge"), holds=ExpressionWrapper(holding, output_field=BooleanField())
    )
    all_ = list(rows.order_by("expires_at", "pk"))
    past = _past({row.appcode_id for row in all_ if row.charged})
    paid = {
        code: invoices_document.paid_by_credits(each, [row.pk for row in all_ if row.appcode_id == code])
        for code, each in past.items()
    }
    for row in all_:
        spent = -cents(row.charged or Decimal(0))
        left = row.amount - spent if row.holds else Decimal(0)
        if row.holds or spent > 0:
            of = paid.get(row.appcode_id, {}).get(row.pk, {})
            found.setdefault(row.appcode_id, []).append(Available(row.pk, left, spent, row.reason, of))
    return found


def _past(appcodes: Iterable[int]) -> dict[int, list[Past]]:
    """The closed invoices of each appcode, oldest first."""
    appcodes = list(appcodes)
    amounts: dict[int, list[tuple[dt.date, Decimal]]] = {}
    sums = InvoiceLine.objects.filter(invoice__appcode__in=appcodes).values("invoice", "month").order_by()
    for invoice, month, amount in sums.annotate(sum=Sum("amount")).values_list("invoice", "month", "sum"):
        amounts.setdefault(invoice, []).append((month, amount))
    used: dict[int, dict[int, Decimal]] = {}
    for row in InvoiceCredit.objects.filter(invoice__appcode__in=appcodes):
        used.setdefault(row.invoice_id, {})[row.credit_id] = row.amount
    found: dict[int, list[Past]] = {}
    rows = Invoice.objects.filter(appcode__in=appcodes).order_by("month")
    for pk, code, month in rows.values_list("pk", "appcode", "month"):
        asked = invoices_document.by_month(amounts.get(pk, []))
        found.setdefault(code, []).append(Past(month, asked, used.get(pk, {})))
    return found


def _closed_event(row: Invoice) -> Event:
    said = f"Invoice {row.number}: {row.gross:,} {row.currency}."
    return entry(
        "invoice.closed", actor=None, object=f"invoice {row.number}", appcode=row.code, message=said, total=str(row.total),
        tax=str(row.tax), currency=row.currency, month=f"{row.month:%Y-%m}", sha256=row.sha256,
    )  # fmt: skip


def invoice_mail(row: Invoice) -> mails.Letter:
    amount, tax = f"{row.gross:,} {row.currency}", f", {row.tax:,} of it tax" if row.tax else ""
    text = f"{row.name} ({row.code}) used {amount} in {row.month:%B %Y}{tax}.\n\n{address_of(row)}\n"
    subject = f"Invoice {row.number}: {amount}"
    return mails.Letter(mail_key(row), row.appcode_id, subject, text)


def address_of(invoice: Invoice) -> str:
    return f"{settings.PORTAL_ORIGIN}/invoices/{invoice.code}/{invoice.month:%Y-%m}"


def mail_key(row: Invoice) -> str:
    return f"invoice {row.number}"


# What administrators do


@transaction.atomic
def close_now(month: dt.date, *, acting_user: User) -> Closing:
    """Ends the grace time of a month that is over. Raises Conflict for any other month."""
    require_administrator(acting_user)
    now = timezone.now()
    plan(now)
    row = Closing.objects.select_for_update().filter(month=month).first()
    if row is None:
        raise Conflict("Only a month that is over, and in which something was used, can be closed.")
    if row.closed_at is not None or row.mark is not None:
        raise Conflict(f"{month:%B %Y} is closed already.")
    row.due_at = floor(now)
    row.save(update_fields=["due_at"])
    record("month.close-asked", actor=acting_user, object=f"month {row}", message=f"{month:%B %Y} is to be closed now.")
    transaction.on_commit(wakeups.wake_closing)
    return row


@transaction.atomic
def set_invoicing(spec: InvoicingSpec, *, acting_user: User) -> None:
    """Changes what invoices state that are closed from now on. Raises PermissionDenied for others than administrators."""
    require_administrator(acting_user)
    row, _ = Invoicing.objects.select_for_update().get_or_create(pk=1)
    before, row.spec = InvoicingSpec.stored(row.spec), spec.model_dump(mode="json", by_alias=True)
    changed = [name for name in InvoicingSpec.model_fields if getattr(before, name) != getattr(spec, name)]
    if changed:
        row.save()
        said = ", ".join(changed).replace("_", " ")
        record("invoicing.changed", actor=acting_user, object="invoicing", message=said)


# Proof


def proof() -> Iterator[tuple[Invoice | None, list[str]]]:
    """Yields every closed invoice with its problems, and (None, problems) for a month or the ledger: everyone who used
    anything needs an invoice, and so does every credit that was spent."""
    closings = list(Closing.objects.exclude(mark=None).order_by("month"))
    for closing in closings:
        span = span_of(closing)
        sums = lines_of(span)
        for invoice in _to_prove(Q(month=closing.month)):
            yield invoice, problems(invoice, span, sums.pop(invoice.appcode_id, []))
        if closing.closed_at and sums:
            codes = Appcode.objects.in_bulk(sums)
            yield (
                None,
                [f"{invoices_document.number(closing.month, codes[pk].code)}: it is not there" for pk in sorted(sums)],
            )
    for one, next_ in pairwise(closings):
        if periods.following(one.month) != next_.month:
            yield None, [f"{one.month:%B %Y}: the closing of the month after it is not there"]
    for invoice in _to_prove(~Q(month__in=Closing.objects.exclude(mark=None).values("month"))):
        yield invoice, [f"{invoice.number}: its month was never closed", *problems(invoice)]
    used = Exists(InvoiceCredit.objects.filter(entry=OuterRef("pk")))
    for entry_ in LedgerEntry.objects.filter(~used, credit__isnull=False).order_by("pk"):
        yield None, [f"entry {entry_.pk} of the ledger: there is no invoice that used this credit"]


def _to_prove(which: Q) -> Iterator[Invoice]:
    rows = Invoice.objects.filter(which).order_by("pk").select_related("appcode")
    return rows.prefetch_related("lines", "credits__entry", "notes").iterator(chunk_size=500)


def problems(invoice: Invoice, span: Span | None = None, sums: Sequence[Line] = ()) -> list[str]:
    """What is wrong with a closed invoice: its hash, its lines against the ledger, and row fields that differ from the hashed
    document, because people pay by those. `sums` are the ledger's lines for `span`; both are read if `span` is None."""
    found = []
    document = invoice.document
    if document.sha256 != invoice.sha256:
        found.append(
            f"{invoice.number}: its rows have the hash {document.sha256}, but {invoice.sha256} was written on it"
        )
    if span is None:
        span = Span(invoice.month, 0, invoice.after, invoice.mark)
        sums = lines_of(span, invoice.appcode_id).get(invoice.appcode_id, [])
    made = invoices_document.lines(sums, invoice.month)
    if [invoices_document.line_facts(line) for line in made] != [
        invoices_document.line_facts(line) for line in document.lines
    ]:
        found.append(f"{invoice.number}: its lines are not what the ledger says")
    if (invoice.after, invoice.mark) != (span.after, span.mark):
        found.append(f"{invoice.number}: it covers other entries of the ledger than its month")
    found += [f"{invoice.number}: {name} is {is_}, but by its document {said}" for name, is_, said in _beside(invoice)]
    for row in invoice.credits.all():
        facts = (row.entry.kind, row.entry.credit_id, row.entry.appcode_id, row.entry.charge)
        if facts != (LedgerEntry.Kind.CREDIT, row.credit_id, invoice.appcode_id, -row.amount * UNIT):
            found.append(f"{invoice.number}: its credit {row.credit_id} is not what the ledger says")
    for place, note in enumerate(sorted(invoice.notes.all(), key=lambda each: each.pk), 1):
        if note.note.sha256 != note.sha256:
            found.append(f"{note.number}: its hash is wrong")
        if note.number != invoices_document.note_number(invoice.number, place):
            found.append(f"{note.number}: it is number {place} of its invoice")
    return found


def _beside(invoice: Invoice) -> Iterator[tuple[str, object, object]]:
    """Row fields beside the hashed document that differ from it: (name, actual value, expected value)."""
    document = invoice.document
    pairs: list[tuple[str, object, object]] = [
        ("the appcode", invoice.appcode.code, document.appcode),
        ("the number", document.number, invoices_document.number(document.month, document.appcode)),
        ("the number of lines", invoice.line_count, len(document.lines)),
    ]
    pairs += [
        (f"the {name}", getattr(invoice, name), getattr(document, name))
        for name in ("subtotal", "credited", "total", "tax")
    ]
    pairs += [(f"the amount of line {row.place}", row.amount, row.line.amount) for row in invoice.lines.all()]
    return ((name, is_, said) for name, is_, said in pairs if is_ != said)
