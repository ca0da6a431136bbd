"""What stands before the web server: requests come through the gateway, and under the portal's own names.

Whoever reaches the web server's port by another way could say in headers what only the gateway may, so the gateway adds a secret
to every request (PORTAL_GATEWAY_SECRET) and what comes without it is refused. Nothing else that a request says of itself is
believed: the scheme is that of PORTAL_ORIGIN, and a Host with another name or port would lead people, by a link in a mail or a
redirect, to a port that a stranger holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port

# Traefik sets X-Portal-Gateway on what it passes on, whatever the client sent (portal/up/programs.py, docker/secrets.sh).
PROOF = "HTTP_X_PORTAL_GATEWAY"


class GatewayMiddleware:
    """Refuses with a sentence what did not come through the gateway (403) or asks for somebody else (421)."""

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
    """Whether it came through the gateway. To be asked once: the proof is for nobody behind, no view and no error report needs
    it."""
    proof = str(request.META.pop(PROOF, ""))
    wanted: str = settings.GATEWAY_SECRET
    return not wanted or secrets.compare_digest(proof.encode(), wanted.encode())


def _ours(request: HttpRequest) -> bool:
    try:
        _, port = split_domain_port(request.get_host())
    except DisallowedHost:
        return False
    return (port or ("443" if settings.SECURE else "80")) in settings.HOST_PORTS


def _refused(status: int, sentence: str) -> HttpResponse:
    return HttpResponse(f"{sentence}\n", status=status, content_type="text/plain; charset=utf-8")
