"""Reading invoices: lists, one, and the ledger entries behind a line. `portal.access` decides who may see what."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.db.models import Count, F, Q, QuerySet, Sum
from django.http import Http404
from django.utils import timezone

from billing import periods
from billing.invoices import closing, drafts
from billing.invoices.document import Document
from billing.invoices.models import Closing, CreditNote, Invoice, InvoiceLine
from billing.ledger.models import LedgerEntry
from billing.mails import Mail
from billing.money import hours
from billing.sums import access
from billing.sums.access import Usage
from portal.models import Appcode
from portal.pages.layout import sends_mail

# Rows per fetch when all rows are streamed.
PORTION = 2000


@dataclass(frozen=True)
class Sheet:
    """One invoice in any state: `row` once it is closed, `draft` before."""

    document: Document
    row: Invoice | None = None
    draft: drafts.Draft | None = None

    @property
    def state(self) -> str:
        return self.draft.state if self.draft else "closed"

    @property
    def taken_back(self) -> Decimal:
        """The sum of its credit notes, with tax."""
        return sum((note.note.gross for note in self.notes), Decimal("0.00"))

    @property
    def notes(self) -> list[CreditNote]:
        return list(self.row.notes.all()) if self.row else []

    @property
    def tax(self) -> Decimal:
        """The tax on what is to pay."""
        return self.document.tax - sum((note.tax for note in self.notes), Decimal(0))

    @property
    def to_pay(self) -> Decimal:
        return self.document.gross - self.taken_back


def invoices_of(appcodes: QuerySet[Appcode]) -> QuerySet[Invoice]:
    """Adds `taken_back`, the sum of each invoice's credit notes with tax (None without any)."""
    found = Invoice.objects.filter(appcode__in=appcodes.order_by())
    return found.annotate(taken_back=Sum(F("notes__amount") + F("notes__tax"))).select_related("appcode")


def to_pay(row: Invoice) -> Decimal:
    """For a row of `invoices_of`."""
    back: Decimal | None = getattr(row, "taken_back", None)
    return row.gross - (back or Decimal(0))


def less(row: Invoice) -> Decimal:
    """What credits and credit notes take off a row of `invoices_of`."""
    return row.credited + row.gross - to_pay(row)


def sheet(appcode: Appcode, month: dt.date, now: dt.datetime) -> Sheet:
    """The invoice of a month, closed or not. Raises Http404 if there is none and will be none."""
    if row := closed(appcode, month):
        return Sheet(row.document, row=row)
    state = drafts.state_of(month, now)
    if state in ("", "closed"):
        raise Http404(f"{appcode.code} has no invoice for {month:%B %Y}.")
    draft = drafts.draft(appcode, month, now)
    return Sheet(draft.document, draft=draft)


def closed(appcode: Appcode, month: dt.date) -> Invoice | None:
    rows = Invoice.objects.filter(appcode=appcode, month=month).select_related("appcode")
    return rows.prefetch_related("lines", "credits", "notes").first()


@dataclass(frozen=True)
class OpenMonth:
    """A month that is not closed, with each appcode's usage so far, most expensive first. Only invoices state what is
    to pay: they include credits and corrections of earlier months."""

    month: dt.date
    state: str
    due_at: dt.datetime
    rows: list[Usage]

    @property
    def cost(self) -> Decimal:
        return sum((row.amount.cost for row in self.rows), Decimal(0))


def open_months(appcodes: QuerySet[Appcode], now: dt.datetime) -> list[OpenMonth]:
    """The current month and those in their grace time, latest first."""
    this = periods.month_of(now.date().replace(day=1))
    waiting = [(row.month, "closing", row.due_at) for row in Closing.objects.filter(closed_at=None)]
    asked = [(this.since.date(), "open", this.until + closing.grace()), *reversed(waiting)]
    return [
        OpenMonth(month, state, due, access.usage_by_appcode(appcodes, periods.month_of(month), now))
        for month, state, due in asked
    ]


def closed_months(appcodes: QuerySet[Appcode], most: int = 24) -> list[tuple[dt.date, int, Decimal]]:
    """The latest months with invoices: (month, number of invoices, what they ask for less credit notes)."""
    rows = Invoice.objects.filter(appcode__in=appcodes.order_by()).order_by("-month").values("month")
    sums = rows.annotate(count=Count("pk"), sum=Sum(F("total") + F("tax")))[:most]
    notes = Invoice.objects.filter(appcode__in=appcodes.order_by(), notes__isnull=False).order_by().values("month")
    back = {row["month"]: row["back"] for row in notes.annotate(back=Sum(F("notes__amount") + F("notes__tax")))}
    return [(row["month"], row["count"], row["sum"] - back.get(row["month"], 0)) for row in sums]


def entries(line: InvoiceLine) -> QuerySet[LedgerEntry]:
    """The ledger entries that add up to a line of a closed invoice."""
    invoice, month = line.invoice, periods.month_of(line.month)
    rows = LedgerEntry.objects.filter(
        appcode=invoice.appcode_id, pk__lte=invoice.mark, since__gte=month.since, since__lt=month.until, sku=line.sku,
        price_id=line.price_id, per_hour=line.per_hour, discount=line.discount, business_line=line.business_line,
    ).exclude(kind=LedgerEntry.Kind.CREDIT)  # fmt: skip
    return rows if line.month == invoice.month else rows.filter(pk__gt=invoice.after)


