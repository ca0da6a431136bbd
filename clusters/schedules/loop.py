"""Starts what is due and stores the next time, in one transaction, so that nothing is started twice.

The resync finds due schedules by one indexed query and wakes a worker for each, which checks again under the row's lock.
"""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone

from clusters import wakeups
from clusters.cluster import actions
from clusters.pipelines.actions import cancel_pipeline, run_pipeline, run_pipeline_next
from clusters.pipelines.models import Pipeline
from clusters.runs.models import Cluster
from clusters.schedules.actions import SCHEDULES
from clusters.schedules.manifest import LATE, ScheduleSpec
from clusters.schedules.models import Schedule
from portal.errors import Conflict, Invalid, sentence
from portal.models import User

LIMIT = 500


def resync() -> None:
    """Wakes a worker for each due schedule. One query."""
    due = Schedule.objects.filter(next_at__lte=timezone.now()).order_by("next_at")
    for appcode_id, name in due.values_list("appcode_id", "name")[:LIMIT]:
        wakeups.wake_whole(appcode_id, f"schedules/{name}")


@transaction.atomic
def advance(appcode_id: int, name: str) -> None:
    """Starts a due schedule once and stores its next time. Does nothing if it is no longer due."""
    now = timezone.now()
    schedule = SCHEDULES.hold(appcode=appcode_id, name=name, next_at__lte=now)
    if schedule is None or schedule.next_at is None:
        return
    spec = ScheduleSpec.stored(schedule.spec)
    verb, result = "skipped", "The portal did not run at that time."
    if spec.missed == "once" or now - schedule.next_at <= LATE:
        try:
            with transaction.atomic():
                verb, result = _start(schedule, spec)
        except (Invalid, Conflict, PermissionDenied) as error:
            why = sentence(error)
            verb, result = "failed", f"Nothing was started: {why}"
    schedule.last_at, schedule.last_result = schedule.next_at, result[:300]
    schedule.next_at = next(spec.times(now), None)
    schedule.save(update_fields=["next_at", "last_at", "last_result"])
    SCHEDULES.record(schedule, verb, None, f"{schedule.last_at:%Y-%m-%d %H:%M} UTC: {result}")


def _start(schedule: Schedule, spec: ScheduleSpec) -> tuple[str, str]:
    """Returns "started" or "skipped", and a sentence. Raises Invalid, Conflict and PermissionDenied."""
    user = schedule.changed_by
    if user is None:
        raise Conflict("Who has saved the schedule is not known any more; save it again.")
    if spec.pipeline:
        pipeline = Pipeline.objects.filter(appcode=schedule.appcode, name=spec.pipeline)
        found = pipeline.select_related("appcode__org_node", "current_run").first()
        if found is None:
            raise Conflict(f"There is no pipeline “{spec.pipeline}” any more.")
        return _run(found, spec.overlapping, user)
    cluster = Cluster.objects.filter(appcode=schedule.appcode, name=spec.cluster, deleted_at=None)
    one = cluster.select_related("appcode__org_node", "current_run").first()
    if one is None:
        raise Conflict(f"There is no cluster “{spec.cluster}” any more.")
    return _deploy(one, spec.overlapping, user)


def _run(pipeline: Pipeline, overlapping: str, user: User) -> tuple[str, str]:
    living = pipeline.current_run
    if living is None or living.finished_at is not None:
        run = run_pipeline(pipeline, acting_user=user, newest=True)
        return "started", f"Run {run.number} was started."
    if overlapping == "skip":
        return "skipped", f"Run {living.number} was still going on."
    if overlapping == "cancel":
        cancel_pipeline(pipeline, acting_user=user)
    run_pipeline_next(pipeline, acting_user=user)
    return "started", f"The next run starts as soon as run {living.number} is over{_ended(overlapping)}."


def _deploy(cluster: Cluster, overlapping: str, user: User) -> tuple[str, str]:
    living = cluster.current_run
    if living is None or living.is_terminal:
        run = actions.deploy(cluster, acting_user=user, newest=True)
        return "started", f"Run {run.number} was started."
    if overlapping == "skip":
        return "skipped", f"Run {living.number} was still going on."
    actions.redeploy(cluster, acting_user=user, end=overlapping == "cancel")
    return "started", f"The next run starts as soon as run {living.number} is over{_ended(overlapping)}."


def _ended(overlapping: str) -> str:
    return ", which was ended for it" if overlapping == "cancel" else ""
