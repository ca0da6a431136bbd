"""Prometheus metrics of webhooks: whether deliveries keep up with events, and how many receivers were given up. Users
see the state of their own webhook on their profile."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Count, Min
from django.utils import timezone
from prometheus_client.core import Metric

from portal.models import Delivery, Webhook
from portal.monitoring.metrics import gauge


def metrics() -> Iterator[Metric]:
    """Two queries, on waiting deliveries and on webhooks; delivered ones are not read."""
    now = timezone.now()
    waiting = Delivery.objects.filter(state=Delivery.State.WAITING, webhook__enabled=True).order_by()
    found = waiting.aggregate(count=Count("pk"), next_at=Min("next_at"))
    late = max(0.0, (now - found["next_at"]).total_seconds()) if found["next_at"] else 0.0
    yield gauge("portal_webhook_deliveries_waiting", "Deliveries on their way, those to be tried again included.", (), [
        ((), found["count"])
    ])  # fmt: skip
    yield gauge("portal_webhook_delay_seconds", "For how long the next delivery has been due.", (), [((), late)])
    given_up = Webhook.objects.filter(person=None, enabled=False, deleted_at=None).exclude(disabled_reason="").count()
    yield gauge("portal_webhooks_given_up", "Webhooks that the portal itself has disabled.", (), [((), given_up)])
