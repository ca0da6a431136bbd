"""Documents of invoices. Money is decimal text, because JSON numbers are not exact."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import Field

from billing.documents import Amount
from billing.invoices import access
from billing.invoices.access import Sheet
from billing.invoices.models import Closing, CreditNote, Invoice
from billing.ledger.models import LedgerEntry
from portal.api.documents import Answer, page_of
from portal.manifests import Strict


class InvoiceSummary(Answer):
    number: str
    appcode: str
    month: str = Field(examples=["2026-10"])
    business_line: str
    currency: str
    subtotal: str
    credited: str = Field(description="Credits that were used up; a negative amount was given back to them.")
    total: str = Field(description="Before tax.")
    tax: str
    taken_back: str = Field(description="Credit notes, with their tax.")
    to_pay: str
    sha256: str
    closed_at: dt.datetime


InvoicePage = page_of("InvoicePage", InvoiceSummary)


class LineDocument(Answer):
    month: str = Field(description="In which it was used; an earlier one than the invoice's is a correction.")
    business_line: str
    sku: str
    price: int | None
    per_hour: str
    discount_percent: str
    quantity: int = Field(description="Unit-seconds: of GPUs, thousandths of a core, MiB.")
    charge: str = Field(description="Exact: 1/460,800,000 of the currency.")
    amount: str = Field(description="Rounded once, half to even.")


class UsedCredit(Answer):
    credit: int
    reason: str
    amount: str = Field(description="A negative one was given back to the credit.")


class LedgerSpan(Answer):
    after: int
    up_to: int


class TaxDocument(Answer):
    name: str
    percent: str


class TermsDocument(Answer):
    issuer: str = Field(description="Name and address, one line each.")
    tax_number: str
    tax: TaxDocument
    payment: str
    due_on: dt.date | None
    bill_to: str


class InvoiceBody(Answer):
    """The hashed content, as canonical JSON."""

    number: str
    appcode: str
    name: str
    business_line: str
    month: str
    currency: str
    closed_at: dt.datetime
    ledger: LedgerSpan
    lines: list[LineDocument]
    credits: list[UsedCredit]
    subtotal: str
    credited: str
    total: str = Field(description="Before tax.")
    terms: TermsDocument | None = Field(default=None, description="Absent, like tax and gross, if invoices state none.")
    tax: str | None = None
    gross: str | None = None


class CreditNoteDocument(Answer):
    number: str
    amount: str = Field(description="Before tax.")
    tax: str
    currency: str
    reason: str
    issued_at: dt.datetime
    sha256: str


class InvoiceDocument(Answer):
    kind: Literal["invoice"] = "invoice"
    state: Literal["open", "closing", "closed"]
    closes_at: dt.datetime | None
    sha256: str | None
    document: InvoiceBody
    credit_notes: list[CreditNoteDocument]
    to_pay: str


class CreditNoteRequest(Strict):
    amount: Amount
    reason: Annotated[str, Field(max_length=300)]


class InvoiceEntryDocument(Answer):
    id: int
    kind: Literal["usage", "reversal", "credit"]
    reverses: int | None
    pod: str
    consumer: str
    labels: dict[str, str | int]
    sku: str
    since: dt.datetime
    until: dt.datetime
    quantity: int
    charge: str


EntryPage = page_of("EntryPage", InvoiceEntryDocument)


class ClosingDocument(Answer):
    month: str
    state: Literal["closing", "closed"]
    due_at: dt.datetime
    closed_at: dt.datetime | None


ClosingPage = page_of("ClosingPage", ClosingDocument)


def invoice_summary(row: Invoice) -> dict[str, Any]:
    to_pay = access.to_pay(row)
    return InvoiceSummary.of(
        row, appcode=row.code, month=f"{row.month:%Y-%m}", subtotal=f"{row.subtotal:.2f}", credited=f"{row.credited:.2f}",
        total=f"{row.total:.2f}", tax=f"{row.tax:.2f}", taken_back=f"{row.gross - to_pay:.2f}", to_pay=f"{to_pay:.2f}",
    ).json_value()  # fmt: skip


def invoice_document(sheet: Sheet) -> dict[str, Any]:
    row = sheet.row
    return {
        "kind": "invoice",
        "state": sheet.state,
        "closesAt": None if sheet.draft is None else f"{sheet.draft.due_at.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
        "sha256": row.sha256 if row else None,
        # The raw facts, so that clients can hash them.
        "document": sheet.document.facts() if row else _open(sheet),
        "creditNotes": [credit_note_document(note) for note in row.notes.all()] if row else [],
        "toPay": f"{sheet.to_pay:.2f}",
    }


def _open(sheet: Sheet) -> dict[str, Any]:
    """An open invoice has no number and covers the ledger up to now."""
    return {**sheet.document.facts(), "number": "", "ledger": {"after": 0, "upTo": 0}}


def credit_note_document(note: CreditNote) -> dict[str, Any]:
    money = {"amount": f"{note.amount:.2f}", "tax": f"{note.tax:.2f}"}
    return CreditNoteDocument.of(note, **money, currency=note.invoice.currency).json_value()


def entry_document(row: LedgerEntry) -> dict[str, Any]:
    return InvoiceEntryDocument.of(row, reverses=row.reverses_id, pod=row.uid, charge=f"{row.charge:.10f}").json_value()


def closing_document(row: Closing) -> dict[str, Any]:
    state = "closed" if row.closed_at else "closing"
    return ClosingDocument.of(row, month=f"{row.month:%Y-%m}", state=state).json_value()
