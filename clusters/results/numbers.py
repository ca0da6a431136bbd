"""Keeps the numbers of runs in the database: read once when a run is gone, and meanwhile while somebody looks at them.

What is read may be stored at any time, by any program and repeatedly: a reading replaces an earlier one of its run and never a
later one. Runs that nobody looks at cost nothing while they live.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterable

from django.core.cache import cache
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from clusters import wakeups
from clusters.clouds.drivers.base import CloudError
from clusters.frameworks import COMPUTING
from clusters.results.models import Metric, RunMetric
from clusters.results.values import Extreme, Summary, headline, parameters, summaries
from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL
from clusters.scalars.events import Scalars
from clusters.scalars.reading import all_scalars
from clusters.tracking.reading import parameters_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from portal.db.advisory_lock import Lock, advisory_lock

log = logging.getLogger(__name__)

# Maximum seconds for one run, and for one turn over the runs of an appcode.
SECONDS, TURN_SECONDS = 20.0, 20.0
# How long after its end a run with unreadable numbers is retried: its logs may still be on their way to the archive.
PATIENCE = dt.timedelta(minutes=10)
# How old the numbers of a living run may be before they are read again for those who look, and for how many runs at once.
FRESH, MOST_LIVING = dt.timedelta(seconds=10), 20
# Seconds for which a look counts.
LOOKED = 60
DUE = Q(numbers_due=True, gone=True, phase__in=TERMINAL)
FIELDS = ["last", "step", "low", "low_step", "high", "high_step"]


def keep(run: Run, scalars: Scalars, at: dt.datetime, *, is_last: bool = False) -> None:
    """Stores what was read of a run since `at`. Does nothing if something read later is stored already. `is_last`: the run is
    gone, and nothing will be added."""
    found = summaries(scalars)
    ids = metric_ids(run.cluster.appcode_id, found)
    fields: dict[str, object] = {"numbers_at": at, "numbers_due": not is_last, "headline": headline(found)}
    if (recorded := {**scalars.parameters, **parameters_of(run)}) or run.parameters is None:
        fields["parameters"] = parameters(run.spec, recorded)
    earlier = Q(numbers_at=None) | Q(numbers_at__lte=at)
    with transaction.atomic():
        if not Run.objects.filter(earlier, pk=run.pk).update(**fields):
            return
        RunMetric.objects.filter(run=run.pk).exclude(metric__in=ids.values()).delete()
        rows = [_row(run, ids[name], each) for name, each in found.items()]
        RunMetric.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["run", "metric"], update_fields=FIELDS
        )


def _row(run: Run, metric_id: int, found: Summary) -> RunMetric:
    def pair(extreme: Extreme | None) -> tuple[float | None, int | None]:
        return (None, None) if extreme is None else (extreme.value, extreme.step)

    (low, low_step), (high, high_step) = pair(found.low), pair(found.high)
    return RunMetric(
        run_id=run.pk, metric_id=metric_id, last=found.last, step=found.step, low=low, low_step=low_step, high=high,
        high_step=high_step,
    )  # fmt: skip


def metric_ids(appcode_id: int, names: Iterable[str]) -> dict[str, int]:
    """The ids of these names of an appcode, which are made if they are missing."""
    wanted = list(names)
    rows = Metric.objects.filter(appcode=appcode_id, name__in=wanted)
    found = dict(rows.values_list("name", "pk"))
    if missing := [name for name in wanted if name not in found]:
        Metric.objects.bulk_create(
            (Metric(appcode_id=appcode_id, name=name) for name in missing), ignore_conflicts=True
        )
        found = dict(rows.values_list("name", "pk"))
    return found


def look_at(appcode_id: int, runs: Iterable[Run]) -> None:
    """Asks for the newest numbers of the living runs that somebody looks at."""
    now = timezone.now()
    stale = [run.pk for run in runs if not run.is_terminal and run.started_at and _is_stale(run, now)][:MOST_LIVING]
    if stale:
        cache.set(_looked(appcode_id), stale, LOOKED)
        wakeups.wake_numbers(appcode_id)


def _is_stale(run: Run, now: dt.datetime) -> bool:
    return run.numbers_at is None or run.numbers_at < now - FRESH


def _looked(appcode_id: int) -> str:
    return f"results.looked.{appcode_id}"


def advance(appcode_id: int) -> None:
    """Reads the numbers of living runs that somebody looks at, then of those that are gone, newest first. May run twice. One
    worker at a time reads those of an appcode, so that its slow server does not occupy more."""
    until = time.monotonic() + TURN_SECONDS
    with advisory_lock(Lock.NUMBERS, str(appcode_id)) as is_mine:
        if not is_mine:
            return
        mine = Run.objects.filter(cluster__appcode=appcode_id).select_related("cluster__appcode")
        for living in mine.filter(pk__in=cache.get(_looked(appcode_id)) or [], gone=False):
            if time.monotonic() < until and _is_stale(living, timezone.now()):
                _read(living, until)
        cache.delete(_looked(appcode_id))
        tried = set[int]()
        while time.monotonic() < until and (run := mine.filter(DUE).exclude(pk__in=tried).order_by("-pk").first()):
            tried.add(run.pk)
            _read(run, until)


def resync() -> None:
    """Finds lost wake-ups and retries. One appcode each time: after an upgrade, the runs of all earlier releases are due."""
    due = Run.objects.filter(DUE).order_by("?").values_list("cluster__appcode", flat=True)
    if (appcode_id := due.first()) is not None:
        wakeups.wake_numbers(appcode_id)


def _read(run: Run, until: float) -> None:
    at, is_last = timezone.now(), run.gone and run.is_terminal
    found = Scalars((), 0)
    try:
        # Applications report no metrics, and what never started has none.
        if run.started_at and run.spec["framework"] in COMPUTING:
            with within(min(SECONDS, max(1.0, until - time.monotonic()))):
                found = all_scalars(run)
    except (DriverError, CloudError) as error:
        log.info("run %s: its numbers cannot be read: %s", run.pk, error)
        if not is_last or at < run.phase_since + PATIENCE:
            return
        Run.objects.filter(pk=run.pk).update(numbers_due=False)
        return
    keep(run, found, at, is_last=is_last)
