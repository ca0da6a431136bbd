"""Default headers of every response for browsers and caches; a view may override them.

Nearly all responses are for one person, so only the browser may keep them, and only to revalidate live parts by their
ETag. Static files, which are for everybody, set their own lifetime.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    # The portal needs none of these, so an injected script gets none either.
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), serial=(), usb=()",
}


class CompressionMiddleware(GZipMiddleware):
    """Compresses pages and fragments, padded to a random length so that the size reveals no secrets in them (BREACH).
    REST responses are not compressed: they have strong ETags, which a compressed response must not have. Streams and
    files stay as they are."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.streaming or not response.get("Content-Type", "").startswith("text/html"):
            return response
        return super().process_response(request, response)


class HeadersMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.setdefault(
            "Cache-Control", "private, no-cache" if response.has_header("ETag") else "private, no-store"
        )
        for name, value in HEADERS.items():
            response.setdefault(name, value)
        return response
