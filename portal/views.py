"""Pages of the frame itself: its fragments, search, theme; and what is shown when something went wrong."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db.models import Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import requires_csrf_token
from django.views.decorators.http import require_GET, require_POST

from portal import access, frame
from portal.models import Appcode, User

log = logging.getLogger(__name__)
GPU_CACHE_SECONDS = 5
SWITCHER_LIMIT = 30
SEARCH_LIMIT = 8


def person(request: HttpRequest) -> User:
    """The signed-in person; the middleware has seen to it that there is one."""
    assert isinstance(request.user, User)
    return request.user


def safe_next(request: HttpRequest, default: str = "/") -> str:
    """Where `?next=` points if that is a page of ours."""
    target = request.GET.get("next", "")
    return target if url_has_allowed_host_and_scheme(target, {request.get_host()}) else default


@require_GET
@never_cache
def gpus(request: HttpRequest) -> HttpResponse:
    """GPUs in use of the quota, over what the switcher shows. Answered from the cache for some seconds."""
    user, code = person(request), frame.selected_appcode(request)
    key = f"gpus:{user.pk}:{code}"
    known: dict[str, Any] | None = cache.get(key)
    if known is None:
        appcodes = access.appcodes_for(user).filter(state=Appcode.State.ACTIVE)
        appcodes = appcodes.filter(code=code) if code else appcodes
        use = frame.gpu_use(appcodes)
        quota = appcodes.aggregate(sum=Sum("gpu_quota"))["sum"] or 0
        known = {"in_use": use.in_use, "simulated": use.simulated, "quota": quota} if use else {}
        cache.set(key, known, GPU_CACHE_SECONDS)
    return render(request, "portal/_gpus.html", {"gpus": known})


@require_GET
@never_cache
def appcode_menu(request: HttpRequest) -> HttpResponse:
    """The switcher's menu, fetched when it is opened."""
    words = request.GET.get("words", "").strip()
    found = access.appcodes_for(person(request))
    found = found.filter(code__icontains=words) if words else found
    shown = list(found[: SWITCHER_LIMIT + 1])
    context = {
        "appcodes": shown[:SWITCHER_LIMIT],
        "more": len(shown) > SWITCHER_LIMIT,
        "words": words,
        "next": safe_next(request),
    }
    return render(request, "portal/_appcode_menu.html", context)


@require_POST
def switch_appcode(request: HttpRequest) -> HttpResponse:
    """Keeps the choice of the switcher in the session; "" is all."""
    code = request.POST.get("appcode", "")
    if code:
        access.appcode_for(person(request), code)
    request.session["appcode"] = code
    target = safe_next(request).partition("?")[0]
    return HttpResponseRedirect(target)


@require_POST
@login_not_required
def set_theme(request: HttpRequest) -> HttpResponse:
    """Without JavaScript; with it the browser sets the same cookie itself."""
    response = HttpResponseRedirect(safe_next(request))
    chosen = request.POST.get("theme", "auto")
    response.set_cookie(
        frame.THEME_COOKIE, chosen if chosen in frame.THEMES else "auto", max_age=365 * 86400, samesite="Lax",
        secure=request.is_secure(),
    )  # fmt: skip
    return response


@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """Everything that one may see and that has these words in its name."""
    words = request.GET.get("q", "").strip()[:100]
    user = person(request)
    groups = [(title, find(user, words, SEARCH_LIMIT)) for title, find in frame.searches().items()] if words else []
    found = [(title, hits) for title, hits in groups if hits]
    return render(request, "portal/search.html", {"words": words, "groups": found})


# What is shown when something went wrong: what happened, whether anything was lost, what to do, and an id to quote.


def oops(request: HttpRequest, status: int, title: str, *, lost: str, advice: str, detail: str = "") -> HttpResponse:
    """An error page, or problem details below /api/. It must not need the database: that may be what went wrong."""
    error_id = getattr(request, "error_id", "")
    if request.path.startswith("/api/"):
        problem = {
            "type": "about:blank",
            "title": title,
            "status": status,
            "detail": detail or advice,
            "instance": error_id,
        }
        return JsonResponse(problem, status=status, content_type="application/problem+json")
    context = {
        "status": status, "title": title, "detail": detail, "lost": lost, "advice": advice, "error_id": error_id,
        "theme": frame.theme(request),
    }  # fmt: skip
    return render(request, "portal/oops.html", context, status=status)


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return oops(
        request, 400, "The portal could not read this request", lost="Nothing was changed.",
        advice="Go back and try again; if it happens again, tell an administrator the id below.",
    )  # fmt: skip


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    said = str(exception.args[0]) if isinstance(exception, Http404) and exception.args else ""
    return oops(
        request, 404, "There is no such page", lost="Nothing was lost.", detail=said if said.endswith(".") else "",
        advice="It may have been deleted, or it belongs to an appcode that you are not a member of. An owner of that appcode can add you.",
    )  # fmt: skip


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    said = str(exception) if isinstance(exception, PermissionDenied) else ""
    return oops(
        request, 403, "You may look at this, but not do that", lost="Nothing was changed.", detail=said,
        advice="Ask an owner of the appcode to do it or to give you the role that it needs.",
    )  # fmt: skip


@requires_csrf_token
def form_too_old(request: HttpRequest, reason: str = "") -> HttpResponse:
    """CSRF_FAILURE_VIEW: nearly always a page that was open while somebody signed in or out in another tab."""
    return oops(
        request, 403, "This page was too old to be sent", lost="Nothing was changed. What you typed is still in your browser.",
        advice="Go back, load the page again and send it once more. This happens after signing in or out in another tab.",
    )  # fmt: skip


def server_error(request: HttpRequest) -> HttpResponse:
    log.error("error id %s: %s %s", getattr(request, "error_id", "-"), request.method, request.path)
    try:
        return oops(
            request, 500, "Something went wrong in the portal",
            lost="Your clusters keep running and their data is safe. What you just sent was probably not done.",
            advice="Look whether it was done before you send it again. If it happens again, tell an administrator the id below.",
        )  # fmt: skip
    except Exception:
        log.exception("the error page could not be shown either")
        return HttpResponse(
            "Something went wrong in the portal. Please try again in a minute.", status=500, content_type="text/plain"
        )


def find_appcodes(user: User, words: str, limit: int) -> list[frame.Hit]:
    found = access.appcodes_for(user).filter(code__icontains=words)[:limit]
    return [frame.Hit(each.code, each.org_node.path, reverse("appcode", args=[each.code])) for each in found]
