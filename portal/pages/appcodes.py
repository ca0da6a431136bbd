"""Pages of appcodes, and fragments of the frame. Thin: parse, access, action, render."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import conditional_page, require_GET, require_http_methods, require_POST, require_safe

from portal import access, extension_points
from portal.access import MANAGE
from portal.actions import appcodes as appcodes_actions
from portal.actions import members as members_actions
from portal.actions import requests as requests_actions
from portal.errors import Conflict, Invalid, sentence
from portal.models import STANDINGS, Appcode, Membership, QuotaRequest, User
from portal.pages import decisions, layout
from portal.pages.forms import (
    AppcodeForm,
    DecisionForm,
    MemberForm,
    RequestForm,
    TermsForm,
    show_errors,
)
from portal.terms import day

GPU_CACHE_SECONDS = 5
SWITCHER_LIMIT = 30
ACTIVITY = 20
NOTICES = 5
# Requests that the page no longer shows; the activity list has them.
GONE = (QuotaRequest.State.APPROVED, QuotaRequest.State.WITHDRAWN)

get_or_post = require_http_methods(["GET", "HEAD", "POST"])


def person(request: HttpRequest) -> User:
    """The signed-in user; the middleware guarantees one."""
    assert isinstance(request.user, User)
    return request.user


def safe_next(request: HttpRequest, default: str = "/") -> str:
    """The `next` parameter of the form or URL if it is a page of ours, otherwise `default`."""
    target = request.POST.get("next") or request.GET.get("next", "")
    return target if url_has_allowed_host_and_scheme(target, {request.get_host()}) else default


def attempt(request: HttpRequest, action: Callable[[], Any], done: str = "") -> bool:
    """Runs a button's action and shows its result as a message, if there is one to show; field errors become one sentence."""
    try:
        action()
    except (Conflict, Invalid) as error:
        messages.error(request, sentence(error))
        return False
    if done:
        messages.success(request, done)
    return True


# The frame


@require_GET
@never_cache
def gpus(request: HttpRequest) -> HttpResponse:
    """GPUs in use and quota for the switcher's selection; cached for GPU_CACHE_SECONDS."""
    user, code = person(request), layout.selected_appcode(request)
    key = f"gpus:{user.pk}:{code}"
    known: dict[str, Any] | None = cache.get(key)
    if known is None:
        appcodes = access.appcodes_for(user).filter(state=Appcode.State.ACTIVE)
        appcodes = appcodes.filter(code=code) if code else appcodes
        counter = extension_points.gpu_use.only
        use = counter(appcodes) if counter else None
        quota = appcodes.aggregate(sum=Sum("gpu_quota"))["sum"] or 0
        # Users who see all appcodes also get the number of GPUs, because quotas may exceed it.
        pool = extension_points.gpu_pool.only if user.is_administrator and not code else None
        known = {"in_use": use.in_use, "simulated": use.simulated, "quota": quota} if use else {}
        if use and pool:
            known["pool"] = pool()
        cache.set(key, known, GPU_CACHE_SECONDS)
    return render(request, "portal/_gpus.html", {"gpus": known})


@require_GET
@never_cache
def appcode_menu(request: HttpRequest) -> HttpResponse:
    """The switcher's menu, fetched when it opens. `?appcode=` is the one that a page shows which cannot show all."""
    typed = layout.words(request, "words")
    found = layout.matching(access.appcodes_for(person(request)), typed, "code", "name")
    shown = list(found[: SWITCHER_LIMIT + 1])
    context = {
        "appcodes": shown[:SWITCHER_LIMIT],
        "more": len(shown) > SWITCHER_LIMIT,
        "words": typed,
        "one_appcode": "appcode" in request.GET,
    }
    return render(request, "portal/_appcode_menu.html", context | {"next": safe_next(request)})


@require_POST
def switch_appcode(request: HttpRequest) -> HttpResponse:
    """Stores the switcher's choice in the session; "" is all."""
    code = request.POST.get("appcode", "").replace("\0", "")
    if code:
        access.appcode_for(person(request), code)
    request.session["appcode"] = code
    return HttpResponseRedirect(safe_next(request).partition("?")[0])


@require_POST
@login_not_required
def set_theme(request: HttpRequest) -> HttpResponse:
    """For browsers without JavaScript; otherwise the page sets the same cookie itself."""
    chosen = request.POST.get("theme", "auto")
    chosen = chosen if chosen in layout.THEMES else "auto"
    response = HttpResponseRedirect(safe_next(request))
    response.set_cookie(layout.THEME_COOKIE, chosen, max_age=365 * 86400, samesite="Lax", secure=request.is_secure())
    return response


