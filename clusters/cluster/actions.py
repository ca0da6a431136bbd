"""User actions on clusters. Each action is one transaction: the change, its Event, and a wake-up on commit.

Actions only write the desired state and never call a cloud. `reconcile.py` does that: the wake-up starts it after the
commit, and the sweep does if the wake-up is lost. Rows are locked in one order everywhere, appcode → cluster → run,
with NO KEY UPDATE: a plain FOR UPDATE would wait for the foreign keys of rows that the watch inserts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Max, Q
from django.utils import timezone

from clusters import wakeups
from clusters.admission.codes import Values, code_of
from clusters.catalog.data import why_frozen
from clusters.catalog.folders import output_folder
from clusters.catalog.hook_lookup import judge_hook_names
from clusters.catalog.lookup import Resolved, name_taken, require_active, resolve, usable_appcode
from clusters.catalog.package_index import why_not_there
from clusters.clouds.placement import hold
from clusters.events import cluster_event, run_event
from clusters.frameworks import COMPUTING
from clusters.gateway import origins
from clusters.manifest.cluster import ClusterManifest, ClusterSpec
from clusters.manifest.hook_spec import part_of as hooks_of
from clusters.model_registry.models import ModelVersion
from clusters.results.values import parameters
from clusters.runs import quota
from clusters.runs.ending import ask_to_end
from clusters.runs.models import SERVICES, Cluster, Run
from clusters.runs.queries.preview import resources_of
from clusters.runs.status import history
from portal.access import OPERATE, require
from portal.errors import Conflict, Invalid, sentence
from portal.events import record_all
from portal.manifests.kept import refuse_changes
from portal.models import Appcode, Event, User
from portal.pages.charts import COLOURS
from portal.text.zones import utc_text


def create_cluster(
    manifest: ClusterManifest, *, acting_user: User, appcode: Appcode | None = None, part_of: str = ""
) -> Cluster:
    """Creates a cluster and its first run. `appcode` is the manifest's appcode if already read; `part_of` is the owner
    (a sweep, a service, …) that creates the cluster for itself. Raises PermissionDenied, or Invalid (the same error for
    an absent appcode and one that the user cannot see)."""
    if not part_of:
        judge_requirements(manifest, acting_user=acting_user, appcode=appcode)
    try:
        return _create(manifest, acting_user, appcode, part_of)
    except IntegrityError as error:
        if "cluster_name_once" not in str(error):
            raise
        raise name_taken(manifest.metadata.appcode, manifest.metadata.name) from error


@transaction.atomic
def _create(manifest: ClusterManifest, acting_user: User, appcode: Appcode | None, part_of: str) -> Cluster:
    appcode = usable_appcode(manifest.metadata.appcode, acting_user, appcode)
    resolved = resolve(manifest.spec, appcode, by_routers=part_of.startswith(SERVICES))
    judge_hook_names(manifest.spec, appcode, manifest.metadata.name)
    cluster = Cluster.objects.create(
        appcode=appcode,
        name=manifest.metadata.name,
        spec=manifest.spec.model_dump(mode="json", by_alias=True),
        part_of=part_of,
        created_by=acting_user,
        run_count=_runs_before(appcode, manifest.metadata.name, is_part=bool(part_of)),
    )
    origins.keep(cluster, manifest.spec.served, resolved.domain)
    _new_run(
        cluster,
        acting_user,
        resolved,
        [cluster_event("cluster.created", cluster, acting_user, "Created.")],
        scheduled=True,
    )
    return cluster


def change_cluster(cluster: Cluster, manifest: ClusterManifest, *, acting_user: User) -> Cluster:
    """Replaces the definition. A live run keeps the spec that it started with; the next deployment uses the new one."""
    if not cluster.part_of:
        judge_requirements(manifest, acting_user=acting_user, instead_of=cluster)
    return _change(cluster, manifest, acting_user)


@transaction.atomic
def _change(cluster: Cluster, manifest: ClusterManifest, acting_user: User) -> Cluster:
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    _require_alive(cluster)
    refuse_changes(manifest, name=cluster.name, appcode=cluster.appcode.code)
    resolved = resolve(manifest.spec, cluster.appcode, by_routers=cluster.is_replica)
    judge_hook_names(manifest.spec, cluster.appcode, cluster.name)
    spec = manifest.spec.model_dump(mode="json", by_alias=True)
    if spec != cluster.spec:
        cluster.spec = spec
        cluster.save(update_fields=["spec", "changed_at"])
        # A live run keeps its domain.
        here = cluster.current_run and not cluster.current_run.is_terminal
        domain = next((each.partition(".")[2] for each in cluster.origins.values()), resolved.domain)
        origins.keep(cluster, manifest.spec.served, domain if here else resolved.domain)
        record_all(
            [
                cluster_event(
                    "cluster.changed", cluster, acting_user, "Changed; the next deployment uses the new definition."
                )
            ]
        )
    return cluster


def judge_requirements(
    manifest: ClusterManifest, *, acting_user: User, appcode: Appcode | None = None, instead_of: Cluster | None = None
) -> None:
    """Raises Invalid where the package index lacks a required package. `instead_of` is the cluster being changed. The
    index may take seconds, so callers with a transaction call this before it; the result is cached."""
    if not manifest.spec.requirements:
        return
    if instead_of:
        require(acting_user, instead_of.appcode, OPERATE)
    else:
        usable_appcode(manifest.metadata.appcode, acting_user, appcode)
    if why := why_not_there(manifest.spec.required):
        raise Invalid.at("spec", "requirements", message=why)


@transaction.atomic
def deploy(cluster: Cluster, *, acting_user: User, newest: bool = False) -> Run:
    """Creates the next run; `newest` uses the latest commit of its Git ref. Raises Conflict while a run is live,
    Invalid when the definition names something that no longer exists."""
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    _require_alive(cluster)
    require_active(cluster.appcode)
    if cluster.current_run and not cluster.current_run.is_terminal:
        raise Conflict(f"Run {cluster.current_run.number} of {cluster.name} has not ended yet; disable it first.")
    spec = ClusterSpec.stored(cluster.spec)
    resolved = resolve(spec, cluster.appcode, by_routers=cluster.is_replica)
    judge_hook_names(spec, cluster.appcode, cluster.name)
    if cluster.origins:
        origins.move(cluster, resolved.domain)
    return _new_run(cluster, acting_user, resolved, [], scheduled=False, newest=newest)


@transaction.atomic
def redeploy(cluster: Cluster, *, acting_user: User, end: bool = True) -> None:
    """Deploys the definition again: now, or as soon as the live run has ended. `end` requests that end. Raises Invalid,
    before anything ends, when the definition names something that no longer exists."""
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    _require_alive(cluster)
    require_active(cluster.appcode)
    run = _locked_run(cluster)
    if run and not run.is_terminal:
        resolve(ClusterSpec.stored(cluster.spec), cluster.appcode, by_routers=cluster.is_replica)
        if end and run.desired != Run.Desired.ENDED:
            ask_to_end(run, "Restarted", f"Ended by {acting_user.display_name}, to be started anew.")
            message = f"Run {run.number} is ended, to be started anew."
            record_all([cluster_event("cluster.restarted", cluster, acting_user, message, run=run.number)])
    if run and not run.is_terminal:
        _want_next(cluster, acting_user)
    else:
        _want_next(cluster, None)  # the run that was waiting
        deploy(cluster, acting_user=acting_user)


@transaction.atomic
def deploy_changed(cluster: Cluster, *, acting_user: User) -> None:
    """Deploys a definition that was just changed. A run that still waits gives way to the next one. Raises Conflict while any
    other run is live."""
    cluster = _locked(cluster)
    run = _locked_run(cluster)
    if run and gives_way(run):
        redeploy(cluster, acting_user=acting_user)
    else:
        deploy(cluster, acting_user=acting_user)


def gives_way(run: Run) -> bool:
    """Whether nothing is lost when a run is ended to be started with changes: it waits, and holds no places."""
    return run.phase == Run.Phase.QUEUED and run.placed_at is None


@transaction.atomic
def deploy_next(cluster_id: int) -> None:
    """Starts the run that `redeploy` left pending. Does nothing while a run is live, or when the request was withdrawn."""
    cluster = _locked(Cluster(pk=cluster_id))
    user = cluster.next_by
    if user is None or cluster.deleted_at or (cluster.current_run and not cluster.current_run.is_terminal):
        return
    _want_next(cluster, None)
    try:
        deploy(cluster, acting_user=user)
    except (Invalid, PermissionDenied) as error:
        why = sentence(error)
        record_all([cluster_event("cluster.not_restarted", cluster, None, f"It was not started anew: {why}")])


def _want_next(cluster: Cluster, user: User | None) -> None:
    if cluster.next_by_id != (user.pk if user else None):
        cluster.next_by = user
        cluster.save(update_fields=["next_by"])


def disable(cluster: Cluster, *, acting_user: User) -> Run:
    """Ends the live run and stores its output first. Idempotent."""
    return _end(cluster, acting_user, "Disabled", "disabled", lambda run: None)


def cancel(cluster: Cluster, *, acting_user: User) -> Run:
    """Ends a run that is not running yet. Raises Conflict once it is."""

    def check(run: Run) -> None:
        if run.phase == Run.Phase.RUNNING:
            raise Conflict(f"Run {run.number} of {run.cluster.name} runs already; stop it (disable) to end it.")

    return _end(cluster, acting_user, "Cancelled", "cancelled", check)


@transaction.atomic
def keep(cluster: Cluster, *, acting_user: User) -> Run:
    """Marks the run as still needed: withdraws the idle stop, restarts the idle clock. Raises Conflict without a live run."""
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    run = _locked_run(cluster)
    if run is None or run.is_terminal or run.desired == Run.Desired.ENDED or run.verdict:
        raise Conflict(f"{cluster.name} does not run, so there is nothing to keep; deploy it again.")
    run.kept_at = run.look_at = timezone.now()
    run.idle_announced_at = run.idle_stops_at = None
    run.save(update_fields=["kept_at", "look_at", "idle_announced_at", "idle_stops_at"])
    record_all(
        [cluster_event("cluster.kept", cluster, acting_user, f"Run {run.number} is still needed.", run=run.number)]
    )
    return run


@transaction.atomic
def delete_cluster(cluster: Cluster, *, acting_user: User) -> None:
    """Hides the cluster and its hooks' clusters at once and ends their runs. Data in datastores stays; logs are deleted."""
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    if cluster.deleted_at is None:
        run = _locked_run(cluster)
        if run and not run.is_terminal and run.desired != Run.Desired.ENDED:
            ask_to_end(run, "Deleted", f"The cluster was deleted by {acting_user.display_name}.")
        cluster.deleted_at = timezone.now()
        cluster.save(update_fields=["deleted_at", "changed_at"])
        record_all([cluster_event("cluster.deleted", cluster, acting_user, "Deleted.")])
        transaction.on_commit(lambda: wakeups.wake_purge(cluster.pk))
        for hook in Cluster.objects.filter(appcode=cluster.appcode, part_of=hooks_of(cluster.name), deleted_at=None):
            delete_cluster(hook, acting_user=acting_user)


