"""Pages of invoices: the list, one invoice in any state, the ledger entries behind a line, and closing of months."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.db.models import F, Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from billing import mails, periods
from billing.invoices import access, closing, credit_notes
from billing.invoices.access import (
    ENTRY_HEAD,
    LINE_HEAD,
    LIST_HEAD,
    PORTION,
    EntryRow,
    Sheet,
    entry_cells,
    line_cells,
    list_cells,
)
from billing.invoices.forms import CreditNoteForm, InvoicingForm
from billing.invoices.forms import shown as shown_invoicing
from billing.invoices.issuer import InvoicingManifest
from billing.invoices.models import Closing, Invoice
from billing.metering.segments import floor
from portal.access import MANAGE, appcode_for, appcodes_for, may, require_administrator
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import Appcode
from portal.pages.admin import for_administrators
from portal.pages.appcodes import attempt, get_or_post, person
from portal.pages.charts import Columns, draw_columns
from portal.pages.forms import show_errors
from portal.pages.layout import page_of, selected_appcode, sends_mail
from portal.search import Kind
from portal.web.downloads import csv_file, csv_stream, download

ENTRIES = 200
DEAREST = 8
KIND = Kind(
    "Invoices", "file", lambda user: Invoice.objects.filter(appcode__in=appcodes_for(user).order_by().values("pk")),
    lambda found: reverse("invoice", args=[found.under, dt.date.fromisoformat(found.key)]),
    name="number", under="code", state="name", key=F("month"), listing="invoices",
)  # fmt: skip


@require_safe
def invoice_list(request: HttpRequest) -> HttpResponseBase:
    """Closed invoices of the user's appcodes, latest first, below the open ones."""
    appcodes, code = appcodes_for(person(request)), selected_appcode(request)
    appcodes = appcodes.filter(code=code) if code else appcodes
    now = floor(timezone.now())
    rows = access.invoices_of(appcodes)
    months = access.closed_months(appcodes)
    asked = _month_of(request.GET.get("month", ""))
    if asked:
        rows = rows.filter(month=asked)
    if "format" in request.GET:
        name = f"invoices-{asked:%Y-%m}" if asked else "invoices"
        return csv_stream(name, LIST_HEAD, list_cells(rows.order_by("-month", "code").iterator(PORTION)))
    shown, following = page_of(request, rows, "-id")
    told = access.mails_of(shown)
    context = {
        "latest": months[0][0] if months else None,
        "rows": [(row, access.to_pay(row), access.less(row), told[row.number]) for row in shown],
        "taxed": any(row.tax for row in shown),
        "next_cursor": following, "months": months, "month": asked, "chosen": code, "dearest": DEAREST,
        "open": access.open_months(appcodes, now), "now": now,
        "chart": _chart(months[:12]), "sum": next((found for found in months if found[0] == asked), None),
    }  # fmt: skip
    return render(request, "billing/invoices.html", context)


def _chart(months: list[tuple[dt.date, int, Decimal]]) -> Columns | None:
    """Sums by month, oldest first, each a link to its invoices."""
    shown = list(reversed(months))
    if len(shown) < 2:
        return None
    columns = [(f"{month:%b %Y}", {"to pay": total}) for month, _, total in shown]
    urls = [f"{reverse('invoices')}?month={month:%Y-%m}" for month, _, _ in shown]
    return draw_columns("What closed months add up to", columns, unit=settings.CURRENCY, urls=urls)


@require_safe
def invoice(request: HttpRequest, code: str, month: dt.date) -> HttpResponse:
    """One invoice with its mail and proof. `?format=` csv, pdf or, once it is closed, json (the hashed document)."""
    appcode = appcode_for(person(request), code)
    sheet = access.sheet(appcode, month, floor(timezone.now()))
    name = sheet.document.number if sheet.row else f"{code}-{month:%Y-%m}-{sheet.state}"
    match request.GET.get("format", ""):
        case "csv":
            return csv_file(name, LINE_HEAD, line_cells(sheet))
        case "pdf":
            # Imported here because it takes 10 MB of memory and is rarely needed.
            from billing.invoices import pdf

            return download(pdf.invoice(sheet), "application/pdf", f"{name}.pdf")
        case "json":
            if sheet.row is None:
                raise Http404("It has no document before it is closed.")
            return download(sheet.document.canonical(), "application/json", f"{name}.json")
    return _page(request, appcode, sheet, CreditNoteForm())


def _page(request: HttpRequest, appcode: Appcode, sheet: Sheet, form: CreditNoteForm) -> HttpResponse:
    document, period = sheet.document, periods.month_of(sheet.document.month)
    own = [(place, line) for place, line in enumerate(document.lines, 1) if line.key.month == document.month]
    late = [(place, line) for place, line in enumerate(document.lines, 1) if line.key.month != document.month]
    context = {
        "appcode": appcode, "sheet": sheet, "document": document, "row": sheet.row, "draft": sheet.draft, "own": own,
        "late": late, "form": form, "may_manage": may(person(request), appcode, MANAGE),
        "several_lines": len({line.key.business_line for line in document.lines}) > 1,
        "told": access.told(access.mail_of(sheet.row)) if sheet.row else None,
        "usage_query": period.query,
    }  # fmt: skip
    return render(request, "billing/invoice.html", context, status=422 if form.errors else 200)