@dataclass(frozen=True)
class EntryRow:
    """One entry with its segment, if that still exists."""

    entry: LedgerEntry

    @property
    def seconds(self) -> int:
        return int((self.entry.until - self.entry.since).total_seconds()) * (1 if self.entry.quantity >= 0 else -1)

    @property
    def hours(self) -> Decimal:
        return hours(self.entry.sku, self.entry.quantity)

    @property
    def task(self) -> str:
        labels = self.entry.labels
        return f"{labels.get('role', '')}-{labels.get('index', '')}".strip("-") or self.entry.uid

    @property
    def marks(self) -> list[tuple[str, str]]:
        segment = self.entry.segment
        return [(flag.replace("-", " "), access.NOTES[flag]) for flag in segment.flags] if segment else []


@dataclass(frozen=True)
class Told:
    """The delivery state of an invoice's mail: `state` is a word, `note` a sentence; `again` if it may be retried by hand."""

    state: str
    note: str
    at: dt.datetime | None = None
    again: bool = False


def told(mail: Mail | None) -> Told:
    if mail is None:
        return Told("none", "No mail: the month was over for long when it was closed.")
    if mail.sent_at:
        return Told("sent", f"Sent to {', '.join(mail.sent_to)}", mail.sent_at)
    if not sends_mail():
        return Told("waiting", "Not sent: no mail server is configured (EMAIL_URL).")
    if mail.give_up_at <= timezone.now():
        return Told(
            "failed", f"Not sent, and not tried any more: {mail.error or 'there was no mail server'}", again=True
        )
    if mail.error:
        return Told("failed", f"Not sent yet, it will be tried again: {mail.error}", mail.due_at)
    return Told("waiting", "On its way")


def mail_of(invoice: Invoice) -> Mail | None:
    return Mail.objects.filter(key=closing.mail_key(invoice)).first()


def mails_of(rows: Sequence[Invoice]) -> dict[str, Told]:
    found = {mail.key: mail for mail in Mail.objects.filter(key__in=[closing.mail_key(row) for row in rows])}
    return {row.number: told(found.get(closing.mail_key(row))) for row in rows}


def unsent() -> int:
    return Mail.objects.filter(sent_at=None).filter(~Q(error="") | Q(due_at__lte=timezone.now())).count()


# Columns of CSV files: raw quantities, money with its currency beside it.

LINE_HEAD = (
    "invoice", "state", "appcode", "business_line", "billed_month", "used_month", "sku", "per_hour", "discount_percent",
    "unit_seconds", "hours", "exact_charge", "amount", "currency",
)  # fmt: skip
LIST_HEAD = (
    "invoice", "appcode", "business_line", "month", "subtotal", "credits_used", "total", "tax", "credit_notes", "to_pay",
    "currency", "closed_at", "sha256",
)  # fmt: skip


def line_cells(one: Sheet) -> Iterator[tuple[object, ...]]:
    """Rows of lines, credits, credit notes and tax; their amounts add up to the amount to pay."""
    document = one.document
    head = (document.number, one.state, document.appcode)
    month = f"{document.month:%Y-%m}"
    for line in document.lines:
        key = line.key
        yield (
            *head, key.business_line, month, f"{key.month:%Y-%m}", key.sku, f"{key.per_hour:f}", f"{key.discount:f}",
            line.quantity, f"{line.hours:.6f}", f"{line.exact:.12f}", f"{line.amount:f}", document.currency,
        )  # fmt: skip
    nothing = ("", "", "", "", "")
    for used in document.used:
        what = "credit given back" if used.given_back else "credit"
        yield (
            *head, document.business_line, month, month, f"{what}: {used.reason}", *nothing, f"{-used.amount:f}",
            document.currency,
        )  # fmt: skip
    for note in one.notes:
        yield (
            *head, document.business_line, month, month, f"{note.number}: {note.reason}", *nothing, f"{-note.amount:f}",
            document.currency,
        )  # fmt: skip
    if document.terms and document.terms.tax_percent:
        what = f"tax: {document.terms.tax_name} {document.terms.tax_percent:f} %"
        yield *head, document.business_line, month, month, what, *nothing, f"{one.tax:f}", document.currency


def list_cells(rows: Iterable[Invoice]) -> Iterator[tuple[object, ...]]:
    for row in rows:
        left = to_pay(row)
        yield (
            row.number, row.code, row.business_line, f"{row.month:%Y-%m}", row.subtotal, row.credited, row.total,
            row.tax, row.gross - left, left, row.currency, row.closed_at.isoformat(), row.sha256,
        )  # fmt: skip


ENTRY_HEAD = (
    "entry", "kind", "pod", "cluster", "run", "role", "index", "since", "until", "sku", "unit_seconds", "per_hour",
    "discount_percent", "cost", "currency", "posted_at",
)  # fmt: skip


def entry_cells(rows: Iterable[LedgerEntry], currency: str) -> Iterator[tuple[object, ...]]:
    for row in rows:
        labels = [row.labels.get(name, "") for name in ("cluster", "run", "role", "index")]
        yield (
            row.pk, row.kind, row.uid, *labels, row.since.isoformat(), row.until.isoformat(), row.sku, row.quantity,
            f"{row.per_hour:f}", f"{row.discount:f}", f"{row.amount:.12f}", currency, row.posted_at.isoformat(),
        )  # fmt: skip