@transaction.atomic
def deploy_part(manifest: ClusterManifest, part_of: str, *, acting_user: User, newest: bool = False) -> Run:
    """Starts the next run of an owner's cluster, which is created or changed to `manifest` first. Raises Invalid, Conflict and
    PermissionDenied."""
    name, code = manifest.metadata.name, manifest.metadata.appcode
    found = Cluster.objects.filter(appcode__code=code, name=name, part_of=part_of, deleted_at=None).first()
    if found is None:
        made = create_cluster(manifest, acting_user=acting_user, part_of=part_of).current_run
        assert made is not None
        return made
    return deploy(change_cluster(found, manifest, acting_user=acting_user), acting_user=acting_user, newest=newest)


@transaction.atomic
def end_part(cluster_id: int, reason: str, message: str) -> None:
    """Ends the live run of a part on behalf of its owner. Does nothing when there is none."""
    run = _locked_run(_locked(Cluster(pk=cluster_id)))
    if run and not run.is_terminal and run.desired != Run.Desired.ENDED:
        ask_to_end(run, reason, message)


@transaction.atomic
def delete_parts(appcode_id: int, part_of: str, most: int, keep: Collection[str] = ()) -> bool:
    """Deletes at most `most` clusters that belong to `part_of`, and the clusters of their hooks. Skips names in `keep`.
    Returns True while more are left. Records no event per cluster (there may be ten thousand): the owner records one."""
    alive = Cluster.objects.filter(appcode=appcode_id, deleted_at=None)
    rows = (
        alive.filter(part_of=part_of)
        .exclude(name__in=keep)
        .order_by("pk")
        .select_for_update(no_key=True)
        .values_list("pk", "name")
    )
    found = list(rows[: most + 1])
    hooks = Q(part_of__in=[hooks_of(name) for _, name in found[:most]])
    # The lock order that every other transaction uses.
    chosen = alive.filter(hooks | Q(pk__in=[pk for pk, _ in found[:most]])).order_by("pk")
    for cluster_id in chosen.filter(current_run__gone=False).values_list("pk", flat=True):
        end_part(cluster_id, "Deleted", f"{part_of.partition('/')[2]} was deleted.")
    for cluster_id in chosen.values_list("pk", flat=True):
        transaction.on_commit(partial(wakeups.wake_purge, cluster_id))
    chosen.update(deleted_at=timezone.now())
    return len(found) > most


