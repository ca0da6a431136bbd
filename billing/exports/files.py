"""A month in FOCUS, entry by entry: streamed from one database snapshot to a file in constant memory.

A closed month has the entries that its invoices cover, their credits and their rounding. An open month has what was
posted so far, on no invoice; running usage is posted when it ends or when its month is over. Credit notes are in the
month of their issue.
"""

from __future__ import annotations

import csv
import io
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import IO, Any, Literal

from django.conf import settings
from django.db import connection
from django.db.models import Q

from billing import periods
from billing.exports import focus
from billing.exports.focus import COLUMNS, NUMBERS, TIMES, Account, Bill, Row
from billing.invoices import spans
from billing.invoices.models import CreditNote, Invoice, InvoiceCredit
from billing.ledger.entries import Entry
from billing.ledger.models import LedgerEntry
from billing.money import WIDE
from portal.models import Appcode, OrgNode
from portal.web.downloads import inert

Format = Literal["csv", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "parquet")
CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
# Rows per fetch and per write.
PORTION = 2000
# Row groups of Parquet are larger: readers skip by them.
ROW_GROUP = 20_000
# An export holds a database snapshot, so making or downloading one may take at most this many seconds.
MAX_SECONDS = 15 * 60
# PostgreSQL ends the snapshot of an export that issues no query for this long: its process has stopped.
IDLE_SECONDS = 60
FACTS = (
    "uid", "sku", "since", "until", "quantity", "price_id", "per_hour", "discount", "charge", "appcode_id", "business_line",
    "consumer", "labels",
)  # fmt: skip


def rows(month: date, appcodes: Sequence[int] | None) -> Generator[Row, None, None]:
    """Every row of a month for these appcodes (None: all), ledger entries in ledger order. The snapshot lasts until the
    iterator is exhausted or closed."""
    with spans.snapshot():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = %s", [IDLE_SECONDS * 1000])
        yield from _rows(month, appcodes)


def _rows(month: date, appcodes: Sequence[int] | None) -> Iterator[Row]:
    bill = Bill(periods.month_of(month), settings.CURRENCY)
    mine: dict[str, Any] = {} if appcodes is None else {"appcode__in": list(appcodes)}
    account = _accounts(month, mine)
    bills: dict[int, Bill] = {}
    # The exact sum that rounding still has to make up for, by appcode: one per invoice.
    left: dict[int, Decimal] = {}
    found = Invoice.objects.filter(**mine, month=month).order_by("pk")
    for pk, number, subtotal, currency in found.values_list("appcode_id", "number", "subtotal", "currency"):
        bills[pk], left[pk] = Bill(bill.period, currency, number), subtotal
    for place, kind, *facts in _entries(month, mine):
        entry = Entry(*facts)
        pk = entry.appcode_id
        row = focus.usage(
            entry, account(pk, entry.business_line), bills.get(pk, bill), number=place, kind=kind
        )  # fmt: skip
        if pk in left:
            left[pk] = WIDE.subtract(left[pk], row.BilledCost)
        yield row
    for pk, each in left.items():
        if each:
            yield focus.rounding(each, account(pk), bills[pk])
    of_invoices = {f"invoice__{name}": value for name, value in mine.items()}
    used = InvoiceCredit.objects.filter(**of_invoices, invoice__month=month).order_by("pk")
    for pk, line, amount, reason in used.values_list("invoice__appcode_id", "entry_id", "amount", "reason"):
        yield focus.credit(amount, reason, account(pk), bills[pk], number=line)
    since, until = bill.period.window
    notes = CreditNote.objects.filter(**of_invoices, issued_at__gte=since, issued_at__lt=until).select_related(
        "invoice"
    )
    for note in notes.order_by("pk"):
        on = replace(bill, invoice=note.number, currency=note.invoice.currency)
        of = periods.month_of(note.invoice.month)
        yield focus.credit_note(note.amount, note.reason, account(note.invoice.appcode_id), on, of)


