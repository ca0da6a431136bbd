"""Health of the portal's programs, for probes and load balancers.

The web server answers /healthz (is it alive?) and /readyz (should it get traffic?). Both are answered before any other
middleware: probes use a pod's address, which is not in ALLOWED_HOSTS, and liveness needs neither session nor database.
The loops have no port; they touch a file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from django.db import Error, connection
from django.http import HttpRequest, HttpResponse

from portal.installation import upgrades

log = logging.getLogger(__name__)


def alive() -> None:
    """Touches PORTAL_ALIVE_FILE, if set: a loop has completed a round."""
    if path := os.environ.get("PORTAL_ALIVE_FILE"):
        Path(path).touch()


class HealthMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self._migrated = False

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path_info == "/healthz":
            return _answer("")
        if request.path_info == "/readyz":
            return _answer(self._unready())
        return self.get_response(request)

    def _unready(self) -> str:
        """Why this server should get no traffic, or ""."""
        try:
            if not self._migrated:
                if sentence := upgrades.why_not_serve(upgrades.noted(connection)):
                    log.warning("not ready: %s", sentence)
                    return sentence
                self._migrated = not upgrades.state_of(connection).pending
                return "" if self._migrated else "the database has yet to be migrated"
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except Error as error:
            log.warning("not ready: %s", error)
            return "the database is out of reach"
        return ""


def _answer(trouble: str) -> HttpResponse:
    headers = {"Cache-Control": "no-store"}
    return HttpResponse(
        f"{trouble or 'ok'}\n", status=503 if trouble else 200, content_type="text/plain", headers=headers
    )