@transaction.atomic
def note_command(
    run: Run, role: str, index: int, argv: Sequence[str], *, acting_user: User | None, who: str = ""
) -> None:
    """Records that a command is about to run in a task: the program, without its arguments, which may hold secrets.
    `acting_user` None is an operator on the portal's own machine, named by `who`."""
    count = len(argv) - 1
    arguments = f" with {count} argument{'' if count == 1 else 's'}" if count else ""
    program = PurePosixPath(argv[0]).name[:60]
    by = f", by {who} at the portal's machine" if who else ""
    message = f"“{program}”{arguments} was run in {role}-{index}{by}."
    record_all([run_event("task.exec", run, message, actor=acting_user)])


@transaction.atomic
def note_terminal(run: Run, role: str, index: int, *, acting_user: User) -> None:
    """Records that a terminal is about to open in a task. Nothing that is typed there is ever recorded."""
    record_all([run_event("task.terminal_opened", run, f"A terminal was opened in {role}-{index}.", actor=acting_user)])


@transaction.atomic
def note_terminal_end(run: Run, role: str, index: int, seconds: int, how: str, *, acting_user: User) -> None:
    """Records the end of a terminal. `how` is a sentence that explains why it ended."""
    message = f"The terminal in {role}-{index} was closed after {dt.timedelta(seconds=seconds)}. {how}"
    record_all([run_event("task.terminal_closed", run, message, actor=acting_user, seconds=seconds)])


