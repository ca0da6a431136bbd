"""What is due is started, and the time after it stands in the row: one transaction for both, so nothing is started twice.

The sweep finds what is due by one indexed query and wakes a worker for each, which looks again under the lock of the row.
"""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone

from clusters import actions, wakeups
from clusters.models import Cluster, Pipeline, Schedule
from clusters.pipelines.actions import cancel_pipeline, run_pipeline, run_pipeline_next
from clusters.schedules.actions import told
from clusters.schedules.manifest import LATE, ScheduleSpec
from portal.errors import Conflict, Invalid
from portal.models import User

LIMIT = 500


def resync() -> None:
    """Wakes a worker for each schedule that is due. One query."""
    due = Schedule.objects.filter(next_at__lte=timezone.now()).order_by("next_at")
    for appcode_id, name in due.values_list("appcode_id", "name")[:LIMIT]:
        wakeups.wake_whole(appcode_id, f"schedules/{name}")


@transaction.atomic
def advance(appcode_id: int, name: str) -> None:
    """Starts what is due, once, and moves on; nothing where it is not due any more."""
    now = timezone.now()
    rows = Schedule.objects.select_for_update(of=("self",), no_key=True).select_related(
        "appcode__org_node", "changed_by"
    )
    schedule = rows.filter(appcode=appcode_id, name=name, next_at__lte=now).first()
    if schedule is None or schedule.next_at is None:
        return
    spec = ScheduleSpec.model_validate(schedule.spec)
    verb, result = "skipped", "The portal did not run at that time."
    if spec.missed == "once" or now - schedule.next_at <= LATE:
        try:
            with transaction.atomic():
                verb, result = _start(schedule, spec)
        except (Invalid, Conflict, PermissionDenied) as error:
            why = " ".join(each.message for each in error.errors) if isinstance(error, Invalid) else str(error)
            verb, result = "failed", f"Nothing was started: {why}"
    schedule.last_at, schedule.last_result = schedule.next_at, result[:300]
    schedule.next_at = next(spec.times(now), None)
    schedule.save(update_fields=["next_at", "last_at", "last_result"])
    told(schedule, verb, None, f"{schedule.last_at:%Y-%m-%d %H:%M} UTC: {result}")


def _start(schedule: Schedule, spec: ScheduleSpec) -> tuple[str, str]:
    """Which of started and skipped it is, and what happened. Raises Invalid, Conflict and PermissionDenied."""
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
