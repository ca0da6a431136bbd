"""The forms of a credit note and of what invoices state. They parse the input; the actions validate it."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from billing.invoices.issuer import InvoicingSpec
from portal.errors import Invalid
from portal.pages.forms import Words, prose


class CreditNoteForm(forms.Form):
    amount = forms.DecimalField(label="Amount", max_digits=18, decimal_places=2)
    reason = Words(label="Why", help_text="Stands on the credit note.")


class InvoicingForm(forms.Form):
    issuer = prose("Issuer", "Legal name and address, one line each.", required=False, rows=4, most=500)
    tax_number = Words(label="Tax number", required=False)
    tax_name = Words(label="Tax", required=False, help_text="Its name on invoices, like VAT.")
    tax_percent = Words(
        label="Percent",
        required=False,
        help_text="Added to the total of each invoice. Empty: no tax.",
        widget=forms.TextInput(attrs={"inputmode": "decimal", "class": "num"}),
    )
    payment = prose("Payment", "How to pay: a bank account, say.", required=False, rows=3, most=500)
    due_days = forms.IntegerField(
        label="Due after", required=False, help_text="Days from the closing of the month. Empty: invoices have no date."
    )
    bill_to = prose(
        "Addresses of business lines",
        "One business line in each row: example.research: Example Research GmbH; Hauptstr. 1; 10115 Berlin. Those below it "
        "inherit its address.",
        required=False,
        rows=6,
    )

    PATHS: ClassVar = {
        "spec.issuer": "issuer", "spec.taxNumber": "tax_number", "spec.tax.name": "tax_name",
        "spec.tax.percent": "tax_percent", "spec.payment": "payment", "spec.dueDays": "due_days", "spec.billTo": "bill_to",
    }  # fmt: skip

    def manifest(self) -> dict[str, Any]:
        """Raises Invalid for a row of addresses that names no business line, or one that another row names."""
        typed = self.cleaned_data
        tax = {"name": typed["tax_name"], "percent": typed["tax_percent"].strip() or "0"}
        spec = {"issuer": typed["issuer"], "taxNumber": typed["tax_number"], "tax": tax, "payment": typed["payment"]}
        return {"spec": {**spec, "dueDays": typed["due_days"], "billTo": _addresses(typed["bill_to"])}}


def shown(spec: InvoicingSpec) -> dict[str, Any]:
    """The form's values."""
    rows = (f"{line}: {'; '.join(address.splitlines())}" for line, address in sorted(spec.bill_to.items()))
    return {
        "issuer": spec.issuer, "tax_number": spec.tax_number, "tax_name": spec.tax.name,
        "tax_percent": f"{spec.tax.percent.normalize():f}" if spec.tax.percent else "", "payment": spec.payment,
        "due_days": spec.due_days, "bill_to": "\n".join(rows),
    }  # fmt: skip


def _addresses(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for row in filter(str.strip, text.splitlines()):
        line, colon, address = (part.strip() for part in row.partition(":"))
        if not (line and colon and address):
            raise Invalid.at("spec", "billTo", message=f"“{row.strip()[:60]}” has no business line before a colon.")
        if line in found:
            raise Invalid.at("spec", "billTo", message=f"{line} is there twice.")
        found[line] = "\n".join(part.strip() for part in address.split(";"))
    return found
