"""Pages of budgets: the list, one budget with this month's steps, and the notices that other pages fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_POST, require_safe

from billing.budgets import access, actions, figures
from billing.budgets.forms import BudgetForm, BudgetReasonForm
from billing.budgets.models import Budget
from portal.access import MANAGE, appcodes_for, require_somewhere
from portal.errors import Conflict, Invalid
from portal.models import User
from portal.pages.appcodes import attempt, get_or_post, person
from portal.pages.forms import show_errors
from portal.pages.layout import page_of, selected_appcode, words

PATHS = {
    "amount": "amount", "policy": "policy", "countdownMinutes": "countdown", "appcode": "appcode",
    "businessLine": "business_line",
}  # fmt: skip
EVENTS = 30


@require_safe
def budget_list(request: HttpRequest) -> HttpResponse:
    """The budgets that the user may see, each with its cost so far and its forecast."""
    user, now, typed = person(request), timezone.now(), words(request)
    rows = _matching(access.budgets_for(user), typed)
    if code := selected_appcode(request):
        rows = rows.filter(Q(appcode__code=code) | Q(org_node__isnull=False))
    found, following = page_of(request, rows, "id")
    without = appcodes_for(user, MANAGE).filter(budget=None)
    context = {
        "rows": access.shown(found, now), "next_cursor": following, "search": typed, "now": now, "chosen": code,
        "may_add": user.is_administrator or without.exists(),
    }  # fmt: skip
    return render(request, "billing/budgets.html", context)


def _matching(rows: QuerySet[Budget], typed: str) -> QuerySet[Budget]:
    for word in typed.split():
        rows = rows.filter(
            Q(appcode__code__icontains=word) | Q(org_node__path__icontains=word) | Q(org_node__title__icontains=word)
        )
    return rows


@get_or_post
def new_budget(request: HttpRequest) -> HttpResponse:
    user = person(request)
    require_somewhere(user, MANAGE)
    given = {"appcode": words(request, "appcode"), "business_line": words(request, "business_line")}
    form = BudgetForm(request.POST if request.method == "POST" else None, user=user, initial=given)
    if request.method == "POST" and form.is_valid():
        typed = form.cleaned_data
        try:
            scope = actions.scope_of(typed["appcode"], typed.get("business_line", ""), user)
            made = actions.add(scope, form.asked(), acting_user=user)
        except Invalid as invalid:
            show_errors(form, invalid, PATHS)
        else:
            messages.success(request, f"{made} has a budget.")
            return redirect("budget", made.pk)
    return render(request, "billing/budget_new.html", {"form": form}, status=422 if form.errors else 200)


@get_or_post
def budget(request: HttpRequest, pk: int) -> HttpResponse:
    user = person(request)
    row = access.budget_for(user, pk)
    changeable = access.may_change(user, row)
    form = BudgetForm(request.POST if request.method == "POST" else None, user=user, budget=row)
    if request.method == "POST" and form.is_valid():
        try:
            actions.change(row, form.asked(), acting_user=user)
        except Invalid as invalid:
            show_errors(form, invalid, PATHS)
        else:
            messages.success(request, "The budget was changed.")
            return redirect("budget", pk)
    return _page(request, user, row, form if changeable else None, BudgetReasonForm())


def _page(
    request: HttpRequest, user: User, row: Budget, form: BudgetForm | None, reason: BudgetReasonForm
) -> HttpResponse:
    [shown] = access.shown([row], timezone.now())
    context: dict[str, Any] = {
        "it": shown, "budget": row,
        "form": form, "reason_form": reason,
        "events": access.events_of(row)[:EVENTS],
        "why": access.reason(row, figures.month_of(shown.now)),
    }  # fmt: skip
    wrong = bool((form and form.errors) or reason.errors)
    return render(request, "billing/budget.html", context, status=422 if wrong else 200)


@require_POST
def remove_budget(request: HttpRequest, pk: int) -> HttpResponse:
    user = person(request)
    row = access.budget_for(user, pk)
    name = str(row)
    if attempt(request, lambda: actions.remove(row, acting_user=user), f"{name} has no budget any more."):
        return redirect("budgets")
    return redirect("budget", pk)


@require_POST
def lift_budget(request: HttpRequest, pk: int) -> HttpResponse:
    said = "Lifted: nothing is blocked or stopped by it until the month is over."
    return _with_reason(request, pk, actions.lift, said)


@require_POST
def pause_budget(request: HttpRequest, pk: int) -> HttpResponse:
    return _with_reason(request, pk, actions.pause, "Paused: it tells and does nothing.")


def _with_reason(request: HttpRequest, pk: int, act: Callable[..., None], done: str) -> HttpResponse:
    """Runs an administrator's action that requires a reason."""
    user = person(request)
    row = access.budget_for(user, pk)
    form = BudgetReasonForm(request.POST)
    form.full_clean()
    try:
        act(row, form.cleaned_data.get("reason", ""), acting_user=user)
    except Conflict as conflict:
        messages.error(request, str(conflict))
    except Invalid as invalid:
        show_errors(form, invalid, {"reason": "reason"})
        return _page(request, user, row, BudgetForm(None, user=user, budget=row), form)
    else:
        messages.success(request, done)
    return redirect("budget", pk)


@require_POST
def enforce_budget(request: HttpRequest, pk: int) -> HttpResponse:
    user = person(request)
    row = access.budget_for(user, pk)
    attempt(request, lambda: actions.enforce(row, acting_user=user), "It counts again.")
    return redirect("budget", pk)


@require_POST
def resume_budget(request: HttpRequest, pk: int) -> HttpResponse:
    user = person(request)
    row = access.budget_for(user, pk)
    attempt(request, lambda: actions.resume(row, acting_user=user), "It counts again.")
    return redirect("budget", pk)


@require_safe
@conditional_page
def notices(request: HttpRequest) -> HttpResponse:
    """A fragment for other pages: measures announced and taken for the selected appcodes."""
    found = access.notices(person(request), selected_appcode(request))
    return render(request, "billing/_budget_notices.html", {"notices": found})