@transaction.atomic
def _end(cluster: Cluster, acting_user: User, reason: str, verb: str, check: Callable[[Run], None]) -> Run:
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    run = _locked_run(cluster)
    if run is None:
        raise Conflict(f"{cluster.name} has never been deployed.")
    _want_next(cluster, None)
    if run.is_terminal or run.desired == Run.Desired.ENDED:
        return run
    check(run)
    ask_to_end(run, reason, f"Stopped by {acting_user.display_name}.")
    record_all([cluster_event(f"cluster.{verb}", cluster, acting_user, f"Run {run.number} stopped.", run=run.number)])
    return run


def _new_run(
    cluster: Cluster,
    acting_user: User,
    resolved: Resolved,
    told: Sequence[Event],
    *,
    scheduled: bool,
    newest: bool = False,
) -> Run:
    """Creates the cluster's next run from its `resolved` definition. `told` are earlier events of this transaction."""
    spec = resolved.spec
    hold(resolved.place)
    if resolved.model:
        _hold_version(resolved.model)
    not_before = spec.schedule_after if scheduled else None
    source = resolved.input.run if resolved.input else None
    if not_before is not None and not_before > timezone.now():
        wait = ("Scheduled", f"It starts at {not_before.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC, as was asked for.")
        values: Values = {"at": utc_text(not_before)}
    else:
        always = quota.reads_always(cluster.spec)
        wait = quota.why_unread(source, always=always) if source else ("", "")
        values = quota.read_of(source, always=always) if source and wait[0] else {}
    cluster.run_count += 1
    folder = output_folder(spec.output_path, name=cluster.name, run=cluster.run_count)
    if why := why_frozen(resolved.output, folder):
        raise Invalid.at("spec", "outputPath", message=why)
    started_with = {**cluster.spec, **settled(resolved)}
    run = Run.objects.create(
        cluster=cluster,
        number=cluster.run_count,
        cloud=resolved.place.cloud,
        namespace=resolved.place.namespace,
        spec=started_with,
        parameters=parameters(started_with),
        colour=_next_colour(cluster) if spec.framework in COMPUTING else None,
        source=source,
        code=_program(cluster, spec, newest=newest),
        resources=resources_of(resolved),
        gpus=resolved.gpus,
        priority_class=spec.priority_class,
        created_by=acting_user,
        not_before=not_before,
        roles={role: {"ready": 0, "count": each.count} for role, each in spec.active_roles.items()},
        wait_reason=wait[0],
        wait_message=wait[1],
        wait_code=code_of(wait[0]) if wait[0] else "",
        wait_values=values,
        reason=wait[0] or "Submitted",
        message=wait[1] or "Waiting for the scheduler.",
    )
    if wait[0]:
        history.note([run], run.created_at)
        run.save(update_fields=["noted"])
    cluster.current_run = run
    cluster.save(update_fields=["run_count", "current_run", "changed_at"])
    deployed = cluster_event("cluster.deployed", cluster, acting_user, f"Run {run.number} submitted.", run=run.number)
    record_all([*told, deployed])
    transaction.on_commit(lambda: wakeups.wake(run.pk))
    return run


