"""A signed-in browser as a user of REST: its own requests, told from those of other sites' pages by the header X-CSRFToken."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict
from django.utils.datastructures import MultiValueDict
from rest_framework.authentication import SessionAuthentication
from rest_framework.request import Request


class BrowserAuthentication(SessionAuthentication):
    """Reads no body to know that: who sends one slowly would hold a thread before a view has asked for a place for it."""

    def enforce_csrf(self, request: Request) -> None:
        asked: Any = request._request
        asked._post, asked._files = QueryDict(), MultiValueDict()
        super().enforce_csrf(asked)
