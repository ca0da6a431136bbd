"""What crashes have cost a run, counted once, when nothing of it is left: `Run.crashes` is None until then.

While a run goes on, who looks at it is told the same from what there is (reading.py). Its output may be removed later, and its
logs: the count stays, and so does the event.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.utils import timezone

from clusters.clouds.drivers.base import CloudError
from clusters.events import run_event
from clusters.models import Run
from clusters.scalars.crashes import Crash, crashes
from clusters.scalars.reading import crashes_of, ends_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from portal.db.advisory_lock import Lock, advisory_lock
from portal.events import record_all

log = logging.getLogger(__name__)

# For one run, and for those of one appcode at a time.
SECONDS, TURN_SECONDS = 30.0, 60.0
# For how long after its end a run whose numbers cannot be read is asked for again: its logs may be on their way to the archive.
PATIENCE = dt.timedelta(minutes=10)


def note_crashes(run_id: int) -> None:
    """Once a run is gone of which tasks were started again. May run twice. One after the other of an appcode, so that a server of
    theirs that is slow keeps one worker; who is at it takes those that come meanwhile. Where the numbers cannot be read, the
    crashes are noted without them in the end."""
    appcode = Run.objects.filter(pk=run_id).values_list("cluster__appcode", flat=True).first()
    waiting = Run.objects.filter(cluster__appcode=appcode, crashes__isnull=True).order_by("?")
    found, until, tried = appcode and run_id, time.monotonic() + TURN_SECONDS, set[int]()
    with advisory_lock(Lock.CRASHES, str(appcode)) as is_mine:
        while is_mine and found and time.monotonic() < until:
            tried.add(found)
            _note(found)
            found = waiting.exclude(pk__in=tried).values_list("pk", flat=True).first()


def _note(run_id: int) -> None:
    waiting = Run.objects.filter(pk=run_id, crashes__isnull=True)
    run = waiting.select_related("cluster__appcode").first()
    if run is None:
        return
    try:
        # Not in the lane of its cloud, which is everybody's: most of it waits for a server of the appcode.
        with within(SECONDS):
            found = crashes_of(run, time.monotonic() + SECONDS)
    except (CloudError, DriverError) as error:
        log.info("run %s: what its crashes cost cannot be read: %s", run_id, error)
        if timezone.now() < run.phase_since + PATIENCE:
            return
        found = crashes(ends_of(run), [])
    with transaction.atomic():
        if waiting.update(crashes=[asdict(each) for each in found]) and (steps := repeated(found)):
            message = f"{steps} steps of run {run.number} were trained again. {found[0].sentence}"
            seconds = gpu_seconds(run, found)
            record_all([run_event("run.steps_repeated", run, message, steps=steps, gpu_seconds=seconds)])


def kept(run: Run) -> list[Crash] | None:
    """None until a run is gone and they are counted."""
    found: list[dict[str, Any]] | None = run.crashes if run.gone else None
    return None if found is None else [Crash(**each) for each in found]


def repeated(found: Sequence[Crash]) -> int:
    """Steps that were trained again, as far as is known."""
    return sum(each.repeated or 0 for each in found)


def gpu_seconds(run: Run, found: Sequence[Crash]) -> int:
    """What those steps had taken the first time, with all GPUs of the run."""
    return round(sum(each.seconds for each in found) * run.gpus)