def _next_colour(cluster: Cluster) -> int:
    """The one after that of the newest run of its appcode, so that runs that are compared differ. Two that are created at
    once may get the same: charts draw one of them dashed."""
    runs = Run.objects.filter(cluster__appcode=cluster.appcode_id, colour__isnull=False).order_by("-pk")
    newest = runs.values_list("colour", flat=True).first()
    return 0 if newest is None else (newest + 1) % COLOURS


def _hold_version(version: ModelVersion) -> None:
    """Blocks deletion of a model version until the end of this transaction, which creates a run from it. Raises Invalid
    when the version has just been deleted."""
    with connection.cursor() as cursor:
        # Not in Django. FOR SHARE blocks only deletion: many runs of one version are created side by side.
        cursor.execute("SELECT deleted_at FROM clusters_modelversion WHERE id = %s FOR SHARE", [version.pk])
        row = cursor.fetchone()
        if row is None or row[0] is not None:
            message = f"Version {version.number} of {version.model.name} has just been deleted; name another one."
            raise Invalid.at("spec", "model", message=message)


def _program(cluster: Cluster, spec: ClusterSpec, *, newest: bool) -> dict[str, str]:
    """The program version known before the next run is planned: the digest of its files, or the last run's commit if
    the code spec is unchanged and `newest` is False. Otherwise planning resolves the commit."""
    if spec.code is None:
        return {}
    if spec.code.git is None:
        return {"digest": spec.code.digest}
    last = cluster.current_run
    return dict(last.code) if last and not newest and last.spec.get("code") == cluster.spec["code"] else {}


def settled(resolved: Resolved) -> dict[str, Any]:
    """Pins what the definition leaves open, as of now: the newest versions of its environment and plugins, the run
    whose output it reads, the model version, and the definitions of its hooks."""
    found: dict[str, Any] = {"environment": str(resolved.environment)} if resolved.environment else {}
    if resolved.plugins:
        found["plugins"] = [str(each) for each in resolved.plugins]
    if resolved.spec.input and resolved.input and (source := resolved.input.run):
        said = resolved.spec.input.model_copy(update={"from_": f"{source.cluster.name}/{source.number}"})
        found["input"] = said.model_dump(mode="json", by_alias=True)
    if resolved.model:
        found["model"] = f"{resolved.model.model.name}/{resolved.model.number}"
    if resolved.hooks:
        found["hooks"] = [each.model_dump(mode="json", by_alias=True) for each in resolved.hooks]
    return found


def _runs_before(appcode: Appcode, name: str, *, is_part: bool) -> int:
    """The last run number of a deleted cluster with this name. Numbering continues there: numbers are part of object
    and folder names, and a second run 1 would meet what the first one left, or the first one itself. Raises Invalid at
    the appcode's limit of clusters (parts do not count). One statement for both."""
    alive = Q(deleted_at=None)
    found = Cluster.objects.filter(alive | Q(name=name), appcode=appcode).aggregate(
        last=Max("run_count", filter=~alive), count=Count("pk", filter=alive & Q(part_of=""))
    )
    if not is_part and found["count"] >= settings.CLUSTERS_PER_APPCODE:
        sentence = (
            f"{appcode.code} has {found['count']:,} clusters, and no appcode may have more; delete what is not needed."
        )
        raise Invalid.at("metadata", "appcode", message=sentence)
    return found["last"] or 0


def _locked(cluster: Cluster) -> Cluster:
    """Locks the row until the end of the transaction and reads it again, so that two clicks cannot both win. The joined
    run is read after the lock: a row joined in the locking statement is as old as the wait for the lock."""
    Cluster.objects.select_for_update(no_key=True).only("pk").get(pk=cluster.pk)
    return Cluster.objects.select_related("appcode__org_node", "current_run").get(pk=cluster.pk)


def _locked_run(cluster: Cluster) -> Run | None:
    """The current run of a locked cluster. Locked too, because the watch writes it concurrently."""
    if cluster.current_run_id is None:
        return None
    run = Run.objects.select_for_update(no_key=True).get(pk=cluster.current_run_id)
    run.cluster = cluster
    return run


def _require_alive(cluster: Cluster) -> None:
    """Raises Conflict if the cluster was deleted in the meantime."""
    if cluster.deleted_at is not None:
        raise Conflict(f"{cluster.name} was deleted.")
