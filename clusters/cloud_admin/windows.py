"""Maintenance and reservations of nodes: what administrators say of them, and the actions.

    {"nodes": ["n1", "n2"], "startsAt": "2027-03-31T18:00:00Z", "endsAt": "2027-03-31T20:00:00Z", "reason": "New disks"}

One that repeats is the next of a series: changing or cancelling it changes or ends the series.

Who is affected is told in the same transaction. What happens when a window begins is `runs/placing/closing.py`.
"""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Annotated, Literal

from django.db import transaction
from django.utils import timezone
from pydantic import AfterValidator, Field, StringConstraints

from clusters.admission.windows import Window as Closed
from clusters.admission.windows import clock, named
from clusters.clouds.models import Cloud, CloudState, Window
from clusters.clouds.registry import places_runs
from clusters.runs.models import Run
from clusters.runs.placing import closing
from clusters.runs.placing.windows import closed, open_at, will_be_taken
from clusters.wakeups import wake_places
from portal.access import require_administrator
from portal.errors import Conflict, Invalid
from portal.events import record
from portal.manifests import AppcodeName, Strict
from portal.manifests.appcode import Line
from portal.models import Appcode, User

# Windows of one cloud that have not ended.
MOST = 100
# A start is at most that long ago: forms are filled in before it, and sent after it.
LATE = dt.timedelta(minutes=10)
LONGEST = dt.timedelta(days=366)


def _utc(value: dt.datetime) -> dt.datetime:
    try:
        return value.astimezone(dt.UTC) if value.tzinfo else value.replace(tzinfo=dt.UTC)
    except OverflowError:
        raise ValueError("Give a time like 2027-03-31T18:00:00Z.") from None


Moment = Annotated[dt.datetime, AfterValidator(_utc)]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class WindowSpec(Strict):
    """A stretch of time on nodes of a cloud, for nobody, or for one appcode."""

    nodes: Annotated[tuple[NodeName, ...], Field(min_length=1, max_length=5000)] = Field(examples=[["gpu-1", "gpu-2"]])
    starts_at: Moment | None = Field(default=None, description="UTC where it names no zone; null for now.")
    ends_at: Moment
    appcode: AppcodeName | None = Field(
        default=None, description="The only appcode whose runs may start there meanwhile; null for maintenance."
    )
    reason: Annotated[Line, StringConstraints(min_length=1, max_length=200)] = Field(
        description="Everybody reads it whose runs are affected.", examples=["New disks"]
    )
    repeat: Literal["never", "daily", "weekly"] = Field(
        default="never",
        description="When it begins, the next one is made, a day or a week later by UTC. It is shorter than that.",
    )


@transaction.atomic
def open_window(row: Cloud, spec: WindowSpec, *, acting_user: User) -> Window:
    """Raises Invalid and Conflict."""
    require_administrator(acting_user)
    at = timezone.now()
    _lock(row)
    window = _filled(Window(cloud=row, created_by=acting_user), spec, at)
    if open_at(at).filter(cloud=row).count() >= MOST:
        raise Conflict(f"{row.title} has {MOST} windows already that have not ended; cancel some.")
    window.save()
    _record("created", window, acting_user)
    closing.announce(window, row.name, at)
    return window


@transaction.atomic
def change(window: Window, spec: WindowSpec, *, acting_user: User) -> Window:
    """Idempotent. Of one that has begun, only the end and the reason; the next of its series is a window of its own. Raises
    Invalid and Conflict."""
    require_administrator(acting_user)
    at = timezone.now()
    _lock(window.cloud)
    window = _living(window, at)
    was, before = _facts(window), closed(window)
    if window.starts_at <= at and spec.starts_at in (None, window.starts_at):
        spec = spec.model_copy(update={"starts_at": window.starts_at})
    window = _filled(window, spec, at)
    now = _facts(window)
    if window.begun_at and was[:3] != now[:3]:
        raise Conflict("It has begun, so only its end and its reason can be changed. Cancel it, and make another one.")
    if was == now:
        return window
    window.told_at = window.told_at if window.begun_at else None
    window.save()
    _record("changed", window, acting_user)
    if not window.begun_at and was[:4] != now[:4]:
        still = {run.pk for run in closing.announce(window, window.cloud.name, at)}
        freed = [run for run in will_be_taken(before, window.cloud.name) if run.pk not in still]
        closing.withdraw(window, freed, at)
    return window


@transaction.atomic
def cancel(window: Window, *, acting_user: User) -> None:
    """Its nodes are open at once. Runs that were given back are not brought back before others. Raises Conflict."""
    require_administrator(acting_user)
    at = timezone.now()
    window = _living(window, at)
    window.cancelled_at = at
    window.save(update_fields=["cancelled_at"])
    _record("cancelled", window, acting_user)
    if not window.begun_at:
        closing.withdraw(window, will_be_taken(closed(window), window.cloud.name), at)


