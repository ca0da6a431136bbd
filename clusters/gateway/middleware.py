"""Middleware for the gateway's calls to the portal, and for requests to applications that have no route.

    /gateway/judge     forward-auth for each request to a routed endpoint: may it pass, and with which headers?
    …/judge/nginx      the same for a gateway that understands only yes and no, such as NGINX
    /gateway/trouble   replaces the gateway's own 502 and 504 pages
    <label>.apps.…     everything without a route (yet): explains why, and how to return

It runs before the portal's sessions and pages: portal pages never appear under an application's name, portal sessions are never
read there, and authorization stays cheap."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.utils import timezone

from clusters.gateway import origins, portal_proof, visits
from clusters.gateway.decision import (
    IDLE,
    KEEP,
    NOT_YOURS,
    RESERVED,
    ROUTED,
    SAFE,
    SIGN_IN_AT,
    TICKET,
    Answer,
    Asked,
    Sender,
    back_to,
    decide,
    token_in,
    values_of,
)
from clusters.runs.models import Cluster
from portal.extension_points import ExtensionPoint
from portal.web.gateway import is_ours, proven

# Answers IDLE and KEEP: (cluster, user name, keeps) → status and JSON. A higher layer registers it.
inside: ExtensionPoint[Callable[[Cluster, str, bool], tuple[int, dict[str, Any]]]] = ExtensionPoint()
JUDGE, YES_OR_NO, TROUBLE = "/gateway/judge", "/gateway/judge/nginx", "/gateway/trouble"
# Browsers send a cookie with this prefix only to the host that set it and only over TLS. Pages of other hosts cannot set it.
COOKIE = ("__Host-" if settings.APPS_SCHEME == "https" else "") + "portal-app"
STATE = f"{COOKIE}-state"
POLICY = "default-src 'none'; style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class ApplicationsMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path_info == TROUBLE:
            return _page(
                502, "The program does not answer", "It may be starting again. This page looks for it.", again=2
            )
        if request.path_info in (JUDGE, YES_OR_NO):
            if not proven(request):
                return _plain(403, "This is for the gateway.")
            return judge(_forwarded(request.META)) if request.path_info == JUDGE else yes_or_no(_original(request.META))
        host = str(request.META.get("HTTP_HOST", ""))
        if label := origins.label_of(host):
            if not proven(request):
                return _plain(403, f"This is the portal's inner web server. Its address is {settings.PORTAL_ORIGIN}")
            return absent(_direct(request), label)
        return self.get_response(request)


def judge(asked: tuple[str, Asked]) -> HttpResponse:
    """Answers forward-auth: 2xx lets the request through with these headers; any other answer goes to the client."""
    host, request = asked
    label = origins.label_of(host)
    if not label:
        return _plain(404, NOT_YOURS)
    if request.path.startswith(RESERVED):
        return _reserved(request, label, routed=True)
    sender = _sender(request, label)
    answer = decide(request, sender, COOKIE)
    if answer.what == "let_through":
        if sender.is_use:
            visits.note_use(label)
        return HttpResponse(status=200, headers=answer.headers)
    return _refuse(request, label, answer)


def yes_or_no(asked: tuple[str, Asked]) -> HttpResponse:
    """Returns 200 or 401, because NGINX turns any other status into an error page. NGINX redirects a 401 to SIGN_IN_AT."""
    answer = judge(asked)
    return answer if answer.status_code == 200 else HttpResponse(status=401)


def absent(asked: Asked, label: str) -> HttpResponse:
    """Answers for an endpoint without a route: why, to those who may open it; to others as if it did not exist."""
    if asked.path.startswith(RESERVED):
        return _reserved(asked, label, routed=False)
    answer = decide(asked, _sender(asked, label), COOKIE)
    if answer.what != "let_through":
        return _refuse(asked, label, answer)
    origin = visits.origin_of(label)
    cluster = visits.cluster_at(origin) if origin else None
    if origin is None or cluster is None:
        return _plain(404, NOT_YOURS)
    return waiting(cluster, origin.endpoint, is_visit=asked.is_visit)


def waiting(cluster: Cluster, endpoint: str, *, is_visit: bool) -> HttpResponse:
    """Returns a page with the cluster's state, which reloads itself while the endpoint may still come up."""
    run = cluster.current_run
    where = f"{settings.PORTAL_ORIGIN}/clusters/{cluster.appcode.code}/{cluster.name}"
    again = 0
    if run is None:
        title, text = f"{cluster.name} does not run", "It was never deployed."
    elif cluster.next_by_id:
        title, text, again = f"{cluster.name} is started anew", run.message, 1
    elif run.is_terminal:
        title, text = f"{cluster.name}: {run.phase}", run.message
    elif run.reason == "Ending":
        title, text = f"{cluster.name} is being ended", run.message
    else:
        title, again = f"{cluster.name} is starting", 1
        text = f"Its tasks run; “{endpoint}” does not answer yet." if run.phase == "Running" else run.message
    if not is_visit:
        response = _plain(503, f"{title}. {text}")
        response["Retry-After"] = "1"
        return response
    if run and again:
        text = f"{text}\n{int((timezone.now() - run.created_at).total_seconds())} s so far. It opens here as soon as it answers."
    return _page(503, title, text, again=again, link=where)


