"""Pages of webhooks and their deliveries, for owners of an appcode, for administrators, and for the user's own webhook. Thin."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

from django.contrib import messages
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.access import require_administrator
from portal.errors import Conflict, Invalid
from portal.models import Appcode, Delivery, Webhook
from portal.pages import layout
from portal.pages.appcodes import attempt, get_or_post, person
from portal.pages.forms import show_errors
from portal.webhooks import access, actions, sending, specs
from portal.webhooks.forms import WebhookForm

# Filters of deliveries, in hours.
SINCE = {"hour": ("Last hour", 1), "day": ("Last day", 24), "week": ("Last week", 24 * 7)}


def page_address(kind: str, webhook: Webhook, *more: Any) -> str:
    """The URL of a page about `webhook`: "webhook", "change_webhook", "delivery", …; see routes."""
    if webhook.appcode:
        return reverse(kind, args=[webhook.appcode.code, webhook.name, *more])
    if not webhook.person_id:
        return reverse(_below(kind, "admin"), args=[webhook.name, *more])
    return _list_address(webhook) if kind == "change_webhook" else reverse(_below(kind, "own"), args=more)


def _below(kind: str, prefix: str) -> str:
    return kind.replace("webhook", f"{prefix}_webhook").replace("delivery", f"{prefix}_delivery")


def _with_last(rows: QuerySet[Webhook]) -> QuerySet[Webhook]:
    """Adds the last delivery's result and the number of waiting ones, without a query per row."""
    newest = Delivery.objects.filter(webhook=OuterRef("pk")).exclude(sent_at=None).order_by("-id")
    waiting = Delivery.objects.filter(webhook=OuterRef("pk"), state=Delivery.State.WAITING).order_by()
    count = waiting.values("webhook").annotate(n=Count("pk")).values("n")
    return rows.annotate(
        last_state=Subquery(newest.values("state")[:1]),
        last_sent_at=Subquery(newest.values("sent_at")[:1]),
        waiting=Subquery(count),
    )


@require_safe
def webhook_list(request: HttpRequest, code: str) -> HttpResponse:
    appcode = access.owner_of(person(request), code)
    rows = _with_last(access.webhooks_of(appcode))
    context = {
        "appcode": appcode,
        "rows": [(row, page_address("webhook", row)) for row in rows],
        "new": reverse("new_webhook", args=[code]),
    }
    return render(request, "portal/webhooks.html", context)


@require_safe
def all_webhooks(request: HttpRequest) -> HttpResponse:
    """Global webhooks and those of every appcode."""
    require_administrator(person(request))
    rows = layout.matching(_with_last(access.all_webhooks()), layout.words(request), "name", "host", "appcode__code")
    found, following = layout.page_of(request, rows, "-id")
    context = {
        "appcode": None,
        "rows": [(row, page_address("webhook", row)) for row in found],
        "next_cursor": following,
        "new": reverse("new_admin_webhook"),
    }
    return render(request, "portal/webhooks.html", context)


@get_or_post
@never_cache
def new_webhook(request: HttpRequest, code: str | None = None) -> HttpResponse:
    """Only the response to the form contains the secret."""
    user = person(request)
    appcode = access.owner_of(user, code)
    form = WebhookForm(_typed(request), everything=appcode is None, initial={"enabled": True, "groups": ["run.*"]})
    if request.method == "POST":
        try:
            webhook, secret = actions.create_webhook(form.manifest(), appcode=appcode, acting_user=user)
        except Invalid as error:
            show_errors(form, error, form.PATHS)
        except Conflict as error:
            form.add_error(None, str(error))
        else:
            return secret_page(request, webhook, secret, new=True)
    return _form_page(request, form, appcode, None)


@get_or_post
def change_webhook(request: HttpRequest, name: str, code: str | None = None) -> HttpResponse:
    user = person(request)
    webhook = access.webhook_for(user, code, name)
    form = WebhookForm(_typed(request), everything=webhook.appcode is None, webhook=webhook)
    if request.method == "POST":
        try:
            actions.change_webhook(webhook, form.manifest(), acting_user=user)
        except Invalid as error:
            show_errors(form, error, form.PATHS)
        except Conflict as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, f"{webhook.title} is saved.")
            return redirect(page_address("webhook", webhook))
    return _form_page(request, form, webhook.appcode, webhook)


def _typed(request: HttpRequest) -> QueryDict | None:
    """The data of a POST, even if it is empty."""
    return request.POST if request.method == "POST" else None


def _form_page(
    request: HttpRequest, form: WebhookForm, appcode: Appcode | None, webhook: Webhook | None
) -> HttpResponse:
    back = page_address("webhook", webhook) if webhook else _addresses_of(appcode)
    return render(
        request,
        "portal/webhook_form.html",
        {"form": form, "appcode": appcode, "webhook": webhook, "list": _addresses_of(appcode), "back": back},
    )


