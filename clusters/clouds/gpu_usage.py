"""How busy GPUs are while they are held: each cloud is asked once a minute what it has measured since.

What it told and how far are written in one transaction, and billing counts a minute of a pod once; so this may be killed,
repeated and run twice at once. A cloud that cannot be read is asked again in a minute, and says on the administrators' page why.
"""

from __future__ import annotations

import datetime as dt
import logging

from django.db import transaction

from billing.efficiency import measured
from billing.efficiency.measured import Use
from clusters.clouds.drivers.base import CloudError, Measurements, MeasuresGpus
from clusters.clouds.registry import cloud, cloud_names
from clusters.models import Cloud
from portal.text import readable

log = logging.getLogger(__name__)

MINUTE = dt.timedelta(minutes=1)
# Answers of one cloud in one turn; what is left waits for the next.
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
    """Whether the cloud is still there, and then until the transaction is over: what is noted of one that was just removed would
    stay for ever."""
    rows = Cloud.objects.select_for_update(no_key=True).filter(name=name)
    return rows.values_list("pk").first() is not None
