"""Numbers for Prometheus at /metrics. All of them come from the database when they are asked for, so that every process of every
web server gives the same ones and a restart forgets none.

The portal knows nothing of the apps above it: they register what they count (`portal.hooks`). Whoever scrapes
sends `Authorization: Bearer PORTAL_METRICS_TOKEN`; that is looked at before anything else of a request, because a scrape comes by
a pod's address, which is none of ALLOWED_HOSTS. Without it only administrators may look, signed in or with a token of their own.
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

from portal import hooks
from portal.access import require_administrator
from portal.api.streams import AnyAccept
from portal.api.views import person

log = logging.getLogger(__name__)

PATH = "/metrics"
# A database that is busy is not made busier by whoever watches it.
TIMEOUT = "SET LOCAL statement_timeout = '10s'"


def gauge(name: str, help_: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


class _All(Collector):
    def collect(self) -> Iterator[Metric]:
        for source in hooks.metrics:
            yield from source()


def text(accept: str) -> HttpResponse:
    """All metrics in the text format that the scraper asks for: Prometheus' or OpenMetrics."""
    registry = CollectorRegistry(auto_describe=False)
    # Registering looks at nothing: a collector without `describe` is not asked.
    registry.register(_All())
    encoder, content_type = choose_encoder(accept)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(TIMEOUT)
        body = encoder(registry)
    return HttpResponse(body, content_type=content_type, headers={"Cache-Control": "no-store"})


class MetricsMiddleware:
    """Answers whoever has the token of settings."""

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
    """For administrators; it is no part of the API's description."""

    schema = None
    # The encoder itself looks at what is accepted.
    content_negotiation_class = AnyAccept

    def get(self, request: Request) -> HttpResponse:
        require_administrator(person(request))
        return text(request.headers.get("Accept", ""))
