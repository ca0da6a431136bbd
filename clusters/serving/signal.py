"""Who is told at once of what was written: fronts, of a changed route, and the loop, of a service that has work for it.

Both hear it from PostgreSQL when the transaction commits, and nobody when it does not. A hint alone: who missed it finds the row
with the next look. That somebody asks of a service that sleeps, which alone wakes it, fronts say in a channel of their own
(WANTED): who changes a service, and the end of its last replica, wake nobody.
"""

from __future__ import annotations

from django.db import connection
from django.db.models import F

from clusters.models import Service

ROUTES, CHANGED, WANTED = "services", "services_changed", "services_wanted"


def routes_changed() -> None:
    """Has every front read the services whose `route` is greater than what it has."""
    with connection.cursor() as cursor:
        cursor.execute(f"NOTIFY {ROUTES}")


def changed(service_id: int) -> None:
    """Has the loop look after this service now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANGED, str(service_id)])


def reroute(service: Service) -> None:
    """Counts a change of what fronts may use of a service, and tells them; within the transaction that changes it."""
    Service.objects.filter(pk=service.pk).update(route=F("route") + 1)
    service.refresh_from_db(fields=["route"])
    routes_changed()
