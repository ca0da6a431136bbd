"""Refuses requests that did not come through the gateway or are not for one of the portal's own names.

A client that reaches the web server's port directly could set headers that only the gateway may set. So the gateway
adds a secret to every request (PORTAL_GATEWAY_SECRET), and requests without it are refused. The scheme comes from
PORTAL_ORIGIN, not from headers. A Host with another name or port is refused: through links in mails and redirects it
would lead people to a stranger's port.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host

# Traefik overwrites X-Portal-Gateway, whatever the client sent (portal/up/programs.py, docker/secrets.sh).
PROOF = "HTTP_X_PORTAL_GATEWAY"


class GatewayMiddleware:
    """Refuses requests that bypassed the gateway (403) or name another host (421)."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not proven(request):
            return _refused(403, f"This is the portal's inner web server. Its address is {settings.PORTAL_ORIGIN}")
        if not _ours(request):
            return _refused(421, f"The portal is not called so. Its address is {settings.PORTAL_ORIGIN}")
        if settings.SECURE:
            request.META["wsgi.url_scheme"] = "https"
        return self.get_response(request)


def proven(request: HttpRequest) -> bool:
    """True if the request came through the gateway. Removes the proof, so that no view and no error report sees it:
    call it once."""
    proof = str(request.META.pop(PROOF, ""))
    wanted: str = settings.GATEWAY_SECRET
    return not wanted or secrets.compare_digest(proof.encode(), wanted.encode())


def _ours(request: HttpRequest) -> bool:
    try:
        return is_ours(request.get_host())
    except DisallowedHost:
        return False


def is_ours(host: str) -> bool:
    """True if `host`, as a Host header has it, is one of the portal's own names at one of its ports."""
    name, port = split_domain_port(host)
    usual = "443" if settings.SECURE else "80"
    return validate_host(name, settings.ALLOWED_HOSTS) and (port or usual) in settings.HOST_PORTS


def _refused(status: int, sentence: str) -> HttpResponse:
    return HttpResponse(f"{sentence}\n", status=status, content_type="text/plain; charset=utf-8")