def _list_address(webhook: Webhook) -> str:
    if webhook.person_id:
        return reverse("profile") + "#notifications"
    return _addresses_of(webhook.appcode)


def _addresses_of(appcode: Appcode | None) -> str:
    return reverse("webhooks", args=[appcode.code]) if appcode else reverse("admin_webhooks")


def secret_page(request: HttpRequest, webhook: Webhook, secret: str, *, new: bool) -> HttpResponse:
    context = {
        "webhook": webhook, "appcode": webhook.appcode, "secret": secret, "new": new, "list": _list_address(webhook),
        "address": page_address("webhook", webhook), "until": webhook.old_secret_until,
    }  # fmt: skip
    return render(request, "portal/webhook_secret.html", context)


@require_safe
def one_webhook(request: HttpRequest, name: str | None = None, code: str | None = None) -> HttpResponse:
    """A webhook and its deliveries, latest first, filtered by words, state and time."""
    webhook = access.webhook_for(person(request), code, name)
    rows = access.deliveries_of(webhook)
    if (state := layout.words(request, "state")) in Delivery.State.values:
        rows = rows.filter(state=state)
    if (since := layout.words(request, "since")) in SINCE:
        rows = rows.filter(created_at__gte=timezone.now() - dt.timedelta(hours=SINCE[since][1]))
    rows = layout.matching(rows, layout.words(request), "kind", "event__object", "event__message")
    found, following = layout.page_of(request, rows, "-id")
    context = {
        "webhook": webhook, "appcode": webhook.appcode, "list": _list_address(webhook), "next_cursor": following,
        "rows": [(row, page_address("delivery", webhook, row.uid)) for row in found],
        "states": Delivery.State.values,
        "since": [(key, label) for key, (label, _) in SINCE.items()], "now": timezone.now(),
        "addresses": {verb: page_address(f"{verb}_webhook", webhook) for verb in ("change", "test", "rotate", "delete")},
    }  # fmt: skip
    return render(request, "portal/webhook.html", context)


@require_safe
def delivery(request: HttpRequest, uid: uuid.UUID, name: str | None = None, code: str | None = None) -> HttpResponse:
    """The message, and the result of the last attempt."""
    webhook = access.webhook_for(person(request), code, name)
    row = access.delivery_for(webhook, uid)
    body = specs.body(sending.facts(row.event))
    context = {
        "webhook": webhook, "appcode": webhook.appcode, "delivery": row, "list": _list_address(webhook),
        "address": page_address("webhook", webhook), "again": page_address("again_delivery", webhook, uid),
        "body": json.dumps(json.loads(body), indent=2, ensure_ascii=False), "size": len(body), "now": timezone.now(),
    }  # fmt: skip
    return render(request, "portal/webhook_delivery.html", context)


@require_POST
def again(request: HttpRequest, uid: uuid.UUID, name: str | None = None, code: str | None = None) -> HttpResponse:
    user = person(request)
    webhook = access.webhook_for(user, code, name)
    row = access.delivery_for(webhook, uid)
    attempt(request, lambda: actions.deliver_again(row, acting_user=user), "It is sent again in a moment.")
    return redirect(page_address("delivery", webhook, uid))


@require_POST
def send_test(request: HttpRequest, name: str | None = None, code: str | None = None) -> HttpResponse:
    """Redirects to the delivery, which shows the progress."""
    user = person(request)
    webhook = access.webhook_for(user, code, name)
    try:
        row = actions.send_test(webhook, acting_user=user)
    except Conflict as error:
        messages.error(request, str(error))
        return redirect(page_address("webhook", webhook))
    messages.success(request, "A test is sent in a moment.")
    return redirect(page_address("delivery", webhook, row.uid))


@require_POST
@never_cache
def rotate(request: HttpRequest, name: str | None = None, code: str | None = None) -> HttpResponse:
    user = person(request)
    webhook = access.webhook_for(user, code, name)
    try:
        secret = actions.rotate_secret(webhook, acting_user=user)
    except Conflict as error:
        messages.error(request, str(error))
        return redirect(_list_address(webhook))
    webhook.refresh_from_db()
    return secret_page(request, webhook, secret, new=False)


@require_POST
def delete_webhook(request: HttpRequest, name: str | None = None, code: str | None = None) -> HttpResponse:
    user = person(request)
    webhook = access.webhook_for(user, code, name)
    attempt(request, lambda: actions.delete_webhook(webhook, acting_user=user), f"{webhook.title} is deleted.")
    return redirect(_list_address(webhook))
