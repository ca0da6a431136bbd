"""Pages for browsers without JavaScript: what a script would load later is rendered into them."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString


def rendered(request: HttpRequest, *args: str, **views: Callable[..., HttpResponse]) -> dict[str, SafeString]:
    """The parts of a page by name. They are pages of ours, so what others wrote is escaped in them."""
    return {name: SafeString(view(request, *args).content.decode()) for name, view in views.items()}