def affected(row: Cloud, spec: WindowSpec, window: Window | None = None) -> list[Run]:
    """The runs that will be given back, as far as is known now. Raises Invalid and Conflict, as the actions do."""
    at = timezone.now()
    found = _filled(window or Window(cloud=row), spec, at)
    return will_be_taken(Closed(0, frozenset(found.nodes), found.starts_at, found.ends_at, found.appcode_id), row.name)


def _living(window: Window, at: dt.datetime) -> Window:
    rows = open_at(at).select_for_update(of=("self",), no_key=True).select_related("cloud", "created_by")
    found = rows.filter(pk=window.pk).first()
    if found is None:
        raise Conflict("It has ended, or somebody has cancelled it.")
    return found


def _lock(row: Cloud) -> None:
    """Makes those who change windows of a cloud wait for each other, so that two do not overlap."""
    if not Cloud.objects.select_for_update(no_key=True).filter(pk=row.pk).exists():
        raise Conflict(f"Somebody else has removed {row.name} meanwhile.")


def _filled(window: Window, spec: WindowSpec, at: dt.datetime) -> Window:
    """The window as `spec` says it, unsaved."""
    cloud = window.cloud
    if not places_runs(cloud.name):
        raise Conflict(
            f"On {cloud.title} the portal does not choose the nodes of runs, so it cannot keep runs off them."
        )
    starts_at = spec.starts_at or at
    if starts_at < at - LATE and starts_at != window.starts_at:
        raise Invalid.at("startsAt", message="That is past.")
    if spec.ends_at <= max(starts_at, at):
        raise Invalid.at("endsAt", message="It has to end after it has begun, and later than now.")
    if spec.ends_at > at + LONGEST:
        raise Invalid.at("endsAt", message="At most a year from now.")
    repeat = Window.Repeat.NEVER if spec.repeat == "never" else Window.Repeat(spec.repeat)
    if repeat and spec.ends_at - starts_at >= closing.EVERY[repeat]:
        raise Invalid.at("repeat", message=f"It lasts longer than until the next one, {repeat.label}.")
    appcode = Appcode.objects.filter(code=spec.appcode).first() if spec.appcode else None
    if spec.appcode and appcode is None:
        raise Invalid.at("appcode", message=f"There is no appcode “{spec.appcode}”.")
    nodes = list(dict.fromkeys(spec.nodes))
    if unknown := sorted(set(nodes) - node_names(cloud)):
        raise Invalid.at("nodes", message=f"{cloud.title} has no node {named(unknown)}.")
    window.nodes, window.starts_at, window.ends_at = nodes, starts_at, spec.ends_at
    window.appcode, window.reason, window.repeat = appcode, spec.reason, repeat
    _require_apart(window, at)
    return window


def _require_apart(window: Window, at: dt.datetime) -> None:
    others = open_at(at).filter(cloud=window.cloud, starts_at__lt=window.ends_at, ends_at__gt=window.starts_at)
    for other in others.exclude(pk=window.pk).exclude(appcode=window.appcode_id):
        if both := sorted(set(other.nodes) & set(window.nodes)):
            what = "reserved" if other.appcode_id else "closed for maintenance"
            when = f"from {clock(other.starts_at)} to {clock(other.ends_at)}"
            raise Invalid.at("nodes", message=f"{named(both)}: {what} already {when}.")


def node_names(cloud: Cloud) -> set[str]:
    """As the cloud last reported them. One query."""
    seen = CloudState.objects.filter(name=cloud.name).values_list("capacity", flat=True).first() or {}
    return {node["name"] for node in seen.get("nodes", [])}


def _facts(window: Window) -> tuple[object, ...]:
    return window.starts_at, sorted(window.nodes), window.appcode_id, window.ends_at, window.reason, window.repeat


def _record(verb: str, window: Window, actor: User) -> None:
    code = f" for {window.appcode.code}" if window.appcode else ""
    when = f"from {clock(window.starts_at)} to {clock(window.ends_at)}"
    often = f", {window.get_repeat_display()}" if window.repeat else ""
    what = f"{'Reservation' if code else 'Maintenance'} of {named(window.nodes)}{code} {when}{often}: {window.reason}"
    record(
        f"window.{verb}", actor=actor, object=f"window {window}", message=what, nodes=window.nodes,
        starts_at=clock(window.starts_at), ends_at=clock(window.ends_at),
    )  # fmt: skip
    transaction.on_commit(partial(wake_places, window.cloud.name))
