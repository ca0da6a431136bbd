"""Which ledger entries a month's invoices cover, and the lines that these add up to.

The marks of a closed month and of the month before determine its entries; an open month covers what was posted so far.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import Q

from billing import periods
from billing.invoices.document import Key, Line
from billing.invoices.models import Closing
from billing.ledger.models import LedgerEntry

# The month's own entries, and late ones of earlier months that the previous invoice does not have. `low` skips entries
# posted before the month began.
COVERED = """
SELECT appcode_id, date_trunc('month', since AT TIME ZONE 'UTC')::date, business_line, sku, price_id, per_hour, discount,
    sum(quantity)::bigint, sum(charge)
FROM billing_ledgerentry
WHERE id > %(low)s AND id <= %(mark)s AND kind <> 'credit' AND since < %(until)s AND (since >= %(since)s OR id > %(after)s)
    AND (%(appcode)s::bigint IS NULL OR appcode_id = %(appcode)s)
GROUP BY 1, 2, 3, 4, 5, 6, 7
HAVING sum(quantity) <> 0 OR sum(charge) <> 0
"""
# Above every ledger id, for months without a mark.
ENDLESS = 2**63 - 1


@dataclass(frozen=True)
class Span:
    """The ledger entries that the invoices of `month` cover; see COVERED."""

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


def span_of(closing: Closing) -> Span:
    assert closing.mark is not None
    return Span(closing.month, _low(closing.month), mark_before(closing.month), closing.mark)


def span_so_far(month: dt.date) -> Span:
    """The span of a month, closed or not."""
    closing = Closing.objects.filter(month=month).first()
    unfinished = Closing.objects.filter(month__lt=month, closed_at=None).exists()
    # Only the next invoice to be closed has late entries.
    after = ENDLESS if unfinished else mark_before(month)
    return Span(month, _low(month), after, (closing and closing.mark) or ENDLESS)


def mark_before(month: dt.date) -> int:
    """The mark of the previous month; 0 if there is none."""
    before = Closing.objects.filter(month__lt=month).exclude(mark=None).order_by("-month").first()
    return before.mark or 0 if before else 0


def _low(month: dt.date) -> int:
    """The last mark up to which no entry belongs to this month or a later one."""
    marked = Closing.objects.filter(month__lt=month).exclude(mark=None)
    early = marked.filter(Q(latest=None) | Q(latest__lt=periods.month_of(month).since)).order_by("-month").first()
    return early.mark or 0 if early else 0


def lines_of(span: Span, appcode_id: int | None = None) -> dict[int, list[Line]]:
    """The lines of each appcode in the span, unordered."""
    since, until = span.period.window
    found: dict[int, list[Line]] = {}
    with connection.cursor() as cursor:
        asked = {"low": span.low, "after": span.after, "mark": span.mark, "appcode": appcode_id}
        cursor.execute(COVERED, {**asked, "since": since, "until": until})
        for code, *key, quantity, charge in cursor.fetchall():
            found.setdefault(code, []).append(Line(Key(*key), quantity, charge))
    return found


@contextmanager
def snapshot() -> Iterator[None]:
    """All queries inside see the same moment, so that entries just being posted are neither counted twice nor missed."""
    outermost = not connection.in_atomic_block
    with transaction.atomic():
        if outermost:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield
