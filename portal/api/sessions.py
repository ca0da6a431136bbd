"""Browser sessions as REST authentication; the header X-CSRFToken tells own requests from those of other sites."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict
from django.utils.datastructures import MultiValueDict
from rest_framework.authentication import SessionAuthentication
from rest_framework.request import Request


class BrowserAuthentication(SessionAuthentication):
    """Checks CSRF without reading the body: a slow sender would hold a thread before the view has reserved a place for it."""

    def enforce_csrf(self, request: Request) -> None:
        asked: Any = request._request
        asked._post, asked._files = QueryDict(), MultiValueDict()
        super().enforce_csrf(asked)
