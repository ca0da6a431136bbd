"""Forms of prices and discounts. They parse the input; the actions validate it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from django import forms
from django.core.validators import MinValueValidator

from portal.models import OrgNode
from portal.pages.forms import Words

# Bytes; the book of a large organisation has some hundred kilobytes.
MAX_FILE = 1024 * 1024


def when(label: str, help_text: str) -> forms.DateTimeField:
    return forms.DateTimeField(
        label=label,
        required=False,
        help_text=help_text,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"),
        input_formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"],
    )


class ScopeForm(forms.Form):
    """To whom terms apply: everybody if nothing is chosen."""

    business_line = Words(label="For a business line", required=False, widget=forms.Select())
    appcode = Words(
        label="For an appcode",
        required=False,
        help_text="Neither: for everybody.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )

    def __init__(self, data: Any = None, **options: Any) -> None:
        super().__init__(data, **options)
        lines = OrgNode.objects.exclude(namespace=None).values_list("path", "title")
        choices = [(path, f"{title} · {path}" if title else path) for path, title in lines]
        self.fields["business_line"].widget.choices = [("", "–"), *choices]


def what(help_text: str) -> forms.CharField:
    return forms.CharField(
        label="What",
        max_length=70,
        help_text=help_text,
        widget=forms.TextInput(attrs={"list": "skus", "autocomplete": "off", "spellcheck": "false"}),
    )


class PriceForm(ScopeForm):
    """`actions.add_price` validates the limits again."""

    sku = what(
        "<code>gpu</code> for any model, <code>gpu:MODEL</code> for one, the same behind <code>spare-</code> where they may be"
        " taken back and behind <code>urgent-</code> where they come first, <code>cpu</code> for a core, <code>memory</code> or"
        " <code>storage</code> for a GiB."
    )
    per_hour = forms.DecimalField(
        label="Price per hour",
        required=False,
        max_digits=14,
        decimal_places=6,
        help_text="Empty ends a special price: the more general one counts again.",
        validators=[MinValueValidator(Decimal(0))],
    )
    valid_from = when("From (UTC)", "Empty: from now on.")
    field_order = ("sku", "per_hour", "business_line", "appcode", "valid_from")

    def price(self) -> tuple[str, Decimal | None, dt.datetime | None]:
        """The submitted values; call it only on a valid form."""
        return self.cleaned_data["sku"], self.cleaned_data["per_hour"], self.cleaned_data["valid_from"]


class DiscountForm(ScopeForm):
    sku = what(
        "<code>*</code> for everything, <code>gpu</code> for GPUs of every model, <code>spare-gpu</code> for those that may be"
        " taken back, or one of the prices."
    )
    percent = forms.DecimalField(label="Percent less", max_digits=5, decimal_places=2)
    valid_from = when("From (UTC)", "Empty: from now on.")
    valid_until = when("Until (UTC)", "Empty: until it is ended.")
    reason = Words(label="Why", required=False)
    field_order = ("sku", "percent", "business_line", "appcode", "valid_from", "valid_until", "reason")


class ImportForm(forms.Form):
    """A file or its text. After the preview only the text is sent again."""

    file = forms.FileField(
        label="CSV file", required=False, widget=forms.ClearableFileInput(attrs={"accept": ".csv,text/csv"})
    )
    text = forms.CharField(
        label="Or its text",
        required=False,
        strip=False,
        max_length=MAX_FILE,
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false", "class": "mono", "wrap": "off"}),
    )

    def clean(self) -> dict[str, Any]:
        typed: dict[str, Any] = super().clean() or {}
        if file := typed.get("file"):
            if file.size > MAX_FILE:
                self.add_error("file", f"A file of prices has at most {MAX_FILE // 1024} KiB.")
            else:
                try:
                    typed["text"] = file.read().decode("utf-8-sig")
                except UnicodeDecodeError:
                    self.add_error("file", "The file has to be in UTF-8.")
        elif not typed.get("text", "").strip() and "text" not in self.errors:
            self.add_error("file", "Choose a file, or paste its text below.")
        return typed