def _entries(month: date, mine: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The entries that `spans.COVERED` sums up, read with a server-side cursor."""
    span = spans.span_so_far(month)
    since, until = span.period.window
    covered = Q(since__gte=since) | Q(pk__gt=span.after)
    found = LedgerEntry.objects.filter(covered, **mine, pk__gt=span.low, pk__lte=span.mark, since__lt=until)
    found = found.exclude(kind=LedgerEntry.Kind.CREDIT).order_by("pk")
    yield from found.values_list("pk", "kind", *FACTS).iterator(PORTION)


def _accounts(month: date, mine: dict[str, Any]) -> Callable[..., Account]:
    """Finds the account by appcode id and business line of the time; without a line it takes the invoice's. Appcodes
    have the code and name of their invoice."""
    named = {pk: (code, name) for pk, code, name in Appcode.objects.order_by().values_list("pk", "code", "name")}
    lines: dict[int, str] = {}
    for pk, code, name, line in Invoice.objects.filter(**mine, month=month).values_list(
        "appcode_id", "code", "name", "business_line"
    ):
        named[pk], lines[pk] = (code, name), line
    titles = dict(OrgNode.objects.exclude(namespace=None).values_list("path", "title"))

    def account(pk: int, line: str | None = None) -> Account:
        line = lines.get(pk, "") if line is None else line
        return Account(*named[pk], line, titles.get(line, ""))

    return account


def chunks(month: date, appcodes: Sequence[int] | None, kind: Format) -> Generator[bytes, None, None]:
    """Yields the file while the snapshot lasts: only for consumers that never wait for a slow reader. Raises
    TimeoutError after MAX_SECONDS."""
    until = time.monotonic() + MAX_SECONDS
    with closing(rows(month, appcodes)) as found:
        for chunk in (csv_chunks if kind == "csv" else parquet_chunks)(found):
            yield chunk
            if time.monotonic() > until:
                raise TimeoutError(f"the export was not made within {MAX_SECONDS // 60} minutes")


class TooLarge(Exception):
    """The export exceeds settings.EXPORT_MAX_BYTES."""


def whole(
    month: date, appcodes: Sequence[int] | None, kind: Format, *, is_gone: Callable[[], bool] = lambda: False
) -> IO[bytes]:
    """The complete file, so that a slow reader never holds a snapshot. The file is unnamed and vanishes when closed.
    Raises TooLarge, TimeoutError as `chunks` does, and ConnectionAbortedError when `is_gone` returns True."""
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    try:
        with closing(chunks(month, appcodes, kind)) as made:
            for chunk in made:
                if file.tell() + len(chunk) > settings.EXPORT_MAX_BYTES:
                    raise TooLarge
                if is_gone():
                    raise ConnectionAbortedError("nobody waits for it any more")
                file.write(chunk)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def csv_chunks(found: Iterator[Row]) -> Iterator[bytes]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for count, row in enumerate(found, 1):
        writer.writerow(focus.text(inert(cell)) for cell in row)
        if count % PORTION == 0:
            yield _taken(out)
    yield _taken(out)


def _taken(out: io.StringIO) -> bytes:
    text = out.getvalue()
    out.seek(0)
    out.truncate()
    return text.encode()


class _Pipe(io.RawIOBase):
    """A write-only file that drops what was taken from it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []
        self.position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def taken(self) -> bytes:
        parts, self.parts = self.parts, []
        return b"".join(parts)


def parquet_chunks(found: Iterator[Row]) -> Iterator[bytes]:
    # It needs 60 MB of memory: import it only for Parquet.
    import pyarrow as pa
    from pyarrow import parquet

    def type_of(name: str) -> Any:
        if name in TIMES:
            return pa.timestamp("us", tz="UTC")
        return pa.decimal128(38, NUMBERS[name]) if name in NUMBERS else pa.string()

    schema = pa.schema(
        [(name, type_of(name)) for name in COLUMNS],
        metadata={"FocusVersion": focus.VERSION, "DataGenerator": focus.PROVIDER},
    )
    pipe = _Pipe()
    with parquet.ParquetWriter(pipe, schema, compression="zstd") as writer:
        group: list[tuple[Any, ...]] = []

        def write() -> bytes:
            columns = zip(*group, strict=True) if group else [()] * len(COLUMNS)
            arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=ROW_GROUP)
            group.clear()
            return pipe.taken()

        for row in found:
            group.append(row)
            if len(group) == ROW_GROUP:
                yield write()
        if group:
            yield write()
    yield pipe.taken()
