"""Pipelines on the first page."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.db.models import F, Func, IntegerField
from django.utils import timezone

from clusters.cluster.pages.list import cents
from clusters.cluster.pages.living import RESTS, RUN_PHASE, LiveKind, Thing, owner
from clusters.pipelines.access import PIPELINES, stages_of, used_by
from clusters.pipelines.graph import ENDED
from clusters.sweeps.totals import sums_of
from portal.models import User
from portal.templatetags.portal import gpu_hours, time


def _things(pks: Collection[int], user: User, roles: Mapping[int, str] | None) -> dict[int, Thing]:
    total = Func(F("current_run__spec__stages"), function="jsonb_array_length", output_field=IntegerField())
    found = list(PIPELINES.rows.filter(pk__in=pks).annotate(total=total))
    now, runs = timezone.now(), [row.current_run for row in found if row.current_run]
    stages = stages_of(runs) if runs else {}
    searched = [stage.sweep.pk for rows in stages.values() for stage in rows if stage.sweep]
    sums = sums_of(searched, now) if searched else {}
    things = {}
    for row in found:
        run, made = row.current_run, stages.get(row.current_run_id or 0, [])
        ended = sum(stage.phase in ENDED for stage in {stage.stage: stage for stage in made}.values())
        seconds, cost = used_by(made, sums, now)
        things[row.pk] = Thing(
            kind="pipeline",
            title="Pipeline",
            name=row.name,
            appcode=row.appcode.code,
            owner=owner(row),
            phase=run.phase if run else "",
            work=f"{ended} of {row.total} stages" if run else "",
            note=run.message.partition("\n")[0] if run else "It has never been run.",
            started=time(run.created_at) if run else "",
            gpu_hours=gpu_hours(seconds) if run else "",
            cost=cents(cost) if run else "",
            whose="last run",
        )
    return things


LIVE = LiveKind(
    "pipeline",
    "Pipelines",
    "pipelines",
    PIPELINES.rows,
    RUN_PHASE,
    ("current_run__created_at", "created_at"),
    _things,
    RESTS,
)