# Appcodes


def with_members(appcodes: QuerySet[Appcode], user: User) -> QuerySet[Appcode]:
    """Adds `my_role` and `member_count`, so that a list needs no query per row."""
    mine = Membership.objects.filter(appcode=OuterRef("pk"), user=user).values("role")
    counts = (
        Membership.objects.filter(appcode=OuterRef("pk"))
        .order_by()
        .values("appcode")
        .annotate(n=Count("pk"))
        .values("n")
    )
    return appcodes.annotate(my_role=Subquery(mine[:1]), member_count=Subquery(counts))


@require_GET
def appcodes(request: HttpRequest) -> HttpResponse:
    user, state = person(request), layout.words(request, "state")
    rows = with_members(access.appcodes_for(user).select_related("request"), user)
    rows = with_standing(rows, state) if state in STANDINGS else rows
    rows = layout.matching(rows, layout.words(request), "code", "name", "remark", "org_node__path")
    found, following = layout.page_of(request, rows, "code")
    return render(
        request,
        "portal/appcodes.html",
        {
            "appcodes": found,
            "next_cursor": following,
            "states": [(word, word.replace("-", " ").capitalize()) for word in STANDINGS],
        },
    )


def with_standing(appcodes: QuerySet[Appcode], word: str) -> QuerySet[Appcode]:
    """The appcodes whose `standing` is this word."""
    today, states = day(timezone.now()), Appcode.State
    if word in ("active", "expired"):
        over = Q(expires_on__lt=today)
        return appcodes.filter(over if word == "expired" else Q(expires_on=None) | ~over, state=states.ACTIVE)
    if word == states.DISABLED:
        return appcodes.filter(state=states.DISABLED)
    asked = "waiting" if word == states.REQUESTED else word
    return appcodes.filter(state=states.REQUESTED, request__state=asked)


@get_or_post
def new_appcode(request: HttpRequest) -> HttpResponse:
    user = person(request)
    first = {
        "owners": user.username,
        "emails": user.email,
        **TermsForm.shown(requests_actions.new_terms(timezone.now())),
    }
    form = AppcodeForm(request.POST or None, administrator=user.is_administrator, initial=first)
    if request.method == "POST":
        try:
            appcode = appcodes_actions.request_appcode(form.manifest(), acting_user=user)
        except Invalid as error:
            show_errors(form, error, form.PATHS)
        else:
            active = appcode.state == Appcode.State.ACTIVE
            how = "ready" if active else "requested; an administrator will look at it"
            messages.success(request, f"{appcode.code} is {how}.")
            return redirect("appcode", appcode.code)
    return render(request, "portal/appcode_form.html", {"form": form, "prices": extension_points.gpu_prices_of(None)})


@require_GET
def appcode(request: HttpRequest, code: str) -> HttpResponse:
    return appcode_page(request, access.appcode_for(person(request), code))


def appcode_page(
    request: HttpRequest, appcode: Appcode, member_form: MemberForm | None = None, typed: DecisionForm | None = None
) -> HttpResponse:
    """`member_form` and `typed` are rejected forms with their input."""
    user, used, asked = person(request), extension_points.volumes_gib.only, appcode.asked
    order = list(Membership.Role.values)
    members = sorted(
        appcode.memberships.select_related("user"), key=lambda each: (order.index(each.role), each.user.username)
    )
    activity = access.events_for(user).filter(appcode=appcode.code)[:ACTIVITY]
    context = {
        "appcode": appcode, "members": members, "activity": activity, "roles": Membership.Role,
        "may_manage": access.may(user, appcode, MANAGE), "member_form": member_form or MemberForm(),
        "terms": requests_actions.terms_of(appcode), "asked": asked if asked and asked.state not in GONE else None,
        "own": [appcode],
        "used_gib": used([appcode.code]).get(appcode.code, 0) if used else None,
        "cards": decisions.cards([appcode], typed, appcode.code) if user.is_administrator else [],
    }  # fmt: skip
    return render(request, "portal/appcode.html", context)


