"""Closing months: from the ledger to invoices, once, in portions that are each complete; and what the open ones say so far.

The first thing that a closing writes is its mark, the last number of the ledger that it covers, while nobody posts. From then on
what its invoices say is settled, because entries up to the mark never change: every portion of appcodes is one transaction
that makes whole invoices, and whoever comes after a crash, or at the same time, makes only those that are missing. What is posted
with a higher number for a month whose mark is set came too late; the next invoice has it as a correction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import Max, Min, Q, Sum
from django.utils import timezone

from billing import invoices, ledger, mails, periods, posting, wakeups
from billing.dashboard_models import GeneratedAppcode
from billing.invoice_models import Closing, CreditNote, Invoice, InvoiceCredit, InvoiceLine, Mail
from billing.invoices import Available, Document, Key, Line, Note
from billing.metering import price_book
from billing.models import Credit, LedgerEntry, MonthlyUsage, Ownership, UsageSegment
from billing.rating import UNIT
from billing.usage import floor
from portal.access import require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import entry, record, record_all
from portal.models import Appcode, Event, User

PORTION = 200
# Whoever closes years of history does not send mail about each of their months.
MAIL_UNTIL = dt.timedelta(days=62)

# What the invoices of a month cover: its own entries, and those of earlier months that came too late for the one before. The
# lower bound spares reading what was posted before the month began.
COVERED = """
SELECT appcode_id, date_trunc('month', since AT TIME ZONE 'UTC')::date, business_line, sku, price_id, per_hour, discount,
    sum(quantity)::bigint, sum(charge)
FROM billing_ledgerentry
WHERE id > %(low)s AND id <= %(mark)s AND kind <> 'credit' AND since < %(until)s AND (since >= %(since)s OR id > %(after)s)
    AND (%(appcode)s::bigint IS NULL OR appcode_id = %(appcode)s)
