"""User actions on sweeps. Each is one transaction: the change, an event, and a wake-up of the loop on commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from clusters import wakeups
from clusters.catalog.lookup import resolve, usable_appcode
from clusters.catalog.package_index import why_not_there
from clusters.manifest.cluster import ClusterManifest, ClusterSpec
from clusters.runs.models import Cluster
from clusters.sweeps import copies
from clusters.sweeps.access import SWEEPS
from clusters.sweeps.manifest import SweepManifest, SweepSpec, trial_spec
from clusters.sweeps.models import Sweep, Trial
from clusters.sweeps.notifications import tell_end
from clusters.sweeps.parameters import Value, some_point
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.manifests.kept import refuse_changes
from portal.models import Appcode, User

# Unfinished sweeps of an appcode. This bounds what they may have running, because the quota only bounds GPUs.
MOST = 100


def create_sweep(manifest: SweepManifest, *, acting_user: User, appcode: Appcode | None = None) -> Sweep:
    """Stores the sweep; its loop starts the first trials. `appcode` is the row that the manifest names, if it was just read.

    Raises Invalid (also if a name in a trial does not exist now) or PermissionDenied.
    """
    template = manifest.spec.template
    if template.requirements:
        usable_appcode(manifest.metadata.appcode, acting_user, appcode)
        # Outside of the transaction: the index may take seconds.
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
    SWEEPS.record(sweep, "created", user, f"{spec.points} trials, {spec.parallel} in parallel.")
    return _woken(sweep)


@transaction.atomic
def change_sweep(sweep: Sweep, manifest: SweepManifest, *, acting_user: User) -> Sweep:
    """With more trials, a finished sweep goes on. Sent twice, it changes once. Raises Invalid if a kept field differs."""
    sweep = SWEEPS.locked(sweep, acting_user)
    was, now = SweepSpec.stored(sweep.spec), manifest.spec
    refuse_changes(manifest, name=sweep.name, appcode=sweep.appcode.code, spec=was)
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
    SWEEPS.record(sweep, "changed", acting_user, f"{now.points} trials, {now.parallel} in parallel.")
    return _woken(sweep)


@transaction.atomic
def pause_sweep(sweep: Sweep, *, acting_user: User) -> Sweep:
    """Starts no more trials; those that run go on. Raises Conflict if the sweep is over."""
    sweep = SWEEPS.locked(sweep, acting_user)
    if sweep.phase == Sweep.Phase.PAUSED:
        return sweep
    if sweep.phase != Sweep.Phase.RUNNING:
        raise Conflict(f"{sweep.name} is over ({sweep.phase}).")
    sweep.phase, sweep.message = Sweep.Phase.PAUSED, f"Paused by {acting_user.display_name}."
    sweep.save()
    SWEEPS.record(sweep, "paused", acting_user, sweep.message)
    return _woken(sweep)


@transaction.atomic
def resume_sweep(sweep: Sweep, *, acting_user: User) -> Sweep:
    """Resumes the sweep in the name of `acting_user`. Raises Conflict if it is over; give it more trials instead."""
    sweep = SWEEPS.locked(sweep, acting_user)
    if sweep.phase == Sweep.Phase.RUNNING:
        return sweep
    if sweep.phase != Sweep.Phase.PAUSED:
        raise Conflict(f"{sweep.name} is over ({sweep.phase}); give it more trials, or make another one.")
    judge_sweep(SweepSpec.stored(sweep.spec), sweep.appcode)
    _go_on(sweep, acting_user)
    sweep.save()
    SWEEPS.record(sweep, "resumed", acting_user, "Resumed.")
    return _woken(sweep)


@transaction.atomic
def cancel_sweep(sweep: Sweep, *, acting_user: User) -> Sweep:
    """Ends the sweep and all its trials. Repeating it changes nothing."""
    sweep = SWEEPS.locked(sweep, acting_user)
    if sweep.phase in (Sweep.Phase.RUNNING, Sweep.Phase.PAUSED):
        sweep.phase, sweep.message = Sweep.Phase.STOPPED, f"Stopped by {acting_user.display_name}."
        sweep.settled, sweep.finished_at = False, timezone.now()
        sweep.save()
        SWEEPS.record(sweep, "cancelled", acting_user, sweep.message)
        tell_end(sweep)
    return _woken(sweep)


@transaction.atomic
def delete_sweep(sweep: Sweep, *, acting_user: User) -> None:
    """Hides the sweep at once; its loop deletes its clusters and their logs. Data in datastores stays."""
    sweep = SWEEPS.locked(sweep, acting_user)
    sweep.deleted_at, sweep.settled = timezone.now(), False
    sweep.save()
    SWEEPS.record(sweep, "deleted", acting_user, "Deleted.")
    _woken(sweep)


def cluster_of(trial: Trial, name: str) -> ClusterManifest:
    """Manifest of a cluster that repeats a trial's training, on the whole input if the trial had a fold. Raises Invalid."""
    sweep = trial.sweep
    body = trial_spec(SweepSpec.stored(sweep.spec), trial.parameters)
    metadata = {"name": name, "appcode": sweep.appcode.code}
    return parse(ClusterManifest, {"kind": "cluster", "metadata": metadata, "spec": body})


def judge_sweep(spec: SweepSpec, appcode: Appcode) -> None:
    """Raises Invalid at the template unless a trial, or the run that trials share, could be created now; at `parallel` if too
    many would run at once."""
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
    """The path in a sweep's manifest for a path in a cluster's manifest."""
    if spec.one_run and path[:2] == ("spec", "roles") and path[3:] == ("atOnce",):
        return ("spec", "parallel")
    return ("spec", "template", *path[1:]) if path[:1] == ("spec",) else path


def _go_on(sweep: Sweep, user: User) -> None:
    sweep.phase, sweep.message, sweep.finished_at = Sweep.Phase.RUNNING, "", None
    sweep.acts_for, sweep.settled = user, False


def _woken(sweep: Sweep) -> Sweep:
    transaction.on_commit(partial(wakeups.wake_whole, sweep.appcode_id, sweep.part_of))
    return sweep
