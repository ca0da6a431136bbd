"""Whether a program of the portal lives, for probes and load balancers.

The web server is asked: /healthz, whether it lives; /readyz, whether it should be sent people. They are answered before
anything else of a request happens: a probe comes by an address of its own, which is none of ALLOWED_HOSTS, and needs neither
session nor database to be told that the process lives. The loops, which nobody can ask, touch a file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse

log = logging.getLogger(__name__)


def alive() -> None:
    """A loop has gone round once more: the file PORTAL_ALIVE_FILE, where one is wanted, says when that was."""
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
        """Why nobody should be sent here, "" when all is well."""
        try:
            if not self._migrated:
                self._migrated = not _missing_migrations()
                return "" if self._migrated else "the database has yet to be migrated"
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except Error as error:
            log.warning("not ready: %s", error)
            return "the database is out of reach"
        return ""


def _missing_migrations() -> bool:
    """Those that this version brings; a database that is ahead of it already is fine while versions are exchanged."""
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _answer(trouble: str) -> HttpResponse:
    headers = {"Cache-Control": "no-store"}
    return HttpResponse(
        f"{trouble or 'ok'}\n", status=503 if trouble else 200, content_type="text/plain", headers=headers
    )
