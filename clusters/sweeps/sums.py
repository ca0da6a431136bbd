"""What sweeps come to so far: trials by phase, GPU-seconds and cost. As many queries for a page of them as for one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from django.db import connection
from django.db.models import Case, CharField, Count, F, Q, Value, When
from django.db.models.functions import Coalesce

from clusters.models import Run, Sweep, Trial
from clusters.phase import TERMINAL

# Of a trial, that of its run while it lives. A run that has ended is judged in a moment, or it is trained again when its sweep
# goes on.
PHASE = Case(
    When(~Q(phase=""), then=F("phase")),
    When(cluster__current_run__phase__in=TERMINAL, sweep__phase=Sweep.Phase.PAUSED, then=Value("Queued")),
    When(cluster__current_run__phase__in=TERMINAL, then=Value("Running")),
    default=Coalesce("cluster__current_run__phase", Value("Queued")),
    output_field=CharField(),
)
# The model's own way from a trial to its runs leads through a table of clusters, which of ten thousand is half of the time.
USED = """
    SELECT trial.sweep_id, sum(run.gpu_seconds), sum(run.cost)
    FROM clusters_trial trial JOIN clusters_run run USING (cluster_id)
    WHERE trial.sweep_id = ANY(%s) GROUP BY trial.sweep_id
"""


@dataclass
class Sums:
    """`trials` by phase; GPU-seconds and cost (in settings.CURRENCY, unrounded) are of all
    runs until now."""

    trials: dict[str, int] = field(default_factory=dict)
    gpu_seconds: int = 0
    cost: Decimal = Decimal(0)


def sums_of(sweeps: Iterable[int], now: dt.datetime) -> dict[int, Sums]:
    """By sweep. Four queries."""
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
    # Those that hold something now use more of it every second.
    growing = Run.objects.filter(gone=False, cluster__trial__sweep__in=found).order_by()
    growing = growing.annotate(sweep=F("cluster__trial__sweep"))
    for each in growing.only("usage_as_of", "gpu_seconds", "gpu_rate", "cost", "cost_rate"):
        found[each.sweep].gpu_seconds += each.gpu_seconds_at(now) - each.gpu_seconds
        found[each.sweep].cost += each.cost_at(now) - each.cost
    return found
