"""REST of invoices: lists, lines, the hashed document, PDF and CSV, credit notes, and closing of months."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from django.conf import settings
from django.http import Http404, HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.invoices import access, closing, credit_notes
from billing.invoices.issuer import InvoicingManifest
from billing.invoices.models import Closing
from billing.invoices.serializers import (
    ClosingDocument,
    ClosingPage,
    CreditNoteDocument,
    CreditNoteRequest,
    EntryPage,
    InvoiceDocument,
    InvoicePage,
    closing_document,
    credit_note_document,
    entry_document,
    invoice_document,
    invoice_summary,
)
from billing.metering.segments import floor
from billing.periods import MONTH_PATTERN
from portal.access import appcode_for, appcodes_for, require_administrator
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page, text
from portal.api.views import administrator, person
from portal.errors import Invalid
from portal.manifests import parse
from portal.web.downloads import csv_file, download

INVOICING = OpenApiExample(
    "A company in Ireland",
    request_only=True,
    value={
        "kind": "invoicing",
        "spec": {
            "issuer": "Example AI Ltd.\n1 Main Street\nDublin 2", "taxNumber": "IE1234567T",
            "tax": {"name": "VAT", "percent": "23.00"}, "payment": "IBAN IE12 BOFI 9000 0112 3456 78", "dueDays": 30,
            "billTo": {"example.research": "Example Research GmbH\nHauptstr. 1\n10115 Berlin\nDE123456789"},
        },
    },
)  # fmt: skip
MONTH = OpenApiParameter("month", str, OpenApiParameter.PATH, pattern=MONTH_PATTERN)


class Invoices(APIView):
    @operation(
        "invoices_list",
        InvoicePage,
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("appcode", str, description="Only of this appcode."),
            OpenApiParameter(
                "month", {"type": "string", "pattern": MONTH_PATTERN}, description="Only of this month, like 2026-10."
            ),
        ],
    )
    def get(self, request: Request) -> Response:
        """Closed invoices of all appcodes that I may see, the latest first"""
        rows = access.invoices_of(appcodes_for(person(request)))
        if code := text(request, "appcode", longest=63):
            rows = rows.filter(code=code)
        if asked := text(request, "month", longest=7):
            try:
                rows = rows.filter(month=dt.date.fromisoformat(f"{asked}-01"))
            except ValueError as error:
                raise Invalid.at("month", message="Give a month like 2026-10.") from error
        return page(request, rows, order="-id", render=invoice_summary)


class OneInvoice(APIView):
    @operation("invoices_read", InvoiceDocument, parameters=[MONTH])
    def get(self, request: Request, code: str, month: dt.date) -> Document:
        """The invoice of a month with its lines, in any state

        Before it is closed it says what has been used so far. `document` of a closed one is what `sha256` is the hash
        of."""
        appcode = appcode_for(person(request), code)
        return invoice_document(access.sheet(appcode, month, floor(timezone.now())))


class InvoicePdf(APIView):
    @operation("invoices_pdf", {(200, "application/pdf"): OpenApiTypes.BINARY}, parameters=[MONTH])
    def get(self, request: Request, code: str, month: dt.date) -> HttpResponse:
        """An invoice on paper"""
        return _file(request, code, month, "pdf")


class InvoiceCsv(APIView):
    @operation("invoices_csv", {(200, "text/csv"): OpenApiTypes.STR}, parameters=[MONTH])
    def get(self, request: Request, code: str, month: dt.date) -> HttpResponse:
        """Lines, credits and credit notes of an invoice as CSV"""
        return _file(request, code, month, "csv")


class InvoiceCanonical(APIView):
    @operation("invoices_document", {(200, "application/json"): OpenApiTypes.OBJECT}, parameters=[MONTH])
    def get(self, request: Request, code: str, month: dt.date) -> HttpResponse:
        """The canonical JSON of a closed invoice, byte for byte as it was hashed"""
        return _file(request, code, month, "document")


class InvoiceLineEntries(APIView):
    @operation("invoices_line_entries", EntryPage, parameters=[MONTH, *PAGE_PARAMETERS])
    def get(self, request: Request, code: str, month: dt.date, place: int) -> Response:
        """The entries of the ledger behind a line of a closed invoice, in their order"""
        appcode = appcode_for(person(request), code)
        row = access.closed(appcode, month)
        line = row.lines.filter(place=place).select_related("invoice").first() if row else None
        if line is None:
            raise Http404(f"{code} has no closed invoice for {month:%B %Y} with a line {place}.")
        return page(request, access.entries(line), order="id", render=entry_document)


class CreditNotes(APIView):
    @operation("credit_notes_issue", {201: CreditNoteDocument}, parameters=[MONTH], request=CreditNoteRequest)
    def post(self, request: Request, code: str, month: dt.date) -> Document:
        """Take back a part of a closed invoice, or all of it

        Administrators only. The invoice itself stays as it is."""
        user = person(request)
        row = access.closed(appcode_for(user, code), month)
        require_administrator(user)
        if row is None:
            raise Http404(f"{code} has no closed invoice for {month:%B %Y}.")
        asked = CreditNoteRequest.model_validate(request.data)
        note = credit_notes.issue(row, asked.amount, asked.reason, acting_user=user)
        return credit_note_document(note)


class Months(APIView):
    @operation(
        "months_list",
        ClosingPage,
        description=f"Administrators only. The grace time is {settings.INVOICE_GRACE}.",
        parameters=PAGE_PARAMETERS,
    )
    def get(self, request: Request) -> Response:
        """Months that are over: closed, or waiting for it"""
        administrator(request)
        return page(request, Closing.objects.all(), order="-id", render=closing_document)


class CloseMonth(APIView):
    @operation("months_close", {202: ClosingDocument}, parameters=[MONTH])
    def post(self, request: Request, month: dt.date) -> Document:
        """End the grace time of a month that is over

        Administrators only. Its invoices are made in the background."""
        row = closing.close_now(month, acting_user=person(request))
        return closing_document(row)


class InvoicingView(APIView):
    @operation("invoicing_read", InvoicingManifest)
    def get(self, request: Request) -> Document:
        """Issuer, tax and payment of invoices to come

        Administrators only."""
        administrator(request)
        return _invoicing()

    @operation("invoicing_change", InvoicingManifest, request=InvoicingManifest, examples=[INVOICING])
    def put(self, request: Request) -> Document:
        """Change issuer, tax and payment

        Administrators only. Replaces all of it; closed invoices stay as they are."""
        user = administrator(request)
        closing.set_invoicing(parse(InvoicingManifest, request.data).spec, acting_user=user)
        return _invoicing()


def _invoicing() -> Document:
    return InvoicingManifest(spec=closing.invoicing()).model_dump(mode="json", by_alias=True)


def _file(request: Request, code: str, month: dt.date, kind: Literal["pdf", "csv", "document"]) -> HttpResponse:
    appcode = appcode_for(person(request), code)
    sheet = access.sheet(appcode, month, floor(timezone.now()))
    name = sheet.document.number if sheet.row else f"{code}-{month:%Y-%m}-{sheet.state}"
    if kind == "pdf":
        # Imported here because it takes 10 MB of memory and is rarely needed.
        from billing.invoices import pdf

        return download(pdf.invoice(sheet), "application/pdf", f"{name}.pdf")
    if kind == "csv":
        return csv_file(name, access.LINE_HEAD, access.line_cells(sheet))
    if sheet.row is None:
        raise Http404("It has no document before it is closed.")
    return download(sheet.document.canonical(), "application/json", f"{name}.json")