def _sender(asked: Asked, label: str) -> Sender:
    if portal_proof.is_ours(asked, label):
        return Sender(token=True, is_use=False, proof=visits.proof_of(label))
    found = visits.sender(token_in(asked), values_of(asked.cookies, COOKIE), label)
    return Sender(found.token, found.person, found.may_open, proof=found.proof)


def _reserved(asked: Asked, label: str, *, routed: bool) -> HttpResponse:
    """Answers the gateway's own paths, which exist on every origin."""
    if asked.path in (IDLE, KEEP) and not routed:
        return _inside(asked, label)
    if asked.path == ROUTED:
        # runs/routing.py checks here whether the gateway has the route.
        return HttpResponse(status=404, headers={"X-Portal-Routed": "yes" if routed else "no"})
    if asked.path == SIGN_IN_AT and asked.method in SAFE:
        return _sent_here(asked, label)
    if asked.path != TICKET or asked.method != "GET":
        return _plain(404, "There is nothing at this address.")
    query = asked.query
    state = next(iter(values_of(asked.cookies, STATE)), "")
    cookie = visits.exchange(query.get("ticket", ""), state, label)
    target = _path_inside(query.get("next", "/"))
    # Without a valid ticket the redirect leads through the portal again, with a fresh state.
    response = HttpResponseRedirect(f"{asked.address}{target}")
    if cookie:
        _set(response, COOKIE, cookie, int(visits.LIFE.total_seconds()))
    response.delete_cookie(STATE)
    response["Referrer-Policy"] = "no-referrer"
    response["Cache-Control"] = "no-store"
    return response


def _inside(asked: Asked, label: str) -> HttpResponse:
    """Answers IDLE and KEEP. The caller is authorized as for any other address of the application."""
    sender = _sender(asked, label)
    answer = decide(replace(asked, uri="/"), sender, COOKIE)
    origin = visits.origin_of(label) if answer.what == "let_through" and sender.person else None
    cluster = visits.cluster_at(origin) if origin else None
    if cluster is None:
        return _plain(answer.status if answer.what == "refuse" else 404, answer.sentence or NOT_YOURS)
    said = next(iter(inside), None)
    if said is None or asked.method != ("GET" if asked.path == IDLE else "POST"):
        return _plain(404, "There is nothing at this address.")
    status, told = said(cluster, sender.person, asked.path == KEEP)
    return JsonResponse(told, status=status, headers={"Cache-Control": "no-store"})


def _sent_here(asked: Asked, label: str) -> HttpResponse:
    """Shows a caller redirected by NGINX the reason for the refusal, or the way to the portal. `portal` is the name under
    which the browser has it open, if that is one of its own (origins.opened_from)."""
    wanted = replace(asked, uri=_path_inside(asked.query.get("rd", "/")))
    answer = decide(wanted, _sender(wanted, label), COOKIE)
    if answer.what == "let_through":
        return HttpResponseRedirect(f"{asked.address}{wanted.uri}")
    host = asked.query.get("portal", "")
    return _refuse(
        wanted, label, answer, f"{urlsplit(settings.PORTAL_ORIGIN).scheme}://{host}" if is_ours(host) else ""
    )


