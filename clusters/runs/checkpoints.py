"""Notes when runs that may be taken back last saved: the time of the newest file in their stored output, beside logs and event
files.

Taking a run back costs what it computed since then (admission/taking.py). The portal lists the stored output once a minute: what
lies there is what the run finds when it starts again, on every cloud, and neither pods nor drivers need a way to report it. An
output that only tasks see (NFS, volumes) stays unknown, and counts as if nothing had been saved. Runs of which nothing is taken
are not looked at, so most installations list nothing.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import PurePosixPath

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from clusters.catalog.folders import output_folder
from clusters.runs.models import Run
from datastores.actions import open_store
from datastores.drivers.base import DriverError, Entry
from datastores.drivers.patience import within
from datastores.models import Datastore
from portal.db.advisory_lock import Lock, advisory_lock

log = logging.getLogger(__name__)

# Number of an appcode's runs that one turn looks at, and of the files of each.
MOST_RUNS, MOST_FILES = 200, 20_000
# Maximum seconds to list the outputs of an appcode, in one turn.
SECONDS = 40.0
# Files that grow all the time a program runs: logs, tables of metrics, TensorBoard's event files.
GROWS = re.compile(r"tfevents|\.(log|out|err|txt|csv|tsv|jsonl)(\.\d+)?$", re.IGNORECASE)


def appcodes() -> list[int]:
    """Appcodes with runs whose output is to be listed. One query."""
    return list(_running().order_by().values_list("cluster__appcode", flat=True).distinct())


def _running() -> QuerySet[Run]:
    """Those with an output that are spare, or of an appcode that may borrow."""
    runs = Run.objects.filter(gone=False, gpus__gt=0, phase=Run.Phase.RUNNING, desired=Run.Desired.RUNNING, verdict="")
    runs = runs.filter(Q(priority_class="spare") | Q(cluster__appcode__gpu_borrow__gt=0))
    return runs.filter(Q(spec__output__isnull=False) & ~Q(spec__output=None), given_back_at=None)


def note(appcode_id: int) -> None:
    """Lists the outputs of the running runs of an appcode, those first that were not looked at for longest. May run twice."""
    until = time.monotonic() + SECONDS
    with advisory_lock(Lock.CHECKPOINTS, str(appcode_id)) as is_mine:
        if not is_mine:
            return
        mine = _running().filter(cluster__appcode=appcode_id).select_related("cluster")
        mine = mine.only("spec", "number", "checkpoint_at", "cluster__name")
        stores = {each.name: each for each in Datastore.objects.select_related("appcode").filter(appcode_id=appcode_id)}
        for run in mine.order_by(F("checkpoint_seen_at").asc(nulls_first=True), "pk")[:MOST_RUNS]:
            if time.monotonic() >= until:
                return
            _note(run, stores.get(run.spec["output"]), until - time.monotonic())


def _note(run: Run, store: Datastore | None, seconds: float) -> None:
    at, found = timezone.now(), run.checkpoint_at
    try:
        if store:
            folder = output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)
            with within(seconds):
                found = newest(islice(open_store(store).walk(folder), MOST_FILES), at) or found
    except DriverError as error:
        log.info("run %s: when it last saved is not known: %s", run.pk, error)
    # Of an output with more files only a part is known, and its newest may be older than the last time.
    found = max(found, run.checkpoint_at) if found and run.checkpoint_at else found
    Run.objects.filter(pk=run.pk).update(checkpoint_at=found, checkpoint_seen_at=at)


def newest(entries: Iterable[Entry], at: dt.datetime) -> dt.datetime | None:
    """When the newest of these files was written, at most `at`; None without any that says what a run has saved."""
    times = [each.since or each.modified for each in entries if not each.is_folder and not grows(each.path)]
    return min(at, found) if (found := max(filter(None, times), default=None)) else None


def grows(path: str) -> bool:
    """Whether programs add to a file of this name as long as they run, so that it is no checkpoint."""
    return bool(GROWS.search(PurePosixPath(path).name))
