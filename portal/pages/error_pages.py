"""What is shown when something went wrong: what happened, whether anything was lost, what to do, and an id to quote.

None of this needs the database: that may be just what went wrong. Below /api/ the same is said as problem details.
"""

from __future__ import annotations

import logging

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import requires_csrf_token

from portal.pages import layout

log = logging.getLogger(__name__)


def oops(request: HttpRequest, status: int, title: str, *, lost: str, advice: str, detail: str = "") -> HttpResponse:
    error_id = getattr(request, "error_id", "")
    if request.path.startswith("/api/"):
        problem = {"type": "about:blank", "title": title, "status": status, "detail": detail or advice}
        return JsonResponse(problem | {"instance": error_id}, status=status, content_type="application/problem+json")
    context = {
        "status": status, "title": title, "detail": detail, "lost": lost, "advice": advice, "error_id": error_id,
        "theme": layout.theme(request),
    }  # fmt: skip
    return render(request, "portal/oops.html", context, status=status)


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return oops(
        request,
        400,
        "The portal could not read this request",
        lost="Nothing was changed.",
        advice="Go back and try again; if it happens again, tell an administrator the id below.",
    )


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    said = str(exception.args[0]) if isinstance(exception, Http404) and exception.args else ""
    return oops(
        request,
        404,
        "There is no such page",
        lost="",
        # What the URL resolver says is for programmers.
        detail=said if said.endswith(".") else "",
        advice="It may have been deleted, or it belongs to an appcode that you are not a member of: an owner of it can add you.",
    )


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return oops(
        request,
        403,
        "You may look at this, but not do that",
        lost="Nothing was changed.",
        detail=str(exception) if isinstance(exception, PermissionDenied) else "",
        advice="Ask an owner of the appcode to do it, or to give you the role that it needs.",
    )


def too_many(
    request: HttpRequest,
    advice: str = "Wait some minutes, then try again. A forgotten password is renewed by an administrator.",
) -> HttpResponse:
    """handler429, which allauth calls when somebody tries passwords."""
    return oops(request, 429, "Too many attempts", lost="Nothing was changed.", advice=advice)


@requires_csrf_token
def form_too_old(request: HttpRequest, reason: str = "") -> HttpResponse:
    """CSRF_FAILURE_VIEW: nearly always a page that was open while somebody signed in or out in another tab."""
    return oops(
        request,
        403,
        "This page was too old to be sent",
        lost="Nothing was changed, and what you typed is still in your browser.",
        advice="Go back, load the page again and send it once more. This happens after signing in or out in another tab.",
    )


def server_error(request: HttpRequest) -> HttpResponse:
    log.error("error id %s: %s %s", getattr(request, "error_id", "-"), request.method, request.path)
    try:
        return oops(
            request,
            500,
            "Something went wrong in the portal",
            lost="Your clusters keep running and their data is safe. What you just sent may not have been done.",
            advice="Look whether it was done before you send it again. If it happens again, tell an administrator the id below.",
        )
    except Exception:
        log.exception("the error page could not be shown either")
        sentence = "Something went wrong in the portal. Please try again in a minute."
        return HttpResponse(sentence, status=500, content_type="text/plain")
