"""Prometheus metrics at /metrics. They are read from the database at each scrape, so every web server process reports
the same values and a restart loses none.

The portal knows nothing of the apps above it: they register their metrics (`portal.extension_points`). A scraper sends
`Authorization: Bearer PORTAL_METRICS_TOKEN`. This is checked before any other middleware, because a scrape uses a pod's address,
which is not in ALLOWED_HOSTS. Without that token only administrators have access, signed in or by their API token.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator

from django.conf import settings
from django.db import Error, connection, transaction
from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from rest_framework.request import Request
from rest_framework.views import APIView

from portal import extension_points
from portal.access import require_administrator
from portal.api.streams import AnyAccept
from portal.api.views import person

log = logging.getLogger(__name__)

PATH = "/metrics"
# Scrapes must not slow a busy database down.
TIMEOUT = "SET LOCAL statement_timeout = '10s'"


def gauge(name: str, help_: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


class _All(Collector):
    def collect(self) -> Iterator[Metric]:
        for source in extension_points.metrics:
            yield from source()


def text(accept: str) -> HttpResponse:
    """All metrics in the text format that the scraper accepts: Prometheus or OpenMetrics."""
    registry = CollectorRegistry(auto_describe=False)
    # Registering runs no query: a collector without `describe` is not called.
    registry.register(_All())
    encoder, content_type = choose_encoder(accept)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(TIMEOUT)
        body = encoder(registry)
    return HttpResponse(body, content_type=content_type, headers={"Cache-Control": "no-store"})


class MetricsMiddleware:
    """Answers requests that carry the token of the settings."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path_info != PATH or request.method not in ("GET", "HEAD") or not _has_token(request):
            return self.get_response(request)
        try:
            return text(request.headers.get("Accept", ""))
        except Error as error:
            log.warning("no metrics: %s", error)
            return HttpResponse("the database does not answer\n", status=503, content_type="text/plain")


def _has_token(request: HttpRequest) -> bool:
    wanted: str = settings.METRICS_TOKEN
    given = request.headers.get("Authorization", "")
    return bool(wanted) and secrets.compare_digest(given.encode(), f"Bearer {wanted}".encode())


class Metrics(APIView):
    """For administrators; not part of the API's description."""

    schema = None
    # The encoder itself reads the Accept header.
    content_negotiation_class = AnyAccept

    def get(self, request: Request) -> HttpResponse:
        require_administrator(person(request))
        return text(request.headers.get("Accept", ""))
