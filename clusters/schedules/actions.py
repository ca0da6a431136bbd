"""Everything that a person does to a schedule. Each action is one transaction: the change and its Event.

When something comes next stands in its row (`next_at`), so that whoever looks asks the database and no clock of its own.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone

from clusters.models import Cluster, Pipeline, Schedule
from clusters.schedules.manifest import ScheduleManifest, ScheduleSpec
from portal.access import OPERATE, VIEW, Capability, appcodes_for, require
from portal.errors import Invalid
from portal.events import record
from portal.models import Appcode, User

# Of one appcode.
MOST = 200


def schedules_for(user: User) -> QuerySet[Schedule]:
    rows = Schedule.objects.select_related("appcode", "changed_by")
    return rows if user.is_administrator else rows.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def schedule_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Schedule:
    """Raises Http404 (absent or not theirs) or PermissionDenied (visible, but they may not do that)."""
    found = schedules_for(user).filter(appcode__code=appcode, name=name).first()
    if found is None:
        raise Http404(f"There is no schedule “{name}” in {appcode} that you can see.")
    require(user, found.appcode, capability)
    return found


def judge(manifest: ScheduleManifest, appcode: Appcode) -> None:
    """Raises Invalid unless what it starts is there."""
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
    """Raises Invalid."""
    require(acting_user, appcode, OPERATE)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    rows, name = Schedule.objects.filter(appcode=appcode), manifest.metadata.name
    if rows.filter(name=name).exists():
        sentence = f"{appcode.code} already has a schedule “{name}”; choose another name."
        raise Invalid.at("metadata", "name", message=sentence)
    if rows.count() >= MOST:
        raise Invalid.at("metadata", "name", message=f"{appcode.code} has {MOST} schedules already; delete one.")
    judge(manifest, appcode)
    made = Schedule(appcode=appcode, name=name)
    _write(made, manifest.spec, acting_user)
    told(made, "created", acting_user, "Created.")
    return made


@transaction.atomic
def change_schedule(schedule: Schedule, manifest: ScheduleManifest, *, acting_user: User) -> Schedule:
    """From now on it starts things in the name of whoever has changed it last."""
    found = _locked(schedule, acting_user)
    if manifest.metadata.name != found.name:
        raise Invalid.at("metadata", "name", message="A schedule keeps its name; create another one.")
    judge(manifest, found.appcode)
    if manifest.spec != ScheduleSpec.model_validate(found.spec):
        _write(found, manifest.spec, acting_user)
        told(found, "changed", acting_user, "Changed.")
    return found


@transaction.atomic
def pause_schedule(schedule: Schedule, *, acting_user: User, paused: bool) -> Schedule:
    """Nothing is started until it is resumed; times until then count as not asked for. Repeating it changes nothing."""
    found = _locked(schedule, acting_user)
    spec = ScheduleSpec.model_validate(found.spec)
    if spec.paused != paused:
        _write(found, spec.model_copy(update={"paused": paused}), acting_user)
        told(found, "paused" if paused else "resumed", acting_user, "Paused." if paused else "Resumed.")
    return found


@transaction.atomic
def delete_schedule(schedule: Schedule, *, acting_user: User) -> None:
    """What it has started goes on."""
    found = _locked(schedule, acting_user)
    told(found, "deleted", acting_user, "Deleted.")
    found.delete()


def told(schedule: Schedule, verb: str, actor: User | None, message: str) -> None:
    code = schedule.appcode.code
    record(f"schedule.{verb}", actor=actor, appcode=code, object=f"schedule {code}/{schedule.name}", message=message)


def _write(schedule: Schedule, spec: ScheduleSpec, user: User) -> None:
    schedule.spec = spec.model_dump(mode="json", by_alias=True)
    schedule.next_at = None if spec.paused else next(spec.times(timezone.now()), None)
    schedule.changed_by = user
    schedule.save()


def _locked(schedule: Schedule, user: User) -> Schedule:
    """The row as it is now, locked until the end of the transaction. Raises Http404 where it was deleted meanwhile."""
    require(user, schedule.appcode, OPERATE)
    rows = Schedule.objects.select_for_update(of=("self",), no_key=True).select_related(
        "appcode__org_node", "changed_by"
    )
    found = rows.filter(pk=schedule.pk).first()
    if found is None:
        raise Http404(f"There is no schedule “{schedule.name}” any more.")
    return found
