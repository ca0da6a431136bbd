"""Access of users to pipelines (`portal/objects.py`), their runs and stages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from decimal import Decimal

from django.http import Http404

from clusters.pipelines.models import Pipeline, PipelineRun, StageRun
from clusters.sweeps.totals import Sums
from portal.models import User
from portal.objects import Objects

# Their specs may be long, and lists do not need them.
_ROWS = Pipeline.objects.select_related("appcode", "created_by", "current_run__created_by")
PIPELINES = Objects("pipeline", _ROWS.defer("spec", "current_run__spec"))
pipelines_for, pipeline_for = PIPELINES.visible, PIPELINES.find


def pipeline_run_for(user: User, appcode: str, name: str, number: int) -> PipelineRun:
    found = pipeline_for(user, appcode, name).runs.select_related("created_by").filter(number=number).first()
    if found is None:
        raise Http404(f"{name} has no run {number}.")
    return found


def stages_of(runs: Iterable[PipelineRun]) -> dict[int, list[StageRun]]:
    """Stage rows with their runs, by the pipeline run's primary key, oldest first: the last row of a stage counts. One query."""
    rows = StageRun.objects.filter(pipeline_run__in=[run.pk for run in runs]).order_by("pk")
    found: dict[int, list[StageRun]] = {run.pk: [] for run in runs}
    for row in rows.select_related("run__cluster", "sweep").defer("run__spec", "run__cluster__spec", "sweep__spec"):
        found[row.pipeline_run_id].append(row)
    return found


def used_by(rows: Iterable[StageRun], sums: Mapping[int, Sums], now: dt.datetime) -> tuple[int, Decimal]:
    """GPU-seconds and cost of what these stages started themselves. `sums` are the totals of their sweeps."""
    rows = list(rows)
    runs = [row.run for row in rows if row.run and not row.reused]
    searched = [sums[row.sweep.pk] for row in rows if row.sweep]
    cost = sum((run.cost_at(now) for run in runs), Decimal(0)) + sum((each.cost for each in searched), Decimal(0))
    return sum(run.gpu_seconds_at(now) for run in runs) + sum(each.gpu_seconds for each in searched), cost
