"""Counts once what crashes cost a run, when the run is gone: `Run.crashes` is None until then.

For a live run, pages compute the same from current data (reading.py). Count and event outlast the run's output and logs.
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
from clusters.runs.models import Run
from clusters.scalars.crashes import Crash, crashes
from clusters.scalars.reading import crashes_of, ends_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from portal.db.advisory_lock import Lock, advisory_lock
from portal.events import record_all

log = logging.getLogger(__name__)

# Maximum seconds for one run, and for all waiting runs of one appcode.
SECONDS, TURN_SECONDS = 30.0, 60.0
# How long after its end a run with unreadable numbers is retried: its logs may still be on their way to the archive.
PATIENCE = dt.timedelta(minutes=10)


def note_crashes(run_id: int) -> None:
    """Counts the crashes of a run that is gone and had restarted tasks. May run twice. Runs of an appcode are counted one at a
    time, so that its slow server occupies one worker; that worker also takes those that arrive meanwhile. If the numbers stay
    unreadable, the crashes are stored without them."""
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
        # Not in the cloud's shared lane: most of the time is spent waiting for a server of the appcode.
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
    """The stored crashes; None until the run is gone and they are counted."""
    found: list[dict[str, Any]] | None = run.crashes if run.gone else None
    return None if found is None else [Crash(**each) for each in found]


def repeated(found: Sequence[Crash]) -> int:
    """Number of steps known to have been trained again."""
    return sum(each.repeated or 0 for each in found)


def gpu_seconds(run: Run, found: Sequence[Crash]) -> int:
    """GPU-seconds that those steps took the first time, on all GPUs of the run."""
    return round(sum(each.seconds for each in found) * run.gpus)
