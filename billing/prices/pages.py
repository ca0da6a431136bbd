"""Pages for administrators: the price book with previews of changes, its import and export, and discounts."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from billing.prices import actions, terms
from billing.prices.actions import Import
from billing.prices.book import metered_skus, price_book
from billing.prices.effects import Effect, effect
from billing.prices.file import HEAD
from billing.prices.forms import DiscountForm, ImportForm, PriceForm
from billing.prices.models import Discount, Price
from portal.access import require_administrator
from portal.errors import FieldError, Invalid
from portal.pages.appcodes import attempt, get_or_post, person
from portal.pages.forms import show_errors
from portal.pages.layout import page_of, words
from portal.web.downloads import download

# Appcodes listed in a preview; its sums cover all of them.
MAX_EFFECT = 12
MAX_ROWS = 500
# Suggested besides those of the models in use.
SKUS = ("gpu", "spare-gpu", "urgent-gpu", "cpu", "memory", "storage")
MAX_SHOWN_ERRORS = 50


@get_or_post
def prices(request: HttpRequest) -> HttpResponse:
    """The price book: current, future and past prices. POST adds a price, or with `preview` shows its effect."""
    user = person(request)
    require_administrator(user)
    form = PriceForm(request.POST if request.method == "POST" else None)
    found: Effect | None = None
    if request.method == "POST" and form.is_valid():
        sku, per_hour, valid_from = form.price()
        try:
            scope = actions.scope_of(form.cleaned_data["appcode"], form.cleaned_data["business_line"])
            if "preview" in request.POST:
                found = effect([actions.asked_price(sku, per_hour, valid_from, scope)], timezone.now())
            else:
                actions.add_price(sku, per_hour, valid_from, acting_user=user, scope=scope)
                messages.success(request, f"{sku}: the new price is in the book.")
                return HttpResponseRedirect(reverse("admin_prices"))
        except Invalid as invalid:
            show_errors(form, invalid, {name: name for name in form.fields})
    status = 422 if form.errors else 200
    return render(request, "billing/prices.html", _book(request) | {"form": form, "effect": found}, status=status)


@require_safe
def price_effect(request: HttpRequest, pk: int) -> HttpResponse:
    """The effect of a price in the book that is not in force yet."""
    require_administrator(person(request))
    price = get_object_or_404(Price.objects.select_related("appcode"), pk=pk, valid_from__gt=timezone.now())
    found = effect([price.dated], timezone.now())
    return render(request, "billing/prices.html", _book(request) | {"form": PriceForm(), "effect": found, "of": price})


def _book(request: HttpRequest) -> dict[str, Any]:
    now, dated = timezone.now(), price_book()
    every = Price.objects.select_related("appcode").order_by("sku", "business_line", "appcode__code", "-valid_from")
    typed = words(request)
    rows = list(_for(every, typed)[: MAX_ROWS + 1])
    # The latest price in force for each SKU and scope.
    holding = {
        (row.sku, row.appcode_id, row.business_line): row.pk
        for row in sorted(rows, key=lambda row: row.valid_from)
        if row.valid_from <= now
    }
    history = "history" in request.GET
    shown = [row for row in rows[:MAX_ROWS] if history or row.valid_from > now or row.pk in holding.values()]
    past = len(rows[:MAX_ROWS]) - len(shown)
    return {
        "rows": shown, "now": now, "holding": set(holding.values()), "next_change": dated.next_change(now),
        "past": past, "history": history, "search": typed, "complete": len(rows) <= MAX_ROWS, "max_effect": MAX_EFFECT,
        "skus": sorted({*SKUS, *(row.sku for row in rows), *metered_skus()}),
    }  # fmt: skip


def _for(rows: QuerySet[Price], typed: str) -> QuerySet[Price]:
    for word in typed.split():
        rows = rows.filter(Q(sku__icontains=word) | Q(appcode__code__icontains=word) | Q(business_line__icontains=word))
    return rows


@require_POST
def withdraw_price(request: HttpRequest, pk: int) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    price = get_object_or_404(Price, pk=pk)
    attempt(
        request,
        lambda: actions.withdraw_price(price, acting_user=user),
        f"The price of {price.sku} was taken back.",
    )
    return HttpResponseRedirect(reverse("admin_prices"))


@require_safe
def export_prices(request: HttpRequest) -> HttpResponse:
    require_administrator(person(request))
    return download(actions.exported().encode(), "text/csv; charset=utf-8", "prices.csv")


@get_or_post
def import_prices(request: HttpRequest) -> HttpResponse:
    """Shows first what the file would do (`check`); without `check` it imports everything or nothing."""
    user = person(request)
    require_administrator(user)
    form = ImportForm(request.POST, request.FILES) if request.method == "POST" else ImportForm()
    found: Import | None = None
    wrong: list[FieldError] = []
    if request.method == "POST" and form.is_valid():
        text = form.cleaned_data["text"]
        try:
            if "check" in request.POST:
                found = actions.read_import(text)
                form = ImportForm(initial={"text": text})
            else:
                done = actions.import_prices(text, acting_user=user)
                messages.success(
                    request, f"{len(done.changes)} prices were imported, {done.unchanged} were there already."
                )
                return redirect("admin_prices")
        except Invalid as invalid:
            wrong = invalid.errors
            form = ImportForm(initial={"text": text})
    told = [(".".join(error.path[:1]), error.path[-1], error.message) for error in wrong]
    context = {
        "form": form, "found": found, "wrong": told[:MAX_SHOWN_ERRORS], "more_wrong": len(told) - MAX_SHOWN_ERRORS,
        "effect": effect([change.dated for change in found.changes], timezone.now()) if found and found.changes else None,
        "max_effect": MAX_EFFECT, "columns": ",".join(HEAD), "max_rows": MAX_ROWS,
    }  # fmt: skip
    return render(request, "billing/prices_import.html", context, status=422 if wrong or form.errors else 200)


@get_or_post
def discounts(request: HttpRequest) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    form = DiscountForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        typed = form.cleaned_data
        try:
            scope = actions.scope_of(typed["appcode"], typed["business_line"])
            asked = (typed["sku"], typed["percent"], typed["valid_from"], typed["valid_until"], typed["reason"])
            terms.add_discount(*asked, acting_user=user, scope=scope)
        except Invalid as invalid:
            show_errors(form, invalid, {name: name for name in form.fields})
        else:
            messages.success(request, "The discount is in the book.")
            return redirect("admin_discounts")
    rows, following = page_of(request, Discount.objects.select_related("appcode"), "-id")
    now = timezone.now()
    context = {
        "form": form, "rows": [(row, state_of(row.valid_from, row.valid_until, now)) for row in rows],
        "next_cursor": following, "skus": sorted({"*", *SKUS} | metered_skus()),
    }  # fmt: skip
    return render(request, "billing/discounts.html", context, status=422 if form.errors else 200)


@require_POST
def end_discount(request: HttpRequest, pk: int) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    discount = get_object_or_404(Discount, pk=pk)
    attempt(request, lambda: terms.end_discount(discount, acting_user=user), "The discount does not count any more.")
    return redirect("admin_discounts")


def state_of(since: dt.datetime, until: dt.datetime | None, now: dt.datetime) -> str:
    if since > now:
        return "scheduled"
    return "expired" if until and until <= now else "active"
