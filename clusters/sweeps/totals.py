"""Totals of sweeps so far: trials by phase, GPU-seconds and cost. A page of sweeps takes as many queries as one sweep."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from django.db import connection
from django.db.models import Case, CharField, Count, F, Q, Value, When
from django.db.models.functions import Coalesce

from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL
from clusters.sweeps import shared
from clusters.sweeps.models import Sweep, Trial

# Phase of a trial; while it is alive, that of its run. A trial whose run has ended is about to be judged, or trained again when
# its sweep resumes.
PHASE = Case(
    When(~Q(phase=""), then=F("phase")),
    When(cluster__current_run__phase__in=TERMINAL, sweep__phase=Sweep.Phase.PAUSED, then=Value("Queued")),
    When(cluster__current_run__phase__in=TERMINAL, then=Value("Running")),
    When(
        index__isnull=False,
        cluster__current_run__phase__in=("Starting", "Running"),
        then=Coalesce(shared.PHASE, Value("Queued")),
    ),
    default=Coalesce("cluster__current_run__phase", Value("Queued")),
    output_field=CharField(),
)
# Raw SQL, because the ORM joins through clusters, which takes half of the time for ten thousand trials.
USED = """
    SELECT trial.sweep_id, sum(run.gpu_seconds), sum(run.cost)
    FROM clusters_trial trial JOIN clusters_run run USING (cluster_id)
    WHERE trial.sweep_id = ANY(%s) AND trial.index IS NULL GROUP BY trial.sweep_id
"""


USAGE = ("usage_as_of", "gpu_seconds", "gpu_rate", "cost", "cost_rate")


@dataclass
class Sums:
    """`trials` by phase. GPU-seconds and cost (in settings.CURRENCY, unrounded) are of all runs until now."""

    trials: dict[str, int] = field(default_factory=dict)
    gpu_seconds: int = 0
    cost: Decimal = Decimal(0)


def sums_of(sweeps: Iterable[int], now: dt.datetime) -> dict[int, Sums]:
    """Totals by sweep. Five queries, plus one if trials share runs."""
    found = {pk: Sums() for pk in sweeps}
    trials = Trial.objects.filter(sweep__in=found).order_by()
    over = trials.exclude(phase="").values_list("sweep", "phase").annotate(Count("pk"))
    living = trials.filter(phase="").values_list("sweep", PHASE).annotate(Count("pk"))
    for sweep, word, count in (*over, *living):
        found[sweep].trials[word] = count
    with connection.cursor() as cursor:
        cursor.execute(USED, [list(found)])
        for sweep, seconds, cost in cursor.fetchall():
            found[sweep].gpu_seconds, found[sweep].cost = int(seconds), cost
    # Runs that hold resources now use more every second.
    growing = Run.objects.filter(gone=False, cluster__trials__sweep__in=found, cluster__trials__index=None).order_by()
    growing = growing.annotate(sweep=F("cluster__trials__sweep"))
    for each in growing.only(*USAGE):
        found[each.sweep].gpu_seconds += each.gpu_seconds_at(now) - each.gpu_seconds
        found[each.sweep].cost += each.cost_at(now) - each.cost
    _add_shared(found, now)
    return found


def _add_shared(found: dict[int, Sums], now: dt.datetime) -> None:
    """Adds the usage of runs that trials share. They are found by `part_of`: a trial that waits for another run names no run,
    but what it used before still counts."""
    rows = Sweep.objects.filter(pk__in=found, spec__oneRun=True).values_list("appcode", "name", "pk").order_by()
    parts = {(appcode, f"sweeps/{name}"): pk for appcode, name, pk in rows}
    if not parts:
        return
    runs = Run.objects.filter(
        cluster__appcode__in={appcode for appcode, _ in parts}, cluster__part_of__in={part for _, part in parts}
    )
    runs = runs.annotate(appcode=F("cluster__appcode"), part=F("cluster__part_of")).order_by()
    for each in runs.only(*USAGE):
        if sweep := parts.get((each.appcode, each.part)):
            found[sweep].gpu_seconds += each.gpu_seconds_at(now)
            found[sweep].cost += each.cost_at(now)
