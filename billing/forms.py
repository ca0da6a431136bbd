"""Forms of prices, discounts, credits, credit notes and budgets. They read what was typed; the actions judge it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, ClassVar

from django import forms
from django.core.validators import MinValueValidator

from billing.budgets.models import Budget
from billing.budgets.turn import Asked
from portal.access import MANAGE, appcodes_for
from portal.models import OrgNode, User
from portal.pages.forms import Words

# One file of prices; the book of a large organisation has some hundred kilobytes.
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
    """For whom: nothing chosen is everybody."""

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
    """Limits are those of `actions.add_price`, which judges again."""

    sku = what(
        "<code>gpu</code> for any model, <code>gpu:MODEL</code> for one, <code>cpu</code> for a core, <code>memory</code> or"
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
        """What was asked for, once the form is valid."""
        return self.cleaned_data["sku"], self.cleaned_data["per_hour"], self.cleaned_data["valid_from"]


class DiscountForm(ScopeForm):
    sku = what("<code>*</code> for everything, <code>gpu</code> for GPUs of every model, or one of the prices.")
    percent = forms.DecimalField(label="Percent less", max_digits=5, decimal_places=2)
    valid_from = when("From (UTC)", "Empty: from now on.")
    valid_until = when("Until (UTC)", "Empty: until it is ended.")
    reason = Words(label="Why", required=False)
    field_order = ("sku", "percent", "business_line", "appcode", "valid_from", "valid_until", "reason")


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


class CreditNoteForm(forms.Form):
    amount = forms.DecimalField(label="Amount", max_digits=18, decimal_places=2)
    reason = Words(label="Why", help_text="Stands on the credit note.")


class ImportForm(forms.Form):
    """A file, or its text; after a look at what it will do only the text is sent again."""

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


class BudgetForm(forms.Form):
    """A new budget, or the change of `budget`. Limits are those of `budgeting.check`, which judges again."""

    UNITS: ClassVar = (("1", "minutes"), ("60", "hours"))

    appcode = Words(
        label="For an appcode",
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    business_line = Words(label="Or for a business line", required=False, widget=forms.Select())
    amount = forms.DecimalField(
        label="Amount a month",
        max_digits=30,
        help_text="Months are UTC's, and each begins with nothing spent.",
        widget=forms.NumberInput(attrs={"class": "num", "step": "0.01", "min": "0.01"}),
    )
    policy = forms.ChoiceField(
        label="When it is used up",
        choices=Budget.Policy.choices,
        help_text="At 50, 80 and 100 % it tells by mail in any case. Runs that are stopped have their output stored.",
    )
    countdown = forms.IntegerField(
        label="Countdown",
        help_text="Between announcing a step and doing it.",
        widget=forms.NumberInput(attrs={"class": "num", "min": 1}),
    )
    unit = forms.ChoiceField(label="Unit", choices=UNITS)

    def __init__(self, data: Any = None, *, user: User, budget: Budget | None = None, initial: Any = None) -> None:
        minutes = budget.countdown_minutes if budget else 60
        unit = 60 if minutes % 60 == 0 else 1
        filled = {"countdown": minutes // unit, "unit": str(unit), "policy": Budget.Policy.NOTIFY, **(initial or {})}
        if budget:
            filled |= {"amount": budget.amount, "policy": budget.policy}
        super().__init__(data, initial=filled)
        if budget:
            del self.fields["appcode"], self.fields["business_line"]
        elif user.is_administrator:
            lines = OrgNode.objects.exclude(namespace=None).filter(budget=None).values_list("path", "title")
            choices = [(path, f"{title} · {path}" if title else path) for path, title in lines]
            self.fields["business_line"].widget.choices = [("", "–"), *choices]
        else:
            del self.fields["business_line"]
            free = appcodes_for(user, MANAGE).filter(budget=None).order_by("code").values_list("code", flat=True)
            self.fields["appcode"].label = "Appcode"
            self.fields["appcode"].widget = forms.Select(choices=[("", "Choose…"), *((code, code) for code in free)])

    def asked(self) -> Asked:
        """What was asked for, once the form is valid."""
        typed = self.cleaned_data
        return Asked(typed["amount"], typed["policy"], typed["countdown"] * int(typed["unit"]))


class BudgetReasonForm(forms.Form):
    reason = Words(label="Why", help_text="Stands on the page and in the audit log.")
