"""Reading pipelines: the only way from a person to rows. What is not theirs raises the same Http404 as what does not exist."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet
from django.http import Http404

from clusters.models import Pipeline, PipelineRun, StageRun
from portal.access import VIEW, Capability, appcodes_for, require
from portal.models import User


def pipelines_for(user: User) -> QuerySet[Pipeline]:
    """Those of one's appcodes, with appcode, creator and latest run joined; the specs, which may be long, where they are asked
    for."""
    rows = Pipeline.objects.select_related("appcode", "created_by", "current_run__created_by")
    rows = rows.defer("spec", "current_run__spec")
    return rows if user.is_administrator else rows.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def pipeline_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Pipeline:
    """Raises Http404 (absent or not theirs) or PermissionDenied (visible, but they may not do that)."""
    pipeline = pipelines_for(user).filter(appcode__code=appcode, name=name).first()
    if pipeline is None:
        raise Http404(f"There is no pipeline “{name}” in {appcode} that you can see.")
    require(user, pipeline.appcode, capability)
    return pipeline


def pipeline_run_for(user: User, appcode: str, name: str, number: int) -> PipelineRun:
    found = pipeline_for(user, appcode, name).runs.select_related("created_by").filter(number=number).first()
    if found is None:
        raise Http404(f"{name} has no run {number}.")
    return found


def stages_of(runs: Iterable[PipelineRun]) -> dict[int, list[StageRun]]:
    """Of each of these runs by its number in the database: all rows of its stages with their runs, in the order in which they
    were made, so that the last one of a stage counts. One query."""
    rows = StageRun.objects.filter(pipeline_run__in=[run.pk for run in runs]).order_by("pk")
    found: dict[int, list[StageRun]] = {run.pk: [] for run in runs}
    for row in rows.select_related("run__cluster", "sweep").defer("run__spec", "run__cluster__spec", "sweep__spec"):
        found[row.pipeline_run_id].append(row)
    return found
