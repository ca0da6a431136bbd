"""The form of a credit note. It parses the input; the action validates it."""

from __future__ import annotations

from django import forms

from portal.pages.forms import Words


class CreditNoteForm(forms.Form):
    amount = forms.DecimalField(label="Amount", max_digits=18, decimal_places=2)
    reason = Words(label="Why", help_text="Stands on the credit note.")
