"""Starts the cluster that executes a due hook.

A hook has one cluster, `<cluster>-<hook>`, for all runs of its cluster. Each time, the cluster is changed to the facts of the
run and deployed again. So an hourly cluster does not create more clusters every hour, a hook is done for one run after the
other, and the page of its cluster is its history. Due hooks are rows. They are started under the lock of the cluster, so each
is started once, and a crash leaves nothing half done.
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

from clusters import wakeups
from clusters.catalog.models import Flavor
from clusters.clouds.drivers.base import CloudError
from clusters.cluster import actions
from clusters.events import run_event
from clusters.frameworks import variables
from clusters.frameworks.parallel import Parallel
from clusters.hooks.facts import Found, environment, has_output, metrics_of
from clusters.hooks.models import HookRun
from clusters.manifest.cluster import ClusterManifest
from clusters.manifest.hook_spec import OUTPUT_PATH, TIME_LIMIT, HookSpec, folder_of, part_name, part_of
from clusters.runs.models import Cluster, Run
from clusters.runs.quota import barred
from datastores.drivers.base import DriverError
from portal.access import OPERATE, may
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, FieldError, Invalid, sentence
from portal.events import record_all
from portal.manifests import parse
from portal.models import Appcode

log = logging.getLogger(__name__)

DUE = Q(did=None, message="", run__cluster__deleted_at=None)
# How long unreadable metrics and output are retried.
PATIENCE = dt.timedelta(minutes=2)
RESYNC_LIMIT = 500
# Seconds after which one turn of an appcode starts nothing more.
TURN_SECONDS = 60.0
JOINED = ("run__cluster__appcode", "run__created_by")


def advance(appcode_id: int, cluster: str) -> None:
    """Starts due hooks of runs of a cluster, or of the whole appcode if `cluster` is "". One worker at a time handles an
    appcode, so that its unresponsive server does not block more; the resync finds what becomes due meanwhile."""
    until = time.monotonic() + TURN_SECONDS
    due = HookRun.objects.filter(DUE, run__cluster__appcode=appcode_id)
    with advisory_lock(Lock.HOOKS, str(appcode_id)) as is_mine:
        # Like runs, hooks wait until the appcode can be used again.
        if not is_mine or any(barred(Appcode.objects.select_related("org_node").get(pk=appcode_id))):
            return
        names = due.values_list("run__cluster__name").annotate(first=Min("pk")).order_by("first")
        for name in [cluster] if cluster else [name for name, _ in names[:RESYNC_LIMIT]]:
            if time.monotonic() < until:
                _advance(appcode_id, name)


def _advance(appcode_id: int, cluster: str) -> None:
    """Starts the first due row of each hook."""
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
    """Finds lost wake-ups, and hooks that wait for the metrics of their run. One wake-up for each appcode."""
    due = HookRun.objects.filter(DUE).values_list("run__cluster__appcode").annotate(count=Count("pk"))
    for appcode_id, _ in due.order_by("?")[:RESYNC_LIMIT]:
        wakeups.wake_whole(appcode_id, part_of(""))


def _is_busy(row: HookRun) -> bool:
    """Whether its cluster still runs for an earlier row; the end of that run wakes this loop."""
    cluster = row.run.cluster
    its = Cluster.objects.filter(appcode=cluster.appcode_id, part_of=part_of(cluster.name), deleted_at=None)
    its = its.filter(name=part_name(cluster.name, row.name), current_run__isnull=False)
    return its.exclude(current_run__phase__in=("Succeeded", "Failed", "Stopped")).exists()


def _look(run: Run) -> Found | None:
    """The facts for the hooks; None if something cannot be read now and is retried. After PATIENCE the metrics are left out,
    and the output counts as present; the hook's own run then waits for it."""
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
    """Creates the run that does the hook, or stores why that is impossible."""
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
        # A user has just deployed its cluster. The hook is due when that run has ended.
        return
    except (Invalid, PermissionDenied) as error:
        row.message = sentence(error)
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
    return actions.deploy_part(manifest, part_of(run.cluster.name), acting_user=user)


def manifest_of(run: Run, hook: HookSpec, flavor: str, found: Found) -> ClusterManifest:
    """The cluster that does `hook` before or after `run`. A hook defined in the cluster gets its code; a saved hook, which
    several clusters use, brings what it needs. Raises Invalid, for example if the cluster's name makes a folder too long."""
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
    """The run's output; for a `before` hook the input that the run will read, with the same version and source run."""
    if hook.is_before:
        return run.spec["input"]
    return {"from": f"{run.cluster.name}/{run.number}", "when": "always"} if found.has_output else None


def _code(run: Run) -> dict[str, Any] | None:
    """The run's code, with the same commit if it is from a repository."""
    code = run.spec.get("code")
    return {**code, "ref": run.code["commit"]} if code and "commit" in run.code else code
