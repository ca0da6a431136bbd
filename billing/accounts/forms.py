"""The form of a credit. It parses the input; the action validates it."""

from __future__ import annotations

from django import forms

from billing.prices.forms import when
from portal.pages.forms import Words


class CreditForm(forms.Form):
    appcode = forms.CharField(
        label="Appcode",
        max_length=63,
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    amount = forms.DecimalField(label="Amount", max_digits=16, decimal_places=2)
    reason = Words(label="Why", help_text="Stands on the invoices that use it.")
    valid_from = when("From (UTC)", "Empty: from now on. A month counts if it holds in any part of it.")
    expires_at = when("Until (UTC)", "Empty: it does not expire.")
