"""What fronts counted, minute by minute: added up when nobody counts there any more, and removed after a month.

`Revision.counted` has the requests of all minutes before its service's `counted_until`, so what a revision has answered since it
was made is that and the minutes after it, which are few, and stays right when minutes are removed.
"""

from __future__ import annotations

import datetime as dt

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Value
from django.db.models.functions import Coalesce

from clusters.models import Front, RevisionDrift, Service, ServiceMinute

MINUTES_KEPT, FRONTS_KEPT = dt.timedelta(days=31), dt.timedelta(days=1)
# A front that the database was away from writes a minute up to a quarter of an hour late (front/tally.py).
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
    """Adds up what is settled and not in `Revision.counted` yet, one service at a time. May die at any line, and run twice."""
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
    """Removes minutes and hours of drift that are older than a month, and fronts that have said nothing for a day."""
    add_up(now)
    ServiceMinute.objects.filter(minute__lt=now - MINUTES_KEPT).delete()
    RevisionDrift.objects.filter(hour__lt=now - MINUTES_KEPT).delete()
    Front.objects.filter(seen_at__lt=now - FRONTS_KEPT).delete()
