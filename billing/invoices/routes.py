from __future__ import annotations

import datetime as dt

from django.urls import URLPattern, URLResolver, path, register_converter

from billing.invoices import pages


class Month:
    """A path converter: 2026-10 is the first day of that month."""

    regex = r"20[0-9]{2}-(?:0[1-9]|1[0-2])"

    def to_python(self, value: str) -> dt.date:
        return dt.date.fromisoformat(f"{value}-01")

    def to_url(self, value: dt.date) -> str:
        return f"{value:%Y-%m}"


register_converter(Month, "month")

urlpatterns: list[URLPattern | URLResolver] = [
    path("invoices", pages.invoice_list, name="invoices"),
    path("invoices/<slug:code>/<month:month>", pages.invoice, name="invoice"),
    path("invoices/<slug:code>/<month:month>/lines/<int:place>", pages.invoice_line, name="invoice_line"),
    path("invoices/<slug:code>/<month:month>/notes", pages.credit_note, name="credit_note"),
    path("invoices/<slug:code>/<month:month>/mail", pages.send_invoice_again, name="send_invoice_again"),
    path("admin/invoicing", pages.invoicing, name="admin_invoicing"),
    path("admin/months", pages.months, name="admin_months"),
    path("admin/months/<month:month>/close", pages.close_month, name="close_month"),
]
