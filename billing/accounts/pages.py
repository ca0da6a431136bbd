"""The administrators' page of credits."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from billing.accounts import actions
from billing.accounts.forms import CreditForm
from billing.accounts.models import Credit
from billing.prices.pages import state_of
from portal.access import require_administrator
from portal.errors import Invalid
from portal.models import Appcode
from portal.pages.appcodes import get_or_post, person
from portal.pages.forms import show_errors
from portal.pages.layout import page_of


@get_or_post
def credits_(request: HttpRequest) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    form = CreditForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        typed = form.cleaned_data
        appcode = Appcode.objects.filter(code=typed["appcode"]).first()
        if appcode is None:
            form.add_error("appcode", f"There is no appcode {typed['appcode']}.")
        else:
            asked = (typed["amount"], typed["reason"], typed["valid_from"], typed["expires_at"])
            try:
                actions.give_credit(appcode, *asked, acting_user=user)
            except Invalid as invalid:
                show_errors(form, invalid, {name: name for name in form.fields})
            else:
                messages.success(request, f"{appcode.code} has the credit.")
                return redirect("admin_credits")
    rows, following = page_of(request, actions.credits_of(Credit.objects.all()), "-id")
    now = timezone.now()
    shown = []
    for row in rows:
        left, state = actions.left(row), state_of(row.valid_from, row.expires_at, now)
        shown.append((row, left, "used up" if not left else state))
    context = {"form": form, "rows": shown, "next_cursor": following}
    return render(request, "billing/credits.html", context, status=422 if form.errors else 200)
