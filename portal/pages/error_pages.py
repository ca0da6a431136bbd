"""Error pages: what happened, whether anything was lost, what to do, and an id to quote.

Signed-in users keep the navigation. After a failure (5xx) the page never queries the database, which may be the cause:
if the request does not already hold what the navigation needs, the page is shown without it. Below /api/ the response
is problem details.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError, connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views.decorators.csrf import requires_csrf_token

from portal.api.problems import Unavailable
from portal.pages import layout

log = logging.getLogger(__name__)

# Characters of the suggested search.
LONGEST_GUESS = 60


def oops(
    request: HttpRequest,
    status: int,
    title: str,
    *,
    lost: str,
    advice: str,
    detail: str = "",
    again: str = "",
    search: str | None = None,
) -> HttpResponse:
    """`again` is the URL of a retry button; `search` pre-fills a search field, None shows none."""
    error_id = getattr(request, "error_id", "")
    if request.path.startswith("/api/"):
        problem = {"type": "about:blank", "title": title, "status": status, "detail": detail or advice}
        return JsonResponse(problem | {"instance": error_id}, status=status, content_type="application/problem+json")
    context = {
        "status": status, "title": title, "detail": detail, "lost": lost, "advice": advice, "error_id": error_id, "again": again,
        "search": search, "theme": layout.theme(request),
    }  # fmt: skip
    if status < 500:
        signed_in = hasattr(request, "user") and request.user.is_authenticated
        return render(request, "portal/oops.html" if signed_in else "portal/oops_alone.html", context, status=status)
    try:
        with _no_query():
            if hasattr(request, "user") and request.user.is_authenticated:
                return render(request, "portal/oops.html", context, status=status)
    except Exception:
        log.exception("error id %s: the page of the error has no navigation", error_id)
    return HttpResponse(render_to_string("portal/oops_alone.html", context), status=status)


class _Asked(Exception):
    """The page would have queried the database."""


@contextmanager
def _no_query() -> Iterator[None]:
    def refuse(*_: Any) -> NoReturn:
        raise _Asked

    with connection.execute_wrapper(refuse):
        yield


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return oops(
        request,
        400,
        "The portal could not read this request",
        lost="Nothing was changed.",
        advice="Go back and try again; if it happens again, tell an administrator the reference below.",
    )


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    said = str(exception.args[0]) if isinstance(exception, Http404) and exception.args else ""
    return oops(
        request,
        404,
        "There is no such page",
        lost="",
        # The URL resolver's message is for programmers.
        detail=said if said.endswith(".") else "",
        advice="It may have been deleted, or it belongs to an appcode that you are not a member of: an owner of it can add you.",
        search=_guess(request.path),
    )


def _guess(path: str) -> str:
    """What the user may have looked for: the last non-empty part of the path."""
    return next((part for part in reversed(path.split("/")) if part), "")[:LONGEST_GUESS]


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
    """handler429, which allauth calls after too many wrong passwords."""
    return oops(request, 429, "Too many attempts", lost="Nothing was changed.", advice=advice)


@requires_csrf_token
def form_too_old(request: HttpRequest, reason: str = "") -> HttpResponse:
    """CSRF_FAILURE_VIEW: nearly always a page that was open during a sign-in or sign-out in another tab."""
    return oops(
        request,
        403,
        "This page was too old to be sent",
        lost="Nothing was changed, and what you typed is still in your browser.",
        advice="Load the page again and send it once more. This happens after signing in or out in another tab.",
        again=layout.came_from(request),
    )


def server_error(request: HttpRequest) -> HttpResponse:
    """handler500, with 503 for failures that pass by themselves."""
    number = getattr(request, "error_id", "-")
    log.error("error id %s: %s %s", number, request.method, request.path)
    read = request.method in ("GET", "HEAD")
    failed = sys.exception()
    try:
        again = request.get_full_path() if read else layout.came_from(request)
        # A database that went away may already have committed the change.
        if read or isinstance(failed, Unavailable):
            lost, advice = "", "Try again"
        else:
            lost, advice = (
                " What you just sent may not have been done.",
                "Look whether it was done before you send it again",
            )
        if isinstance(failed, Unavailable | OperationalError | InterfaceError):
            return _unavailable(request, failed, lost, advice, again)
        return oops(
            request,
            500,
            "Something went wrong in the portal",
            lost=f"Your clusters keep running and their data is safe.{lost}",
            advice=f"{advice}. If it happens again, tell an administrator the reference below.",
            again=again,
        )
    except Exception:
        log.exception("the error page could not be shown either")
        sentence = "Something went wrong in the portal. Please try again in a minute."
        return HttpResponse(sentence, status=500, content_type="text/plain")


def _unavailable(request: HttpRequest, failed: Exception, lost: str, advice: str, again: str) -> HttpResponse:
    """503 for a part that does not answer."""
    detail = str(failed) if isinstance(failed, Unavailable) else "The portal's database does not answer."
    response = oops(
        request,
        503,
        "Not available at the moment",
        lost=f"Your clusters keep running and their data is safe.{lost}",
        detail=detail,
        advice=f"{advice}, in a few seconds.",
        again=again,
    )
    response["Retry-After"] = str(Unavailable.wait)
    return response
