"""What people do to sweeps. Each action is one transaction: what is wanted, an event, and a wake-up of the loop on commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from clusters import wakeups
from clusters.manifest import ClusterManifest, ClusterSpec
from clusters.models import Cluster, Sweep, Trial
from clusters.spec.catalog import resolve, usable_appcode
from clusters.spec.packages import why_not_there
from clusters.sweeps import copies
from clusters.sweeps.manifest import SweepManifest, SweepSpec, Value, some_point, trial_spec
from clusters.sweeps.telling import tell_end
from portal.access import OPERATE, require
from portal.errors import Conflict, Invalid
from portal.events import record
from portal.manifests import parse
from portal.models import Appcode, User

# What may be another from now on; all else is what its trials have in common.
CHANGEABLE = ("trials", "parallel", "retries")
# Sweeps of an appcode that are not over: what they may have running is bounded by it, because quota bounds GPUs alone.
MOST = 100


def create_sweep(manifest: SweepManifest, *, acting_user: User, appcode: Appcode | None = None) -> Sweep:
    """Writes it down; its loop starts the first trials. `appcode` is the row that the manifest names, where it was just read.

    Raises Invalid (what a trial names has to be there now) or PermissionDenied.
    """
    template = manifest.spec.template
    if template.requirements:
        usable_appcode(manifest.metadata.appcode, acting_user, appcode)
        # Outside of the transaction: an index may take seconds.
        if why := why_not_there(template.required):
            raise Invalid.at("spec", "template", "requirements", message=why)
    try:
        return _create(manifest, acting_user, appcode)
    except IntegrityError as error:
        if "sweep_name_once" not in str(error):
            raise
        code, name = manifest.metadata.appcode, manifest.metadata.name
        message = f"{code} already has a sweep “{name}”, or is still deleting one; choose another name."
        raise Invalid.at("metadata", "name", message=message) from error


@transaction.atomic
def _create(manifest: SweepManifest, user: User, appcode: Appcode | None) -> Sweep:
    name, spec = manifest.metadata.name, manifest.spec
    appcode = usable_appcode(manifest.metadata.appcode, user, appcode)
    taken = Cluster.objects.filter(appcode=appcode, deleted_at=None, name__regex=rf"^{name}-[0-9]+(-[0-9]+)?$")
    if found := taken.values_list("name", flat=True).first():
        message = f"There is a cluster “{found}”, as a trial of this would be called; choose another name."
        raise Invalid.at("metadata", "name", message=message)
    if Sweep.objects.filter(appcode=appcode, settled=False).count() >= MOST:
        message = f"{appcode.code} has {MOST} sweeps that are not over; wait for one, or cancel what is not needed."
        raise Invalid.at("metadata", "name", message=message)
    judge_sweep(spec, appcode)
    sweep = Sweep.objects.create(
        appcode=appcode, name=name, spec=spec.model_dump(mode="json", by_alias=True), created_by=user, acts_for=user
    )
    _record("created", sweep, user, f"{spec.points} points, {spec.parallel} at once.")
    return _woken(sweep)


@transaction.atomic
def change_sweep(sweep: Sweep, manifest: SweepManifest, *, acting_user: User) -> Sweep:
    """More or fewer trials, at once and in all, and how often one is retried; with more of them a sweep that was over goes on.
    Sent twice, it is changed once. Raises Invalid where anything else differs."""
    sweep = _locked(sweep, acting_user)
    for field in ("appcode", "name"):
        if getattr(manifest.metadata, field) != (sweep.appcode.code if field == "appcode" else sweep.name):
            raise Invalid.at("metadata", field, message="A sweep keeps its name and its appcode; make another one.")
    was, now = SweepSpec.model_validate(sweep.spec), manifest.spec
    for name in SweepSpec.model_fields:
        if name not in CHANGEABLE and getattr(was, name) != getattr(now, name):
            message = (
                "This is what its trials have in common; make another sweep. Trials, parallel and retries may change."
            )
            raise Invalid.at("spec", name, message=message)
    if was == now:
        return sweep
    begun = sweep.trials.values("number").distinct().count()
    if now.points < begun:
        raise Invalid.at("spec", "trials", message=f"{begun} have begun already.")
    sweep.spec = now.model_dump(mode="json", by_alias=True)
    if sweep.phase in (Sweep.Phase.SUCCEEDED, Sweep.Phase.FAILED) and now.points > begun:
        _go_on(sweep, acting_user)
    sweep.settled = False
    sweep.save()
    _record("changed", sweep, acting_user, f"{now.points} points, {now.parallel} at once.")
    return _woken(sweep)


@transaction.atomic
def pause_sweep(sweep: Sweep, *, acting_user: User) -> Sweep:
    """Starts no more; what runs goes on. Raises Conflict for one that is over."""
    sweep = _locked(sweep, acting_user)
    if sweep.phase == Sweep.Phase.PAUSED:
        return sweep
    if sweep.phase != Sweep.Phase.RUNNING:
        raise Conflict(f"{sweep.name} is over ({sweep.phase}).")
    sweep.phase, sweep.message = Sweep.Phase.PAUSED, f"Paused by {acting_user.display_name}."
    sweep.save()
    _record("paused", sweep, acting_user, sweep.message)
    return _woken(sweep)


@transaction.atomic
def resume_sweep(sweep: Sweep, *, acting_user: User) -> Sweep:
    """Goes on, from now in the name of who resumes it. Raises Conflict for one that is over: with more trials it goes on."""
    sweep = _locked(sweep, acting_user)
    if sweep.phase == Sweep.Phase.RUNNING:
        return sweep
    if sweep.phase != Sweep.Phase.PAUSED:
        raise Conflict(f"{sweep.name} is over ({sweep.phase}); give it more trials, or make another one.")
    judge_sweep(SweepSpec.model_validate(sweep.spec), sweep.appcode)
    _go_on(sweep, acting_user)
    sweep.save()
    _record("resumed", sweep, acting_user, "Resumed.")
    return _woken(sweep)


@transaction.atomic
def cancel_sweep(sweep: Sweep, *, acting_user: User) -> Sweep:
    """Ends it and all of its trials. Repeating it changes nothing."""
    sweep = _locked(sweep, acting_user)
    if sweep.phase in (Sweep.Phase.RUNNING, Sweep.Phase.PAUSED):
        sweep.phase, sweep.message = Sweep.Phase.STOPPED, f"Cancelled by {acting_user.display_name}."
        sweep.settled, sweep.finished_at = False, timezone.now()
        sweep.save()
        _record("cancelled", sweep, acting_user, sweep.message)
        tell_end(sweep)
    return _woken(sweep)


@transaction.atomic
def delete_sweep(sweep: Sweep, *, acting_user: User) -> None:
    """Out of sight at once; its loop deletes its clusters. Data in datastores stays, logs go."""
    sweep = _locked(sweep, acting_user)
    sweep.deleted_at, sweep.settled = timezone.now(), False
    sweep.save()
    _record("deleted", sweep, acting_user, "Deleted.")
    _woken(sweep)


def cluster_of(trial: Trial, name: str) -> ClusterManifest:
    """A cluster of its own that trains again what a trial has trained, on the whole input where that was a fold. Raises
    Invalid."""
    sweep = trial.sweep
    body = trial_spec(SweepSpec.model_validate(sweep.spec), trial.parameters)
    metadata = {"name": name, "appcode": sweep.appcode.code}
    return parse(ClusterManifest, {"kind": "cluster", "metadata": metadata, "spec": body})


def judge_sweep(spec: SweepSpec, appcode: Appcode) -> None:
    """Whether a trial of it, or the run that trials share, could be made now. Raises Invalid, at the template; at `parallel`
    where so many at once are too many."""
    point = some_point(spec.parameters)
    body = _shared(spec, point) if spec.one_run else trial_spec(spec, point, 1 if spec.folds else 0)
    try:
        resolve(ClusterSpec.model_validate(body), appcode)
    except Invalid as error:
        raise Invalid([replace(each, path=_in_sweep(spec, each.path)) for each in error.errors]) from error


def _shared(spec: SweepSpec, point: Mapping[str, Value]) -> dict[str, Any]:
    points = [point] * min(spec.parallel, spec.points)
    count = copies.fitting(spec, points)
    if not count:
        raise Invalid.at("spec", "template", "command", message=copies.TOO_LONG)
    return copies.shared_spec(spec, points[:count])


def _in_sweep(spec: SweepSpec, path: tuple[str, ...]) -> tuple[str, ...]:
    """Where a sweep says what a cluster's manifest says there."""
    if spec.one_run and path[:2] == ("spec", "roles") and path[3:] == ("atOnce",):
        return ("spec", "parallel")
    return ("spec", "template", *path[1:]) if path[:1] == ("spec",) else path


def _go_on(sweep: Sweep, user: User) -> None:
    sweep.phase, sweep.message, sweep.finished_at = Sweep.Phase.RUNNING, "", None
    sweep.acts_for, sweep.settled = user, False


def _locked(sweep: Sweep, user: User) -> Sweep:
    """The row as it is now, until the end of the transaction. Raises Conflict for one that was deleted meanwhile."""
    require(user, sweep.appcode, OPERATE)
    found = (
        Sweep.objects.select_for_update(of=("self",), no_key=True)
        .select_related("appcode", "created_by")
        .filter(Q(deleted_at=None), pk=sweep.pk)
        .first()
    )
    if found is None:
        raise Conflict(f"{sweep.name} was deleted.")
    return found


def _woken(sweep: Sweep) -> Sweep:
    transaction.on_commit(partial(wakeups.wake_whole, sweep.appcode_id, sweep.part_of))
    return sweep


def _record(verb: str, sweep: Sweep, actor: User | None, message: str, **data: Any) -> None:
    record(f"sweep.{verb}", actor=actor, appcode=sweep.appcode.code, object=f"sweep {sweep}", message=message, **data)
