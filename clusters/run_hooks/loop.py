"""From a hook that is due to a run of its own cluster, which does it.

A hook has one cluster for all runs of the cluster that it belongs to, `<cluster>-<hook>`: each time it is changed to the facts of
the run that it follows and deployed again. So a cluster that runs every hour does not make five more of them every hour, a hook
is done for one run after the other, and its page is its history. What is due stands in the database; whoever makes it holds the
lock of the cluster, so that it is made once, and whoever dies over it has made nothing.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, Min, Q
from django.utils import timezone

from clusters import actions, wakeups
from clusters.after import OUTPUT_PATH, TIME_LIMIT, HookSpec, folder_of, part_name, part_of
from clusters.clouds.drivers.base import CloudError
from clusters.events import run_event
from clusters.frameworks import variables
from clusters.frameworks.parallel import Parallel
from clusters.manifest import ClusterManifest
from clusters.models import Cluster, Flavor, HookRun, Run
from clusters.run_hooks.facts import Found, environment, has_output, metrics_of
from clusters.runs.quota import barred
from datastores.drivers.base import DriverError
from portal.access import OPERATE, may
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, FieldError, Invalid
from portal.events import record_all
from portal.manifests import parse
from portal.models import Appcode

log = logging.getLogger(__name__)

DUE = Q(did=None, message="", run__cluster__deleted_at=None)
# For how long numbers and output that cannot be read are asked for again.
PATIENCE = dt.timedelta(minutes=2)
RESYNC_LIMIT = 500
# After which one look at an appcode begins nothing more.
TURN_SECONDS = 60.0
JOINED = ("run__cluster__appcode", "run__created_by")


def advance(appcode_id: int, cluster: str) -> None:
    """Makes what is due before and after runs of a cluster, or of all of the appcode where that is "". One worker at a time is at
    an appcode, so that a server of its people that does not answer keeps no more of them; the sweep finds what is due meanwhile.
    """
    until = time.monotonic() + TURN_SECONDS
    due = HookRun.objects.filter(DUE, run__cluster__appcode=appcode_id)
    with advisory_lock(Lock.HOOKS, str(appcode_id)) as is_mine:
        # As its runs do, what is due waits until the appcode can be used again.
        if not is_mine or any(barred(Appcode.objects.select_related("org_node").get(pk=appcode_id))):
            return
        names = due.values_list("run__cluster__name").annotate(first=Min("pk")).order_by("first")
        for name in [cluster] if cluster else [name for name, _ in names[:RESYNC_LIMIT]]:
            if time.monotonic() < until:
                _advance(appcode_id, name)


def _advance(appcode_id: int, cluster: str) -> None:
    """Of each hook what is due first."""
    due = HookRun.objects.filter(DUE, run__cluster__appcode=appcode_id, run__cluster__name=cluster)
    first = due.select_related(*JOINED).order_by("name", "pk").distinct("name")
    looked: dict[int, Found | None] = {}
    for row in sorted(first, key=lambda each: each.pk):
        if _is_busy(row):
            continue
        if row.run_id not in looked:
            looked[row.run_id] = Found({}, has_output=False) if row.before else _look(row.run)
        found = looked[row.run_id]
        if found is not None:
            _make(row.pk, row.run.cluster_id, found)


def resync() -> None:
    """Finds those of which the wake-up was lost, and those that waited for the numbers of their run: one wake-up for an
    appcode."""
    due = HookRun.objects.filter(DUE).values_list("run__cluster__appcode").annotate(count=Count("pk"))
    for appcode_id, _ in due.order_by("?")[:RESYNC_LIMIT]:
        wakeups.wake_whole(appcode_id, part_of(""))


def _is_busy(row: HookRun) -> bool:
    """Whether its cluster still does what was due before; the end of that wakes us."""
    cluster = row.run.cluster
    its = Cluster.objects.filter(appcode=cluster.appcode_id, part_of=part_of(cluster.name), deleted_at=None)
    its = its.filter(name=part_name(cluster.name, row.name), current_run__isnull=False)
    return its.exclude(current_run__phase__in=("Succeeded", "Failed", "Stopped")).exists()


def _look(run: Run) -> Found | None:
    """None where something cannot be looked at now and is tried again. When that has taken too long it is done without the
    numbers, and for the output its own run waits."""
    is_late = timezone.now() - run.phase_since > PATIENCE
    metrics: dict[str, float | None] = {}
    try:
        metrics = metrics_of(run)
    except (DriverError, CloudError) as error:
        log.warning("run %s: its numbers cannot be read for its hooks: %s", run.pk, error)
        if not is_late:
            return None
    try:
        return Found(metrics, has_output(run))
    except DriverError as error:
        log.warning("run %s: its output cannot be looked at for its hooks: %s", run.pk, error)
        return Found(metrics, has_output=True) if is_late else None


@transaction.atomic
def _make(hook_run_id: int, cluster_id: int, found: Found) -> None:
    """Makes the run that does it, or writes down why that cannot be."""
    Cluster.objects.select_for_update(no_key=True).only("pk").get(pk=cluster_id)
    row = HookRun.objects.filter(DUE, pk=hook_run_id).select_related(*JOINED).first()
    if row is None:
        return
    try:
        with transaction.atomic():
            if row.before and row.run.is_terminal:
                raise PermissionDenied("The run was ended before it.")
            row.did = _deployed(row, found)
    except Conflict:
        # Somebody has just deployed it by hand; it is due when that has ended.
        return
    except Invalid as error:
        row.message = " ".join(each.message for each in error.errors)
    except PermissionDenied as error:
        row.message = str(error)
    if row.message:
        if row.before:
            transaction.on_commit(lambda: wakeups.wake_waiting(row.run.cluster.appcode_id))
        record_all([run_event("run.hook_refused", row.run, f"Its hook {row.name} cannot be done: {row.message}")])
    row.save(update_fields=["did", "message"])


def _deployed(row: HookRun, found: Found) -> Run:
    """Raises Invalid, PermissionDenied and Conflict."""
    run, user = row.run, row.run.created_by
    if user is None:
        raise PermissionDenied("Who started the run is not there any more, and hooks are done in their name.")
    if not may(user, run.cluster.appcode, OPERATE):
        code = run.cluster.appcode.code
        raise PermissionDenied(f"{user.display_name}, who started the run, may run nothing in {code} any more.")
    hook = next(each for each in map(HookSpec.model_validate, run.spec["hooks"]) if each.name == row.name)
    flavor = hook.flavor or Flavor.objects.filter(enabled=True).values_list("name", flat=True).first()
    manifest = manifest_of(run, hook, flavor or "", found)
    cluster = Cluster.objects.filter(
        appcode=run.cluster.appcode_id, name=manifest.metadata.name, part_of=part_of(run.cluster.name), deleted_at=None
    ).first()
    if cluster is None:
        made = actions.create_cluster(manifest, acting_user=user, part_of=part_of(run.cluster.name)).current_run
        assert made is not None
        return made
    actions.change_cluster(cluster, manifest, acting_user=user)
    return actions.deploy(cluster, acting_user=user)


def manifest_of(run: Run, hook: HookSpec, flavor: str, found: Found) -> ClusterManifest:
    """The cluster that does `hook` after `run`, or before it. A command of the cluster's own starts with its program; one that
    several clusters use brings what it needs. Raises Invalid, as for a folder that is too long with the cluster's name in it."""
    spec, name = run.spec, run.cluster.name
    image = hook.image or spec["image"]
    own = hook.use is None
    software = ("environment", "requirements") if own and image == spec["image"] else ()
    folder = folder_of(hook.output_path or OUTPUT_PATH, name=name, run=run.number, hook=hook.name)
    wanted = {
        "framework": Parallel.name,
        "image": image,
        **{name: spec[name] for name in software if name in spec},
        "command": hook.command,
        "code": _code(run) if own else None,
        "env": {**hook.env, **{name: variables.literal(text) for name, text in environment(run, hook, found).items()}},
        "input": _input(run, hook, found),
        "output": hook.output or spec["output"],
        "outputPath": folder,
        "roles": {"worker": {"flavor": flavor, "count": 1}},
        "retries": hook.retries or 0,
        "timeLimit": hook.time_limit or TIME_LIMIT,
    }
    metadata = {"name": part_name(name, hook.name), "appcode": run.cluster.appcode.code}
    try:
        return parse(ClusterManifest, {"kind": "cluster", "metadata": metadata, "spec": wanted})
    except Invalid as invalid:
        raise Invalid([FieldError(each.path, f"{each.path[-1]}: {each.message}") for each in invalid.errors]) from None


def _input(run: Run, hook: HookSpec, found: Found) -> Any:
    """What the run has written; before it, what it is to read, the same version and run of it."""
    if hook.is_before:
        return run.spec["input"]
    return {"from": f"{run.cluster.name}/{run.number}", "when": "always"} if found.has_output else None


def _code(run: Run) -> dict[str, Any] | None:
    """Of a repository the commit that the run had."""
    code = run.spec.get("code")
    return {**code, "ref": run.code["commit"]} if code and "commit" in run.code else code
