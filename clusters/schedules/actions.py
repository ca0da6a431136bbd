"""User actions on schedules. Each is one transaction: the change and its Event.

The next time is stored in the row (`next_at`), so that finding due schedules needs only the database.
"""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from clusters.pipelines.models import Pipeline
from clusters.runs.models import Cluster
from clusters.schedules.manifest import ScheduleManifest, ScheduleSpec
from clusters.schedules.models import Schedule
from portal.access import OPERATE, require
from portal.errors import Invalid
from portal.manifests.kept import refuse_changes
from portal.models import Appcode, User
from portal.objects import Objects

# Schedules of one appcode.
MOST = 200

SCHEDULES = Objects("schedule", Schedule.objects.select_related("appcode", "changed_by"))
schedules_for, schedule_for = SCHEDULES.visible, SCHEDULES.find


def judge(manifest: ScheduleManifest, appcode: Appcode) -> None:
    """Raises Invalid unless the cluster or pipeline exists."""
    name = manifest.spec.cluster or manifest.spec.pipeline
    if manifest.spec.pipeline:
        if not Pipeline.objects.filter(appcode=appcode, name=name).exists():
            raise Invalid.at("spec", "pipeline", message=f"{appcode.code} has no pipeline “{name}”.")
        return
    found = Cluster.objects.filter(appcode=appcode, name=name, deleted_at=None).only("part_of").first()
    if found is None:
        raise Invalid.at("spec", "cluster", message=f"{appcode.code} has no cluster “{name}”.")
    if found.part_of:
        raise Invalid.at("spec", "cluster", message=f"{name} is a part of {found.part_of}, which starts it.")


@transaction.atomic
def create_schedule(manifest: ScheduleManifest, appcode: Appcode, *, acting_user: User) -> Schedule:
    """Raises Invalid, PermissionDenied."""
    require(acting_user, appcode, OPERATE)
    name = manifest.metadata.name
    SCHEDULES.reserve(appcode, name, MOST)
    judge(manifest, appcode)
    made = Schedule(appcode=appcode, name=name)
    _write(made, manifest.spec, acting_user)
    SCHEDULES.record(made, "created", acting_user, "Created.")
    return made


@transaction.atomic
def change_schedule(schedule: Schedule, manifest: ScheduleManifest, *, acting_user: User) -> Schedule:
    """Changes the schedule, which from now on acts in the name of `acting_user`."""
    found = SCHEDULES.locked(schedule, acting_user)
    refuse_changes(manifest, name=found.name)
    judge(manifest, found.appcode)
    if manifest.spec != ScheduleSpec.stored(found.spec):
        _write(found, manifest.spec, acting_user)
        SCHEDULES.record(found, "changed", acting_user, "Changed.")
    return found


@transaction.atomic
def pause_schedule(schedule: Schedule, *, acting_user: User, paused: bool) -> Schedule:
    """Pauses or resumes it. Times during a pause do not count as missed. Repeating it changes nothing."""
    found = SCHEDULES.locked(schedule, acting_user)
    spec = ScheduleSpec.stored(found.spec)
    if spec.paused != paused:
        _write(found, spec.model_copy(update={"paused": paused}), acting_user)
        SCHEDULES.record(found, "paused" if paused else "resumed", acting_user, "Paused." if paused else "Resumed.")
    return found


@transaction.atomic
def delete_schedule(schedule: Schedule, *, acting_user: User) -> None:
    """Deletes the schedule. Runs that it started go on."""
    found = SCHEDULES.locked(schedule, acting_user)
    SCHEDULES.record(found, "deleted", acting_user, "Deleted.")
    found.delete()


def _write(schedule: Schedule, spec: ScheduleSpec, user: User) -> None:
    schedule.spec = spec.model_dump(mode="json", by_alias=True)
    schedule.next_at = None if spec.paused else next(spec.times(timezone.now()), None)
    schedule.changed_by = user
    schedule.save()
