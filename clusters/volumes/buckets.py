"""Metering of buckets in the portal's own object storage: what was in one when it was counted is held until it is counted anew.

It is metered as a volume is (metering.py), at the price of storage: a segment for each size, from the second of one count to the
second of another. A bucket whose size changes all the time begins a segment every ten minutes at most. `Storage.metered_mb` and
`metered_since` are what is metered now, and change in the same transaction as the observations; a count that was metered already
changes nothing. While nothing is counted, the last count goes on: the data is still there.
"""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.db.models import F, Q

from billing.metering.record import record
from billing.metering.segments import PodState, floor
from datastores.models import Storage

MIB = 2**20
# A segment of a bucket lasts as long at least.
EVERY = dt.timedelta(minutes=10)
# Buckets of one transaction, and of one round.
BATCH, ROUNDS = 500, 20
# Where billing says they are.
CLOUD = "object-storage"


def meter_all() -> None:
    """Brings every bucket that was counted anew into the books. May run twice or at once."""
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
        # One begins later than the one before.
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
