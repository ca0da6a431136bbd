"""The user's own pages: profile, tokens, notifications, time zone. Thin: parse, access, action, render."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal import extension_points
from portal.access import token_for
from portal.actions import people as people_actions
from portal.actions import tokens as tokens_actions
from portal.errors import Conflict, Invalid
from portal.models import User
from portal.pages import layout
from portal.pages.appcodes import attempt, get_or_post, person
from portal.pages.forms import TokenForm, ZoneForm, show_errors
from portal.profile.bell import lines, read, unread
from portal.profile.forms import NotificationsForm
from portal.profile.notifications import notifications_of, set_notifications
from portal.webhooks import access
from portal.webhooks.views import page_address, secret_page

NEWS_KEPT, NEWS_LATE = dt.timedelta(hours=1), dt.timedelta(minutes=1)


@get_or_post
@never_cache
def profile(request: HttpRequest) -> HttpResponse:
    """The user's data, appcodes and tokens. Only the response to the form contains the text of a new token."""
    user = person(request)
    form, made = TokenForm(request.POST or None), None
    if request.method == "POST" and form.is_valid():
        try:
            token, text = tokens_actions.make_token(
                form.cleaned_data["name"], form.cleaned_data["days"], acting_user=user
            )
        except Invalid as error:
            show_errors(form, error, {"name": "name", "days": "days"})
        except Conflict as error:
            form.add_error(None, str(error))
        else:
            made, form = {"token": token, "text": text}, TokenForm()
    return _page(request, user, form=form, made=made)


def _page(
    request: HttpRequest,
    user: User,
    *,
    form: TokenForm | None = None,
    made: dict[str, Any] | None = None,
    notifications: NotificationsForm | None = None,
) -> HttpResponse:
    webhook = access.own_webhook(user)
    last = access.deliveries_of(webhook).order_by("-id").first() if webhook else None
    context = {
        "form": form or TokenForm(), "made": made, "zone": ZoneForm(initial={"time_zone": user.time_zone}),
        "tokens": user.auth_token_set.order_by("-created"),
        "memberships": user.memberships.select_related("appcode").order_by("appcode__code"),
        "notifications": notifications or NotificationsForm.of(notifications_of(user)),
        "sends_mail": layout.sends_mail(), "webhook": webhook, "last": last,
        "last_address": page_address("delivery", webhook, last.uid) if webhook and last else "",
    }  # fmt: skip
    return render(request, "portal/profile.html", context)


@require_safe
@never_cache
def news(request: HttpRequest) -> JsonResponse:
    """What happened to the user's runs since `?since=` (an ISO time of our clock), for static/portal/notify.js. `now`
    is the next `since` and lies NEWS_LATE back, because a change is committed a while after its timestamp. So some news
    repeat, and the browser detects them by their key. News older than NEWS_KEPT are dropped."""
    now = timezone.now()
    try:
        since = max(dt.datetime.fromisoformat(request.GET.get("since", "")), now - NEWS_KEPT)
    except (ValueError, TypeError):  # absent, or without a zone
        since = now
    user = person(request)
    found = [each for ask in extension_points.news for each in ask(user, user.browser_phases, since)]
    until = found[-1].at if len(found) >= extension_points.NEWS_AT_ONCE else now - NEWS_LATE
    return JsonResponse({"now": until.isoformat(), "news": [dataclasses.asdict(each) for each in found]})


@require_safe
@never_cache
def bell_count(request: HttpRequest) -> HttpResponse:
    """The number of unread lines, a fragment of every page's frame."""
    return render(request, "portal/_bell.html", {"unread": unread(person(request))})


@require_safe
@never_cache
def bell(request: HttpRequest) -> HttpResponse:
    """What ended, was announced or decided, and waits."""
    user = person(request)
    try:
        shown, following = lines(user, request.GET.get("cursor", ""))
    except ValidationError:
        shown, following = lines(user, "")
    context = {"lines": shown, "until": shown[0].news.at if shown else None, "next_cursor": following}
    return render(request, "portal/bell.html", context)


@require_POST
def bell_read(request: HttpRequest) -> HttpResponse:
    """Everything up to the newest line that was shown has been read; what came since has not."""
    now = timezone.now()
    read(person(request), min(_time(request.POST.get("until", "")) or now, now))
    return redirect("bell")


def _time(text: str) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


@get_or_post
@never_cache
def notifications(request: HttpRequest) -> HttpResponse:
    """Notification settings. Only the response to the form contains the secret of a new webhook."""
    user = person(request)
    if request.method != "POST":
        return redirect(reverse("profile") + "#notifications")
    form, secret = NotificationsForm(request.POST), None
    try:
        secret = set_notifications(form.wanted(), acting_user=user)
    except Invalid as error:
        show_errors(form, error, form.PATHS)
    except Conflict as error:
        form.add_error(None, str(error))
    if form.errors:
        return _page(request, user, notifications=form)
    if secret and (webhook := access.own_webhook(user)):
        return secret_page(request, webhook, secret, new=True)
    messages.success(request, "Saved: you are told of your runs as you have chosen.")
    return redirect(reverse("profile") + "#notifications")


@require_POST
def set_zone(request: HttpRequest) -> HttpResponse:
    """The zone in which the user reads and types times."""
    form = ZoneForm(request.POST)
    attempt(
        request,
        lambda: people_actions.set_time_zone(form["time_zone"].value(), acting_user=person(request)),
        f"Times are shown in {form['time_zone'].value() or 'the zone of the browser'}.",
    )
    return redirect("profile")


@require_POST
def revoke_token(request: HttpRequest, token_key: str) -> HttpResponse:
    token = token_for(person(request), token_key)
    attempt(
        request,
        lambda: tokens_actions.revoke_token(token, acting_user=person(request)),
        f"The token “{token.name}” is revoked.",
    )
    return redirect("profile")
