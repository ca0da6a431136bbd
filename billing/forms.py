"""The form for a new price."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django import forms
from django.core.validators import MinValueValidator


class PriceForm(forms.Form):
    """Limits are those of `actions.add_price`, which judges again."""

    sku = forms.CharField(
        label="What",
        max_length=70,
        help_text="<code>gpu</code> for any model, <code>gpu:MODEL</code> for one, <code>cpu</code> for a core,"
        " <code>memory</code> for a GiB.",
        widget=forms.TextInput(attrs={"list": "skus", "autocomplete": "off", "spellcheck": "false"}),
    )
    per_hour = forms.DecimalField(
        label="Price per hour", max_digits=14, decimal_places=6, validators=[MinValueValidator(Decimal(0))]
    )
    valid_from = forms.DateTimeField(
        label="From (UTC)",
        required=False,
        help_text="Empty: from now on.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"),
        input_formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"],
    )

    def price(self) -> tuple[str, Decimal, dt.datetime | None]:
        """What was asked for, once the form is valid."""
        return self.cleaned_data["sku"], self.cleaned_data["per_hour"], self.cleaned_data["valid_from"]
