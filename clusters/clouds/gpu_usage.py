"""Utilization of allocated GPUs: once a minute, reads from each cloud what it measured since the last time.

Measurements and the position are written in one transaction, and billing counts each minute of a pod once, so this may be killed,
repeated and run concurrently. A failed cloud is retried after a minute; the administrators' page shows the reason.
"""

from __future__ import annotations

import datetime as dt
import logging

from django.db import transaction

from billing.efficiency import measured
from billing.efficiency.measured import Use
from clusters.clouds.drivers.base import CloudError, Measurements, MeasuresGpus
from clusters.clouds.models import Cloud
from clusters.clouds.registry import cloud, cloud_names
from portal.text.words import readable

log = logging.getLogger(__name__)

MINUTE = dt.timedelta(minutes=1)
# Maximum number of reads per cloud and turn; the rest waits for the next turn.
MOST_ANSWERS = 5
UNMEASURED = "Clouds of this kind do not tell how busy GPUs are."


def clouds() -> list[str]:
    return cloud_names()


def measure(name: str) -> None:
    try:
        for _ in range(MOST_ANSWERS):
            since = measured.position(name)
            source = cloud(name)
            told = source.gpu_use(since) if isinstance(source, MeasuresGpus) else Measurements(since, note=UNMEASURED)
            uses = (
                Use(each.uid, each.minute, each.minute + MINUTE, each.seconds, each.busy, each.memory_mb)
                for each in told.items
            )
            with transaction.atomic():
                if not _stays(name):
                    return
                measured.save(name, told.position, uses, readable(told.note, 1000))
            if not told.items or told.position == since:
                return
    except CloudError as error:
        log.warning("%s: how busy GPUs are cannot be read: %s", name, error)
        with transaction.atomic():
            if _stays(name):
                measured.save_trouble(name, readable(str(error), 1000))


def _stays(name: str) -> bool:
    """Returns whether the cloud exists, and locks its row: measurements of a removed cloud would never be deleted."""
    rows = Cloud.objects.select_for_update(no_key=True).filter(name=name)
    return rows.values_list("pk").first() is not None
