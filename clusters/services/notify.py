"""Notifies routers of changed routes, and the loop of services with work to do.

Both get a PostgreSQL notification when the transaction commits, and none when it does not. It is only a hint: a process that
misses it finds the row on its next poll. Routers use a separate channel (WANTED) for requests to a sleeping service, because
only these wake it; changes of a service and the end of its last replica do not.
"""

from __future__ import annotations

from django.db import connection
from django.db.models import F

from clusters.services.models import Service

ROUTES, CHANGED, WANTED = "services", "services_changed", "services_wanted"


def routes_changed() -> None:
    """Makes every router read the services whose `route` is greater than what it has."""
    with connection.cursor() as cursor:
        cursor.execute(f"NOTIFY {ROUTES}")


def changed(service_id: int) -> None:
    """Makes the loop check this service now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANGED, str(service_id)])


def reroute(service: Service) -> None:
    """Increments the service's route and notifies routers, within the transaction that changes what they use."""
    Service.objects.filter(pk=service.pk).update(route=F("route") + 1)
    service.refresh_from_db(fields=["route"])
    routes_changed()
