"""Metering of buckets in the portal's object storage: the counted size of a bucket holds until the next count.

Buckets are metered like volumes (metering.py), at the price of storage: one segment for each size, from the second of one count
to the second of another. A bucket whose size changes all the time starts a segment every ten minutes at most.
`Storage.metered_mb` and `metered_since` are the current metering, and change in the same transaction as the observations;
metering a count again changes nothing. Without new counts the last one goes on, because the data is still there.
"""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.db.models import F, Q

from billing.metering.record import record
from billing.metering.segments import PodState, floor
from datastores.models import Storage

MIB = 2**20
# Minimum duration of a bucket's segment.
EVERY = dt.timedelta(minutes=10)
# Buckets per transaction, and transactions per call.
BATCH, ROUNDS = 500, 20
# The cloud of buckets in billing.
CLOUD = "object-storage"


def meter_all() -> None:
    """Meters every bucket with a new count. May run twice or concurrently."""
    for _ in range(ROUNDS):
        if _meter_some() < BATCH:
            return


@transaction.atomic
def _meter_some() -> int:
    wanted = (F("used_bytes") + MIB - 1) / MIB
    is_due = Q(metered_since=None) | Q(metered_since__lte=F("measured_at") - EVERY)
    rows = Storage.objects.select_for_update(skip_locked=True, no_key=True, of=("self",)).annotate(wanted=wanted)
    due = list(rows.filter(is_due, measured_at__isnull=False).exclude(wanted=F("metered_mb")).order_by("pk")[:BATCH])
    states = list[PodState]()
    for row in due:
        assert row.measured_at
        at = floor(row.measured_at)
        if row.metered_mb:
            states.append(_state(row, until=at))
        row.metered_mb, row.metered_since = row.wanted, at if row.wanted else None
        if row.metered_mb:
            states.append(_state(row))
    record(states)
    Storage.objects.bulk_update(due, ["metered_mb", "metered_since"])
    return len(due)


def consumer(storage_id: int) -> str:
    """The key under which billing knows a bucket."""
    return f"bucket {storage_id}"


def _state(row: Storage, until: dt.datetime | None = None) -> PodState:
    since = row.metered_since
    return PodState(
        # Unique, as each segment of a bucket starts later than the one before.
        uid=f"bucket-{row.pk}-{since:%Y%m%dT%H%M%SZ}",
        cloud=CLOUD,
        appcode_id=row.appcode_id,
        consumer=consumer(row.pk),
        labels={"bucket": row.bucket},
        phase="Running" if until is None else "Succeeded",
        storage_mb=row.metered_mb,
        started_at=since,
        finished_at=until,
    )
