"""Per-minute request counters from the routers. Merged once a minute is complete, deleted after a month.

`Revision.counted` has the requests of all minutes before its service's `counted_until`. A revision's total is that plus the few
minutes after it, and stays right when minutes are deleted.
"""

from __future__ import annotations

import datetime as dt

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Value
from django.db.models.functions import Coalesce

from clusters.services.models import RevisionDrift, Router, Service, ServiceMinute

MINUTES_KEPT, ROUTERS_KEPT = dt.timedelta(days=31), dt.timedelta(days=1)
# A router writes a minute up to 15 minutes late if its database was away (router/counters.py).
SETTLED = dt.timedelta(minutes=20)
_ADD = """
WITH found AS (
    SELECT minute.revision_id, sum(minute.requests) AS requests FROM clusters_serviceminute minute
    WHERE minute.service_id = %(service)s AND NOT minute.mirrored AND minute.minute < %(until)s
        AND minute.minute >= %(since)s
    GROUP BY 1
)
UPDATE clusters_revision revision SET counted = counted + found.requests FROM found WHERE revision.id = found.revision_id
"""
BEGINNING = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


def add_up(now: dt.datetime) -> None:
    """Adds complete minutes to `Revision.counted`, one service at a time. May die at any line, and run twice."""
    until = (now - SETTLED).replace(second=0, microsecond=0)
    since = Coalesce(OuterRef("counted_until"), Value(BEGINNING))
    new = ServiceMinute.objects.filter(service=OuterRef("pk"), minute__lt=until, minute__gte=since)
    for pk in Service.objects.filter(Exists(new)).order_by("pk").values_list("pk", flat=True):
        with transaction.atomic():
            service = Service.objects.select_for_update(no_key=True).only("counted_until").get(pk=pk)
            first = service.counted_until or BEGINNING
            if first < until:
                with connection.cursor() as cursor:
                    cursor.execute(_ADD, {"service": pk, "since": first, "until": until})
                Service.objects.filter(pk=pk).update(counted_until=until)


def forget_old(now: dt.datetime) -> None:
    """Deletes minutes and hours of drift after a month, and routers without a heartbeat for a day."""
    add_up(now)
    ServiceMinute.objects.filter(minute__lt=now - MINUTES_KEPT).delete()
    RevisionDrift.objects.filter(hour__lt=now - MINUTES_KEPT).delete()
    Router.objects.filter(seen_at__lt=now - ROUTERS_KEPT).delete()
