"""Metering of volumes: a volume's size counts from the moment its cloud accepts a run that mounts it until the cloud is asked
to delete it, whether anything runs or not.

A volume is metered like a pod, with one segment for each size: a change of size starts a new segment in the second in which the
old one ends. `Volume.metered_mb` is the size metered now, and changes in the same transaction as the observations.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

from django.db import transaction
from django.utils import timezone

from billing.metering.record import record
from billing.metering.segments import PodState, Resources, floor
from billing.models import UsageSegment
from billing.prices.book import price_book
from billing.prices.rates import hourly
from datastores.models import Volume
from datastores.specs import size_bytes
from portal.models import Appcode

MIB = 2**20


def mebibytes(size: str) -> int:
    return size_bytes(size) // MIB


@transaction.atomic
def meter(volume_id: int, size: str, at: dt.datetime, *, estimated: bool = False) -> None:
    """Meters `size` of a volume from `at` on; "" ends it. Repeating changes nothing. `estimated` marks an end that nobody saw."""
    volume = Volume.objects.select_for_update(no_key=True).filter(pk=volume_id).first()
    wanted = mebibytes(size) if size else 0
    # A volume never shrinks: a smaller size was read before another worker enlarged it.
    if volume is None or volume.metered_mb == wanted or 0 < wanted < volume.metered_mb:
        return
    at = floor(at)
    appcode_id = Appcode.objects.values_list("pk", flat=True).get(code=volume.appcode)
    states = []
    if volume.metered_mb:
        uid = _uid(volume.pk, volume.metered_mb)
        begun = UsageSegment.objects.filter(uid=uid).values_list("started", flat=True).first() or at
        end = _state(volume, appcode_id, volume.metered_mb, begun, max(begun, at))
        states.append(replace(end, estimated=estimated))
    if wanted:
        states.append(_state(volume, appcode_id, wanted, at))
    record(states)
    volume.metered_mb = wanted
    volume.save(update_fields=["metered_mb"])


def per_hour(appcode: Appcode, size: str) -> Decimal:
    """Hourly cost of a volume of this size for the appcode, at current prices."""
    held = [Resources(storage_mb=mebibytes(size))]
    return hourly(price_book(), timezone.now(), held, appcode.pk)


def consumer(volume_id: int) -> str:
    """The key under which billing knows a volume."""
    return f"volume {volume_id}"


def _state(
    volume: Volume, appcode_id: int, size_mb: int, since: dt.datetime, until: dt.datetime | None = None
) -> PodState:
    return PodState(
        uid=_uid(volume.pk, size_mb),
        cloud=volume.cloud,
        appcode_id=appcode_id,
        consumer=consumer(volume.pk),
        labels={"volume": volume.name},
        phase="Running" if until is None else "Succeeded",
        storage_mb=size_mb,
        started_at=since,
        finished_at=until,
    )


def _uid(volume_id: int, size_mb: int) -> str:
    # A volume only grows, so no size occurs twice.
    return f"volume-{volume_id}-{size_mb}"