def _path_inside(target: str) -> str:
    """Returns `target` if it is a path on this origin outside RESERVED, else "/". Prevents open redirects."""
    outside = not target.startswith("/") or target.startswith(("//", "/\\", RESERVED))
    return "/" if outside else target


def _refuse(asked: Asked, label: str, answer: Answer, portal: str = "") -> HttpResponse:
    if answer.what == "to_portal":
        state = secrets.token_urlsafe(16)
        query = urlencode({"state": state, "next": back_to(asked)})
        response: HttpResponse = HttpResponseRedirect(f"{portal or settings.PORTAL_ORIGIN}/open/{label}?{query}")
        _set(response, STATE, state, int(visits.TICKET_LIFE.total_seconds()) * 10)
        response["Cache-Control"] = "no-store"
        return response
    if asked.is_visit and answer.status == 404:
        return _page(404, "There is nothing here for you", answer.sentence, link=settings.PORTAL_ORIGIN)
    return _plain(answer.status, answer.sentence)


def _set(response: HttpResponse, name: str, value: str, seconds: int) -> None:
    secure = settings.APPS_SCHEME == "https"
    response.set_cookie(name, value, max_age=seconds, httponly=True, secure=secure, samesite="Lax", path="/")


def _forwarded(meta: Mapping[str, str]) -> tuple[str, Asked]:
    """Parses a forward-auth request. Traefik overwrites these headers, so clients cannot forge them."""
    host = meta.get("HTTP_X_FORWARDED_HOST", "")
    return host, _asked(meta, meta.get("HTTP_X_FORWARDED_METHOD", ""), meta.get("HTTP_X_FORWARDED_URI", ""), host)


def _original(meta: Mapping[str, str]) -> tuple[str, Asked]:
    """Parses NGINX's auth request. NGINX overwrites these two headers, so clients cannot forge them."""
    parts = urlsplit(meta.get("HTTP_X_ORIGINAL_URL", ""))
    uri = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return parts.netloc, _asked(meta, meta.get("HTTP_X_ORIGINAL_METHOD", ""), uri, parts.netloc)


def _direct(request: HttpRequest) -> Asked:
    meta: Mapping[str, str] = request.META
    return _asked(meta, request.method or "", request.get_full_path(), meta.get("HTTP_HOST", ""))


def _asked(meta: Mapping[str, str], method: str, uri: str, host: str) -> Asked:
    return Asked(
        method=method,
        uri=uri,
        address=f"{settings.APPS_SCHEME}://{host}",
        origin=meta.get("HTTP_ORIGIN", ""),
        authorization=meta.get("HTTP_AUTHORIZATION", ""),
        cookies=meta.get("HTTP_COOKIE", ""),
        accept=meta.get("HTTP_ACCEPT", ""),
        socket_key=meta.get("HTTP_SEC_WEBSOCKET_KEY", ""),
        fetch_site=meta.get("HTTP_SEC_FETCH_SITE", ""),
        fetch_mode=meta.get("HTTP_SEC_FETCH_MODE", ""),
        fetch_dest=meta.get("HTTP_SEC_FETCH_DEST", ""),
    )


def _page(status: int, title: str, text: str, *, again: int = 0, link: str = "") -> HttpResponse:
    nonce = secrets.token_urlsafe(12)
    context = {"title": title, "text": text, "again": again, "link": link, "nonce": nonce}
    response = HttpResponse(render_to_string("clusters/gateway/gateway.html", context), status=status)
    response["Content-Security-Policy"] = POLICY.format(nonce=nonce)
    response["Cache-Control"] = "no-store"
    response["X-Content-Type-Options"] = "nosniff"
    response["Referrer-Policy"] = "no-referrer"
    return response


def _plain(status: int, sentence: str) -> HttpResponse:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return HttpResponse(f"{sentence}\n", status=status, content_type="text/plain; charset=utf-8", headers=headers)
