"""What every answer says of itself to browsers and caches, unless its view says otherwise.

Nearly all of them are for one person, so nothing keeps them but the browser that asks again and again whether a live part has
changed (it has an ETag). Static files, which are for everybody, say themselves how long.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    # The portal needs none of them, so a script that should ever get into a page has none either.
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), serial=(), usb=()",
}


class CompressionMiddleware(GZipMiddleware):
    """Pages and their parts go compressed, at a length that is partly by chance, so that it tells nothing of secrets in them.

    REST answers do not: theirs are strong ETags, which a compressed answer has no right to. Streams and files are left alone.
    """

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
