from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.db.models import Min

from billing import periods
from billing.invoices import document as invoices_document
from billing.invoices.closing import available_credits, document_of, grace, invoicing, owners_of
from billing.invoices.document import Document, Key, Line
from billing.invoices.models import Closing
from billing.invoices.spans import ENDLESS, Span, lines_of, snapshot, span_so_far
from billing.ledger import entries
from billing.ledger.models import LedgerEntry, MonthlyUsage
from billing.metering.models import UsageSegment
from billing.prices.book import price_book
from billing.prices.models import Ownership
from portal.models import Appcode


@dataclass(frozen=True)
class Draft:
    """An invoice that is open (its month lasts) or closing (its grace time runs). `document` is its content so far."""

    document: Document
    state: str
    due_at: dt.datetime

    @property
    def running(self) -> bool:
        return self.state == "open"


def state_of(month: dt.date, now: dt.datetime) -> str:
    """ "open", "closing" or "closed"; "" for a future month and for one before the first with any usage."""
    if month > now.date():
        return ""
    if periods.month_of(month).until > now:
        return "open"
    closing = Closing.objects.filter(month=month).first()
    if closing is None:
        # The month is over, and the next sweep will add its closing.
        first = MonthlyUsage.objects.aggregate(first=Min("month"))["first"]
        return "closing" if first and first <= month else ""
    return closing.state


def draft(appcode: Appcode, month: dt.date, now: dt.datetime) -> Draft:
    """The invoice of an open month, exact to the second: posted entries and those still to be posted."""
    with snapshot():
        return _draft(appcode, month, now)


def _draft(appcode: Appcode, month: dt.date, now: dt.datetime) -> Draft:
    closing = Closing.objects.filter(month=month).first()
    span = span_so_far(month)
    lines = lines_of(span, appcode.pk).get(appcode.pk, [])
    if span.mark == ENDLESS:
        lines = invoices_document.added(
            (line.key, line.quantity, line.charge) for line in [*lines, *_waiting(appcode, span, now)]
        )
    credits_ = available_credits([appcode.pk], span.period).get(appcode.pk, [])
    owner = owners_of([appcode.pk], span.period.until).get(appcode.pk, "")
    document = document_of(appcode, owner, span, lines, credits_, now, invoicing())
    due = closing.due_at if closing else span.period.until + grace()
    return Draft(document, "open" if span.period.until > now else "closing", due)


def _waiting(appcode: Appcode, span: Span, now: dt.datetime) -> list[Line]:
    """The lines that posting would add until `now`: those of unfinished segments, less what the ledger already has of them."""
    segments = list(UsageSegment.objects.filter(due__appcode_id=appcode.pk))
    if not segments:
        return []
    prices = price_book()
    owners = [row.owner for row in Ownership.objects.filter(appcode=appcode)]
    first = span.month if span.after == ENDLESS else dt.date.min
    rows = [
        (Key.of(line), line.quantity, line.charge)
        for segment in segments
        for line in entries.entries_of(segment.segment, prices, owners, now)
    ]
    posted = LedgerEntry.objects.filter(segment__in=[segment.pk for segment in segments])
    rows += [(Key.of(line.entry), -line.quantity, -line.charge) for line in posted.iterator(2000)]
    return invoices_document.added(row for row in rows if first <= row[0].month <= span.month)
