"""Forms of a budget. They parse the input; the actions validate it."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from billing.budgets.actions import Asked
from billing.budgets.models import Budget
from portal.access import MANAGE, appcodes_for
from portal.models import OrgNode, User
from portal.pages.forms import Words


class BudgetForm(forms.Form):
    """Adds a budget or changes `budget`. `actions.check` validates the limits again."""

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
        help_text="Months are in UTC, and each starts at zero.",
        widget=forms.NumberInput(attrs={"class": "num", "step": "0.01", "min": "0.01"}),
    )
    policy = forms.ChoiceField(
        label="When it is used up",
        choices=Budget.Policy.choices,
        help_text="It always sends a mail at 50, 80 and 100 %. The output of runs is stored before they are stopped.",
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
        """The submitted values; call it only on a valid form."""
        typed = self.cleaned_data
        return Asked(typed["amount"], typed["policy"], typed["countdown"] * int(typed["unit"]))


class BudgetReasonForm(forms.Form):
    reason = Words(label="Why", help_text="Stands on the page and in the audit log.")