GROUP BY 1, 2, 3, 4, 5, 6, 7
HAVING sum(quantity) <> 0 OR sum(charge) <> 0
"""
# Numbers beyond all entries, for what has no mark yet.
ENDLESS = 2**63 - 1


@dataclass(frozen=True)
class Span:
    """Which entries of the ledger the invoices of `month` cover; see COVERED."""

    month: dt.date
    low: int
    after: int
    mark: int

    @property
    def period(self) -> periods.Period:
        return periods.month_of(self.month)

    def covers(self, row: LedgerEntry) -> bool:
        if row.kind == LedgerEntry.Kind.CREDIT or not self.low < row.pk <= self.mark or row.month > self.month:
            return False
        return row.month == self.month or row.pk > self.after


def grace() -> dt.timedelta:
    found: dt.timedelta = settings.INVOICE_GRACE
    return found


# Closing


def close_due(now: dt.datetime | None = None) -> int:
    """Closes every month that is due, in their order, and says how many invoices were made. May be killed, repeated and run
    twice at once."""
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
    """Notes the closing of every month that is over, from the first with any usage on."""
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
    """Makes the invoices of a month that are missing. The months before it have to be closed."""
    span = _mark(closing, now)
    if span is None:
        return 0
    sums = _sums(span)
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
    """Settles what the month covers; None when somebody else has closed it, or cannot because of the month before."""
    posting.keep_others_out()
    row = Closing.objects.select_for_update().get(pk=closing.pk)
    if row.closed_at is not None or Closing.objects.filter(month__lt=row.month, closed_at=None).exists():
        return None
    if row.mark is None:
        last = LedgerEntry.objects.order_by("-pk").values_list("pk", flat=True).first()
        # Never lower than the one before, whatever becomes of the ledger.
        after = _after(row.month)
        row.mark, row.marked_at = max(last or 0, after), now
        before = Closing.objects.filter(month__lt=row.month).aggregate(latest=Max("latest"))["latest"]
        new = LedgerEntry.objects.filter(pk__gt=after, pk__lte=row.mark).exclude(kind=LedgerEntry.Kind.CREDIT)
        begun = new.aggregate(latest=Max("since"))["latest"]
        row.latest = max(filter(None, (before, begun)), default=None)
        row.save(update_fields=["mark", "marked_at", "latest"])
    return span_of(row)


def span_of(closing: Closing) -> Span:
    assert closing.mark is not None
    return Span(closing.month, _low(closing.month), _after(closing.month), closing.mark)


def span_so_far(month: dt.date) -> Span:
    """What the invoices of a month cover, whether it is closed or not."""
    closing = Closing.objects.filter(month=month).first()
    unfinished = Closing.objects.filter(month__lt=month, closed_at=None).exists()
    # Only the next invoice to be closed has what came late.
    after = ENDLESS if unfinished else _after(month)
    return Span(month, _low(month), after, (closing and closing.mark) or ENDLESS)


def _after(month: dt.date) -> int:
    """The mark of the month before."""
    before = Closing.objects.filter(month__lt=month).exclude(mark=None).order_by("-month").first()
    return before.mark or 0 if before else 0


def _low(month: dt.date) -> int:
    """The last mark up to which nothing belongs to this month, nor to one after it."""
    marked = Closing.objects.filter(month__lt=month).exclude(mark=None)
    early = marked.filter(Q(latest=None) | Q(latest__lt=periods.month_of(month).since)).order_by("-month").first()
    return early.mark or 0 if early else 0


def _sums(span: Span, appcode_id: int | None = None) -> dict[int, list[Line]]:
    """The lines of each appcode in the span, in no order."""
    since, until = span.period.window
    found: dict[int, list[Line]] = {}
    with connection.cursor() as cursor:
        asked = {"low": span.low, "after": span.after, "mark": span.mark, "appcode": appcode_id}
        cursor.execute(COVERED, {**asked, "since": since, "until": until})
        for code, *key, quantity, charge in cursor.fetchall():
            found.setdefault(code, []).append(Line(Key(*key), quantity, charge))
    return found


@transaction.atomic
def _make(sums: dict[int, list[Line]], closing: Closing, span: Span, now: dt.datetime) -> int:
    """The invoices of these appcodes that are not there yet, with all that belongs to them."""
    # One closer at a time, and none once the month is closed.
    if Closing.objects.select_for_update().get(pk=closing.pk).closed_at is not None:
        return 0
    there = Invoice.objects.filter(month=span.month, appcode__in=list(sums)).values_list("appcode", flat=True)
    missing = sorted(sums.keys() - set(there))
    if not missing:
        return 0
    codes = Appcode.objects.in_bulk(missing)
    owners, credits_ = _owners(missing, span.period.until), _available(missing, span.period)
    documents = {
        pk: _document(codes[pk], owners.get(pk, ""), span, sums[pk], credits_.get(pk, ()), now) for pk in missing
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
        # The addresses of a generated example are nobody's.
        examples = set(GeneratedAppcode.objects.values_list("appcode_id", flat=True))
        mails.queue([invoice_mail(row) for row in rows if row.appcode_id not in examples], now)
    return len(rows)


def _document(
    appcode: Appcode, line: str, span: Span, sums: Sequence[Line], credits_: Sequence[Available], now: dt.datetime
) -> Document:
    document = Document(
        number=invoices.number(span.month, appcode.code),
        appcode=appcode.code,
        name=appcode.name,
        business_line=line,
        month=span.month,
        currency=settings.CURRENCY,
        closed_at=floor(now),
        after=span.after,
        mark=span.mark,
        lines=invoices.lines(sums, span.month),
    )
    return replace(document, used=invoices.use(credits_, document.subtotal))


def _spend(rows: Sequence[Invoice], documents: Iterable[Document], span: Span) -> None:
    """Writes what credits were used up into the ledger, and beside the invoices."""
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


def _owners(appcodes: Sequence[int], until: dt.datetime) -> dict[int, str]:
    """The business line that each belonged to in the last second before `until`; the first one known holds before, too."""
    found: dict[int, str] = {}
    for row in Ownership.objects.filter(appcode__in=appcodes).order_by("appcode", "valid_from"):
        if row.valid_from < until or row.appcode_id not in found:
            found[row.appcode_id] = row.business_line
    return found


def _available(appcodes: Sequence[int], period: periods.Period) -> dict[int, list[Available]]:
    """What is left of the credits of each that hold in any part of the month, what ends first first."""
    found: dict[int, list[Available]] = {}
    holding = Q(expires_at=None) | Q(expires_at__gt=period.since)
    rows = Credit.objects.filter(holding, appcode__in=appcodes, valid_from__lt=period.until)
    for row in rows.annotate(spent=Sum("entries__charge")).order_by("expires_at", "pk"):
        left = row.amount + invoices.cents(row.spent or Decimal(0))
        if left > 0:
            found.setdefault(row.appcode_id, []).append(Available(row.pk, left, row.reason))
    return found


def _closed_event(row: Invoice) -> Event:
    said = f"Invoice {row.number}: {row.total:,} {row.currency}."
    return entry(
        "invoice.closed", actor=None, object=f"invoice {row.number}", appcode=row.code, message=said, total=str(row.total),
        currency=row.currency, month=f"{row.month:%Y-%m}", sha256=row.sha256,
    )  # fmt: skip


def invoice_mail(row: Invoice) -> mails.Letter:
    link = f"{settings.PORTAL_ORIGIN}/invoices/{row.code}/{row.month:%Y-%m}"
    text = f"{row.name} ({row.code}) used {row.total:,} {row.currency} in {row.month:%B %Y}.\n\n{link}\n"
    subject = f"Invoice {row.number}: {row.total:,} {row.currency}"
    return mails.Letter(mail_key(row), row.appcode_id, subject, text)


def mail_key(row: Invoice) -> str:
    return f"invoice {row.number}"


# What is not closed yet


@dataclass(frozen=True)
class Draft:
    """An invoice that is open (its month lasts), or closing (the grace time runs): `document` is what it says so far."""

    document: Document
    state: str
    due_at: dt.datetime

    @property
    def running(self) -> bool:
        return self.state == "open"


def state_of(month: dt.date, now: dt.datetime) -> str:
    """ "open", "closing" or "closed"; "" for a month to come, and for one before the first with any usage."""
    if month > now.date():
        return ""
    if periods.month_of(month).until > now:
        return "open"
    closing = Closing.objects.filter(month=month).first()
    if closing is None:
        # It is over, and the next sweep will note it.
        first = MonthlyUsage.objects.aggregate(first=Min("month"))["first"]
        return "closing" if first and first <= month else ""
    return closing.state


def draft(appcode: Appcode, month: dt.date, now: dt.datetime) -> Draft:
    """What the invoice of an open month says, exact to the second: what is posted, and what is still to be."""
    with snapshot():
        return _draft(appcode, month, now)


@contextmanager
def snapshot() -> Iterator[None]:
    """What is read within is all of one moment, so that what is just being posted is not seen twice or never."""
    outermost = not connection.in_atomic_block
    with transaction.atomic():
        if outermost:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


def _draft(appcode: Appcode, month: dt.date, now: dt.datetime) -> Draft:
    closing = Closing.objects.filter(month=month).first()
    span = span_so_far(month)
    lines = _sums(span, appcode.pk).get(appcode.pk, [])
    if span.mark == ENDLESS:
        lines = invoices.added(
            (line.key, line.quantity, line.charge) for line in [*lines, *_waiting(appcode, span, now)]
        )
    credits_ = _available([appcode.pk], span.period).get(appcode.pk, [])
    owner = _owners([appcode.pk], span.period.until).get(appcode.pk, "")
    document = _document(appcode, owner, span, lines, credits_, now)
    due = closing.due_at if closing else span.period.until + grace()
    return Draft(document, "open" if span.period.until > now else "closing", due)


def _waiting(appcode: Appcode, span: Span, now: dt.datetime) -> list[Line]:
    """What posting would add until `now`: the lines of segments that are not finished, less those that stand in the ledger."""
    segments = list(UsageSegment.objects.filter(due__appcode_id=appcode.pk))
    if not segments:
        return []
    prices = price_book()
    owners = [row.owner for row in Ownership.objects.filter(appcode=appcode)]
    first = span.month if span.after == ENDLESS else dt.date.min
    rows = [
        (Key.of(line), line.quantity, line.charge)
        for segment in segments
        for line in ledger.entries_of(segment.segment, prices, owners, now)
    ]
    posted = LedgerEntry.objects.filter(segment__in=[segment.pk for segment in segments])
    rows += [(Key.of(line.entry), -line.quantity, -line.charge) for line in posted.iterator(2000)]
    return invoices.added(row for row in rows if first <= row[0].month <= span.month)


# What administrators do


@transaction.atomic
def close_now(month: dt.date, *, acting_user: User) -> Closing:
    """Ends the grace time of a month that is over. Raises Conflict for others."""
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
def credit_note(invoice: Invoice, amount: Decimal, reason: str, *, acting_user: User) -> CreditNote:
    """Takes back `amount` of a closed invoice. Raises Invalid with paths amount, reason."""
    require_administrator(acting_user)
    # Notes of one invoice are numbered one after the other.
    invoice = Invoice.objects.select_for_update().get(pk=invoice.pk)
    given = invoice.notes.aggregate(sum=Sum("amount"))["sum"] or Decimal(0)
    errors = []
    if not amount.is_finite() or amount <= 0 or amount != round(amount, 2):
        errors.append(FieldError(("amount",), "Give an amount over 0 with at most two decimals."))
    elif amount > invoice.total - given:
        left = max(invoice.total - given, Decimal(0))
        errors.append(
            FieldError(("amount",), f"At most {left:,} {invoice.currency} of this invoice can be taken back.")
        )
    if not reason.strip() or len(reason) > 300 or not reason.isprintable():
        errors.append(FieldError(("reason",), "Say why, in one line of at most 300 characters."))
    if errors:
        raise Invalid(errors)
    note = Note(
        number=invoices.note_number(invoice.number, invoice.notes.count() + 1),
        invoice=invoice.number,
        invoice_sha256=invoice.sha256,
        appcode=invoice.code,
        currency=invoice.currency,
        amount=round(amount, 2),
        reason=reason.strip(),
        issued_at=floor(timezone.now()),
        issued_by=acting_user.username,
    )
    try:
        with transaction.atomic():
            row = CreditNote.objects.create(
                number=note.number, invoice=invoice, amount=note.amount, reason=note.reason, issued_at=note.issued_at,
                issued_by=note.issued_by, sha256=note.sha256,
            )  # fmt: skip
    except IntegrityError as error:
        raise Invalid.at("amount", message="Somebody took back a part of this invoice meanwhile.") from error
    said = f"{note.amount:,} {note.currency} of {note.invoice} are taken back: {note.reason}"
    record(
        "invoice.credit-note", actor=acting_user, object=f"invoice {note.invoice}", appcode=invoice.code, message=said,
        number=note.number, amount=str(note.amount), currency=note.currency, sha256=note.sha256,
    )  # fmt: skip
    link = f"{settings.PORTAL_ORIGIN}/invoices/{invoice.code}/{invoice.month:%Y-%m}"
    text = f"{note.amount:,} {note.currency} of invoice {note.invoice} are taken back: {note.reason}\n\n{link}\n"
    subject = f"Credit note {note.number}: {note.amount:,} {note.currency}"
    mails.queue([mails.Letter(f"credit note {note.number}", invoice.appcode_id, subject, text)], timezone.now())
    return row


def forget(appcodes: Sequence[int]) -> None:
    """Removes the invoices, credits and mail of generated examples; of others the database lets nothing go. To be called in the
    transaction that removes their ledger, and before it does."""
    of_invoice, of_appcode = {"invoice__appcode__in": appcodes}, {"appcode__in": appcodes}
    for rows in (
        InvoiceCredit.objects.filter(**of_invoice), InvoiceLine.objects.filter(**of_invoice),
        CreditNote.objects.filter(**of_invoice), Invoice.objects.filter(**of_appcode), Mail.objects.filter(**of_appcode),
    ):  # fmt: skip
        rows.delete()
    LedgerEntry.objects.filter(**of_appcode, kind=LedgerEntry.Kind.CREDIT).delete()
    Credit.objects.filter(**of_appcode).delete()


# Proof


def problems(invoice: Invoice) -> list[str]:
    """What is wrong with a closed invoice: its hash, and its lines against the ledger."""
    found = []
    document = invoice.document
    if document.sha256 != invoice.sha256:
        found.append(
            f"{invoice.number}: its rows have the hash {document.sha256}, but {invoice.sha256} was written on it"
        )
    span = Span(invoice.month, 0, invoice.after, invoice.mark)
    made = invoices.lines(_sums(span, invoice.appcode_id).get(invoice.appcode_id, []), invoice.month)
    if [invoices.line_facts(line) for line in made] != [invoices.line_facts(line) for line in document.lines]:
        found.append(f"{invoice.number}: its lines are not what the ledger says")
    found += [f"{note.number}: its hash is wrong" for note in invoice.notes.all() if note.note.sha256 != note.sha256]
    return found