@require_safe
def invoice_line(request: HttpRequest, code: str, month: dt.date, place: int) -> HttpResponseBase:
    """The ledger entries that a line sums up, each with its segment."""
    row = _closed(request, code, month)
    line = row.lines.filter(place=place).select_related("invoice").first()
    if line is None:
        raise Http404(f"{row.number} has no line {place}.")
    found = access.entries(line)
    if "format" in request.GET:
        cells = entry_cells(found.order_by("pk").iterator(PORTION), row.currency)
        return csv_stream(f"{row.number}-line-{place}", ENTRY_HEAD, cells)
    shown, following = page_of(request, found.select_related("segment"), "id", ENTRIES)
    totals = found.aggregate(quantity=Sum("quantity"), charge=Sum("charge"))
    context = {
        "row": row, "line": line.line, "place": place, "entries": [EntryRow(entry) for entry in shown],
        "next_cursor": following, "complete": (totals["quantity"], totals["charge"]) == (line.quantity, line.charge),
        "usage_query": periods.month_of(line.month).query, "late": line.month != row.month,
    }  # fmt: skip
    return render(request, "billing/invoice_line.html", context)


@require_POST
def credit_note(request: HttpRequest, code: str, month: dt.date) -> HttpResponse:
    user = person(request)
    row = _closed(request, code, month)
    require_administrator(user)
    form = CreditNoteForm(request.POST)
    if form.is_valid():
        try:
            credit_notes.issue(row, form.cleaned_data["amount"], form.cleaned_data["reason"], acting_user=user)
        except Invalid as invalid:
            show_errors(form, invalid, {name: name for name in form.fields})
        else:
            return redirect("invoice", code, month)
    return _page(request, row.appcode, Sheet(row.document, row=row), form)


@require_POST
def send_invoice_again(request: HttpRequest, code: str, month: dt.date) -> HttpResponse:
    """Retries a mail that was given up."""
    row = _closed(request, code, month, manage=True)
    mail = access.mail_of(row)
    if mail is None or mail.sent_at:
        raise Http404("There is no mail that waits.")
    attempt(request, transaction.atomic(lambda: mails.again(mail)), "It will be tried again.")
    return redirect("invoice", code, month)


@require_safe
def months(request: HttpRequest) -> HttpResponse:
    """Which months are closed, and what the others wait for."""
    require_administrator(person(request))
    now = timezone.now()
    closing.plan(now)
    sums = {month: (count, total) for month, count, total in access.closed_months(Appcode.objects.all(), 240)}
    rows = [(row, *sums.get(row.month, (0, Decimal(0)))) for row in Closing.objects.order_by("-month")]
    context = {
        "rows": rows, "now": now, "unsent": access.unsent(), "sends": sends_mail(),
        "grace": closing.grace(), "this": periods.month_of(now.date().replace(day=1)),
    }  # fmt: skip
    return render(request, "billing/months.html", context)


@require_POST
def close_month(request: HttpRequest, month: dt.date) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    done = f"{month:%B %Y} is being closed; its invoices are here in a moment."
    attempt(request, lambda: closing.close_now(month, acting_user=user), done)
    return HttpResponseRedirect(reverse("admin_months"))


@get_or_post
@for_administrators
def invoicing(request: HttpRequest) -> HttpResponse:
    """Issuer, tax and payment of invoices to come."""
    form = InvoicingForm(request.POST or None, initial=shown_invoicing(closing.invoicing()))
    if request.method == "POST" and form.is_valid():
        try:
            manifest = parse(InvoicingManifest, form.manifest())
            closing.set_invoicing(manifest.spec, acting_user=person(request))
        except Invalid as error:
            show_errors(form, error, InvoicingForm.PATHS)
        else:
            messages.success(request, "Saved. Invoices state it from the next closing on; open ones show it now.")
            return redirect("admin_invoicing")
    return render(request, "billing/invoicing.html", {"form": form}, status=422 if form.errors else 200)


def _closed(request: HttpRequest, code: str, month: dt.date, *, manage: bool = False) -> Invoice:
    user = person(request)
    appcode = appcode_for(user, code, MANAGE) if manage else appcode_for(user, code)
    row = access.closed(appcode, month)
    if row is None:
        raise Http404(f"{code} has no closed invoice for {month:%B %Y}.")
    return row


def _month_of(text: str) -> dt.date | None:
    """Parses "2026-10"; None for anything else."""
    try:
        return dt.datetime.strptime(text, "%Y-%m").replace(tzinfo=dt.UTC).date()
    except ValueError:
        return None