@get_or_post
def change_appcode(request: HttpRequest, code: str) -> HttpResponse:
    user = person(request)
    appcode = access.appcode_for(user, code, MANAGE)
    form = AppcodeForm(
        request.POST or None,
        administrator=user.is_administrator,
        appcode=appcode,
        initial=AppcodeForm.fields_of(appcode, requests_actions.terms_of(appcode)),
    )
    if request.method == "POST":
        try:
            changed = appcodes_actions.change_appcode(appcode, form.manifest(), acting_user=user)
        except Invalid as error:
            show_errors(form, error, form.PATHS)
        else:
            again = changed.state == Appcode.State.REQUESTED
            messages.success(request, f"{code} is requested again." if again else f"{code} is changed.")
            return redirect("appcode", code)
    context = {"form": form, "appcode": appcode, "prices": extension_points.gpu_prices_of(appcode)}
    if user.is_administrator:
        context["effect"] = decisions.effect_of(appcode, appcode.gpu_quota, appcode.share)
    return render(request, "portal/appcode_form.html", context)


@get_or_post
def request_quota(request: HttpRequest, code: str) -> HttpResponse:
    """Requests other terms for an appcode; for one that was never approved it redirects to changing the whole appcode."""
    user = person(request)
    appcode = access.appcode_for(user, code)
    if not access.may(user, appcode, MANAGE):
        raise PermissionDenied(f"Quota of {code} is asked for by its owners: {', '.join(_owners(appcode))}.")
    if appcode.state == Appcode.State.REQUESTED:
        return redirect("change_appcode", code)
    asked = appcode.asked
    again = asked if asked and (asked.is_open or asked.state == QuotaRequest.State.REFUSED) else None
    first = RequestForm.shown(requests_actions.proposed_terms(appcode, timezone.now()))
    # A refusal that links here passes what is needed; an open request may ask for more.
    for name in ("gpus", "storage"):
        needed = layout.words(request, name)
        if needed.isascii() and needed.isdecimal():
            first[name] = max(int(needed), first[name]) if asked and asked.is_open else int(needed)
    form = RequestForm(request.POST or None, initial={**first, "reason": again.reason if again else ""})
    if request.method == "POST":
        try:
            requests_actions.ask(appcode, form.wanted(), acting_user=user)
        except Invalid as error:
            show_errors(form, error, form.PATHS)
        except Conflict as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, "Your request is sent; a platform administrator decides.")
            return redirect("appcode", code)
    context = {
        "form": form, "appcode": appcode, "again": again, "terms": requests_actions.terms_of(appcode),
        "prices": extension_points.gpu_prices_of(appcode),
    }  # fmt: skip
    return render(request, "portal/appcode_request.html", context)


def _owners(appcode: Appcode) -> list[str]:
    """The names of the owners, at most four."""
    owners = appcode.memberships.filter(role=Membership.Role.OWNER).select_related("user").order_by("user__username")
    return [each.user.display_name for each in owners]


@require_POST
def withdraw_request(request: HttpRequest, code: str) -> HttpResponse:
    user = person(request)
    appcode = access.appcode_for(user, code, MANAGE)
    attempt(request, lambda: requests_actions.withdraw(appcode, acting_user=user), "The request is withdrawn.")
    return redirect("appcode", code)


@require_safe
@conditional_page
def notices(request: HttpRequest) -> HttpResponse:
    """A fragment for other pages: appcodes that expire soon or have expired."""
    code, user = layout.selected_appcode(request), person(request)
    found = access.appcodes_for(user).filter(state=Appcode.State.ACTIVE, expires_on__lte=layout.soon())
    found = found.filter(code=code) if code else found
    mine = set(access.appcodes_for(user, MANAGE).order_by().values_list("pk", flat=True)) if found else set()
    return render(request, "portal/_expiry.html", {"appcodes": found.order_by("expires_on")[:NOTICES], "mine": mine})


@require_POST
def set_member(request: HttpRequest, code: str) -> HttpResponse:
    """Adds a member, changes a role, or with role "" removes a member."""
    user = person(request)
    appcode = access.appcode_for(user, code, MANAGE)
    name, role = request.POST.get("username", "").replace("\0", "").strip(), request.POST.get("role", "")
    try:
        members_actions.set_member(appcode, name, role or None, acting_user=user)
    except Conflict as error:
        messages.error(request, str(error))
    except Invalid as error:
        if request.POST.get("from") != "form":
            messages.error(request, " ".join(item.message for item in error.errors))
        else:
            form = MemberForm(request.POST)
            form.is_valid()
            show_errors(form, error, form.PATHS)
            return appcode_page(request, appcode, form)
    else:
        messages.success(request, f"{name} is {role} now." if role else f"{name} was removed.")
    if not access.appcodes_for(user).filter(pk=appcode.pk).exists():
        return redirect("appcodes")
    return redirect("appcode", code)
