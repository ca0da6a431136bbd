"""What every page shows around its content: the person, their appcodes, and where they are."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest


def frame(request: HttpRequest) -> dict[str, Any]:
    return {}
