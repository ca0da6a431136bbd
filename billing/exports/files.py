"""What a month says in FOCUS, entry by entry: from the database to a file, in constant memory and of one moment.

A closed month has what its invoices cover, their credits and what rounding made of them; a month that is open what has been
posted so far (what still runs is posted when it ends, or when its month is over), on no invoice yet. Credit notes stand in the
month in which they were issued.
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
from portal.files import inert
from portal.models import Appcode, OrgNode

Format = Literal["csv", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "parquet")
CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
# Rows that are read and written at a time.
PORTION = 2000
# Row groups of Parquet are larger: readers skip by them.
ROW_GROUP = 20_000
# An export holds a snapshot of the database; nobody makes one, or reads what was made, for longer than this.
MAX_SECONDS = 15 * 60
# Of those so long between two questions to the database: then whoever makes it has stopped, and the database ends it.
IDLE_SECONDS = 60
FACTS = (
    "uid", "sku", "since", "until", "quantity", "price_id", "per_hour", "discount", "charge", "appcode_id", "business_line",
    "consumer", "labels",
)  # fmt: skip


def rows(month: date, appcodes: Sequence[int] | None) -> Generator[Row, None, None]:
    """Every row of a month for these appcodes (None: all), those of the ledger in its order. In one snapshot, which lasts until
    the last row was taken or the iterator is closed."""
    with spans.snapshot():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = %s", [IDLE_SECONDS * 1000])
        yield from _rows(month, appcodes)


def _rows(month: date, appcodes: Sequence[int] | None) -> Iterator[Row]:
    bill = Bill(periods.month_of(month), settings.CURRENCY)
    mine: dict[str, Any] = {} if appcodes is None else {"appcode__in": list(appcodes)}
    account = _accounts(month, mine)
    bills: dict[int, Bill] = {}
    # What rounding has to make up for, by invoice: as many as there are appcodes.
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
    """What `spans.COVERED` adds up, by a cursor of the server."""
    span = spans.span_so_far(month)
    since, until = span.period.window
    covered = Q(since__gte=since) | Q(pk__gt=span.after)
    found = LedgerEntry.objects.filter(covered, **mine, pk__gt=span.low, pk__lte=span.mark, since__lt=until)
    found = found.exclude(kind=LedgerEntry.Kind.CREDIT).order_by("pk")
    yield from found.values_list("pk", "kind", *FACTS).iterator(PORTION)


def _accounts(month: date, mine: dict[str, Any]) -> Callable[..., Account]:
    """By the number of an appcode and the business line at that time; without one, the invoice's. An appcode's name is what its
    invoice says."""
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
    """The file, piece by piece, while the snapshot lasts: for readers that do not wait for others. Raises TimeoutError when they
    take longer than MAX_SECONDS."""
    until = time.monotonic() + MAX_SECONDS
    with closing(rows(month, appcodes)) as found:
        for chunk in (csv_chunks if kind == "csv" else parquet_chunks)(found):
            yield chunk
            if time.monotonic() > until:
                raise TimeoutError(f"the export was not made within {MAX_SECONDS // 60} minutes")


class TooLarge(Exception):
    """There is no room for so large an export."""


def whole(
    month: date, appcodes: Sequence[int] | None, kind: Format, *, is_gone: Callable[[], bool] = lambda: False
) -> IO[bytes]:
    """The file, made to its end before anybody reads it, so that no reader, however slow, holds a snapshot. It has no name and
    is gone when it is closed. Raises TooLarge beyond settings.EXPORT_MAX_BYTES, TimeoutError as `chunks` does, and
    ConnectionAbortedError when `is_gone` says that nobody waits for it any more."""
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
    """A file that is only written, and forgets what was taken from it."""

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
    # 60 MB of memory that only who asks for Parquet pays for.
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
