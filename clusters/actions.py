"""Everything that a person does to a cluster. Each action is one transaction: the change, its Event, and a wake-up on commit.

Actions only write what is wanted. Nothing here talks to a cloud; `reconcile.py` does, woken up after the commit and, should
that message be lost, by the sweep. Rows are locked in one order everywhere, appcode → cluster → run, and with NO KEY UPDATE,
because a plain FOR UPDATE would wait for the foreign keys of rows that the watch inserts.
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
from clusters.after import part_of as hooks_of
from clusters.clouds.placement import hold
from clusters.events import cluster_event, run_event
from clusters.gateway import origins
from clusters.manifest import ClusterManifest, ClusterSpec
from clusters.models import Cluster, ModelVersion, Run
from clusters.models.runs import SERVICES
from clusters.runs import quota
from clusters.runs.ending import ask_to_end
from clusters.runs.preview import resources_of
from clusters.spec.catalog import (
    Resolved,
    name_taken,
    require_active,
    resolve,
    usable_appcode,
)
from clusters.spec.data import why_frozen
from clusters.spec.folders import output_folder
from clusters.spec.hooks import judge_hook_names
from clusters.spec.packages import why_not_there
from portal.access import OPERATE, require
from portal.errors import Conflict, Invalid
from portal.events import record_all
from portal.models import Appcode, Event, User


def create_cluster(
    manifest: ClusterManifest, *, acting_user: User, appcode: Appcode | None = None, part_of: str = ""
) -> Cluster:
    """Defines a cluster and deploys its first run. `appcode` is the row that the manifest names, where it was just read;
    `part_of` says what makes it for itself.

    Raises Invalid (also for an appcode that they cannot see, exactly as for one that does not exist) or PermissionDenied.
    """
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
    resolved = resolve(manifest.spec, appcode, by_fronts=part_of.startswith(SERVICES))
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
    """Replaces the definition; a living run keeps what it was started with, the next deployment uses the new one."""
    if not cluster.part_of:
        judge_requirements(manifest, acting_user=acting_user, instead_of=cluster)
    return _change(cluster, manifest, acting_user)


@transaction.atomic
def _change(cluster: Cluster, manifest: ClusterManifest, acting_user: User) -> Cluster:
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    _require_alive(cluster)
    if manifest.metadata.appcode != cluster.appcode.code:
        raise Invalid.at("metadata", "appcode", message="A cluster stays in its appcode; clone it to another one.")
    if manifest.metadata.name != cluster.name:
        raise Invalid.at("metadata", "name", message="A cluster keeps its name; clone it under another one.")
    resolved = resolve(manifest.spec, cluster.appcode, by_fronts=cluster.is_replica)
    judge_hook_names(manifest.spec, cluster.appcode, cluster.name)
    spec = manifest.spec.model_dump(mode="json", by_alias=True)
    if spec != cluster.spec:
        cluster.spec = spec
        cluster.save(update_fields=["spec", "changed_at"])
        # A run that lives stays where it is.
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
    """Raises Invalid where the package index lacks what a cluster requires; `instead_of` is the one that is changed.

    An index may take seconds, so whoever creates or changes a cluster inside a transaction calls this before; what the index said
    is remembered.
    """
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
    """Makes the next run, with `newest` from the commit that its ref has by now. Raises Conflict while one is alive, Invalid
    when the definition names what is gone by now."""
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    _require_alive(cluster)
    require_active(cluster.appcode)
    if cluster.current_run and not cluster.current_run.is_terminal:
        raise Conflict(f"Run {cluster.current_run.number} of {cluster.name} has not ended yet; disable it first.")
    spec = ClusterSpec.model_validate(cluster.spec)
    resolved = resolve(spec, cluster.appcode, by_fronts=cluster.is_replica)
    judge_hook_names(spec, cluster.appcode, cluster.name)
    if cluster.origins:
        origins.move(cluster, resolved.domain)
    return _new_run(cluster, acting_user, resolved, [], scheduled=False, newest=newest)


@transaction.atomic
def redeploy(cluster: Cluster, *, acting_user: User, end: bool = True) -> None:
    """The next run of its definition: at once, or as soon as the living one is over, which is asked to `end`. Raises Invalid
    before anything ends when the definition names what is gone by now."""
    cluster = _locked(cluster)
    require(acting_user, cluster.appcode, OPERATE)
    _require_alive(cluster)
    require_active(cluster.appcode)
    run = _locked_run(cluster)
    if run and not run.is_terminal:
        resolve(ClusterSpec.model_validate(cluster.spec), cluster.appcode, by_fronts=cluster.is_replica)
        if end and run.desired != Run.Desired.ENDED:
            ask_to_end(run, "Restarted", f"Ended by {acting_user.display_name}, to be started anew.")
            message = f"Run {run.number} is ended, to be started anew."
            record_all([cluster_event("cluster.restarted", cluster, acting_user, message, run=run.number)])
    if run and not run.is_terminal:
        _want_next(cluster, acting_user)
    else:
        _want_next(cluster, None)  # this is the one that was wanted
        deploy(cluster, acting_user=acting_user)


@transaction.atomic
def deploy_next(cluster_id: int) -> None:
    """What `redeploy` left to be done when the run was over; nothing when it is not, or nobody wants it any more."""
    cluster = _locked(Cluster(pk=cluster_id))
    user = cluster.next_by
    if user is None or cluster.deleted_at or (cluster.current_run and not cluster.current_run.is_terminal):
        return
    _want_next(cluster, None)
    try:
        deploy(cluster, acting_user=user)
    except (Invalid, PermissionDenied) as error:
        why = " ".join(each.message for each in error.errors) if isinstance(error, Invalid) else str(error)
        record_all([cluster_event("cluster.not_restarted", cluster, None, f"It was not started anew: {why}")])


def _want_next(cluster: Cluster, user: User | None) -> None:
    if cluster.next_by_id != (user.pk if user else None):
        cluster.next_by = user
        cluster.save(update_fields=["next_by"])


def disable(cluster: Cluster, *, acting_user: User) -> Run:
    """Ends the living run; its output is stored first. Repeating it changes nothing."""
    return _end(cluster, acting_user, "Disabled", "disabled", lambda run: None)


def cancel(cluster: Cluster, *, acting_user: User) -> Run:
    """Ends a run that has not begun to run. Raises Conflict once it has."""

    def check(run: Run) -> None:
        if run.phase == Run.Phase.RUNNING:
            raise Conflict(f"Run {run.number} of {run.cluster.name} runs already; disable it to end it.")

    return _end(cluster, acting_user, "Cancelled", "cancelled", check)


@transaction.atomic
def keep(cluster: Cluster, *, acting_user: User) -> Run:
    """Somebody needs it: what was announced for its idleness is withdrawn, and its clock begins anew. Raises Conflict for what
    does not run."""
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
    """Removes the cluster from sight at once, with those of its hooks, and ends its run. Data in its datastores stays; its logs
    go."""
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
def end_part(cluster_id: int, reason: str, message: str) -> None:
    """Ends the living run of a part, for what made it; nothing where none lives."""
    run = _locked_run(_locked(Cluster(pk=cluster_id)))
    if run and not run.is_terminal and run.desired != Run.Desired.ENDED:
        ask_to_end(run, reason, message)


@transaction.atomic
def delete_parts(appcode_id: int, part_of: str, most: int, keep: Collection[str] = ()) -> bool:
    """Deletes at most `most` of the clusters that `part_of` made, with those of their hooks, but for those called as `keep` says;
    whether any are left. Of all of them what made them says one event, because they may be ten thousand."""
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
    # In the order in which everybody locks them.
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
    """Writes down that a command is about to be run inside a task: the program, not its arguments, which may hold secrets.

    `acting_user` None is an operator at the portal's own machine, called `who`.
    """
    count = len(argv) - 1
    arguments = f" with {count} argument{'' if count == 1 else 's'}" if count else ""
    program = PurePosixPath(argv[0]).name[:60]
    by = f", by {who} at the portal's machine" if who else ""
    message = f"“{program}”{arguments} was run in {role}-{index}{by}."
    record_all([run_event("task.exec", run, message, actor=acting_user)])


@transaction.atomic
def note_terminal(run: Run, role: str, index: int, *, acting_user: User) -> None:
    """Writes down that a terminal is about to be opened in a task; nothing of what is typed there is ever written down."""
    record_all([run_event("task.terminal_opened", run, f"A terminal was opened in {role}-{index}.", actor=acting_user)])


@transaction.atomic
def note_terminal_end(run: Run, role: str, index: int, seconds: int, how: str, *, acting_user: User) -> None:
    """`how` says in a sentence why it ended."""
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
    ask_to_end(run, reason, f"{reason} by {acting_user.display_name}.")
    record_all([cluster_event(f"cluster.{verb}", cluster, acting_user, f"Run {run.number} {verb}.", run=run.number)])
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
    """Its next run, of its definition as `resolved`; `told` are the events of what came before in this transaction."""
    spec = resolved.spec
    hold(resolved.place)
    if resolved.model:
        _hold_version(resolved.model)
    not_before = spec.schedule_after if scheduled else None
    source = resolved.input.run if resolved.input else None
    if not_before is not None and not_before > timezone.now():
        wait = ("Scheduled", f"It starts at {not_before.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC, as was asked for.")
    else:
        wait = quota.why_unread(source, always=quota.reads_always(cluster.spec)) if source else ("", "")
    cluster.run_count += 1
    folder = output_folder(spec.output_path, name=cluster.name, run=cluster.run_count)
    if why := why_frozen(resolved.output, folder):
        raise Invalid.at("spec", "outputPath", message=why)
    run = Run.objects.create(
        cluster=cluster,
        number=cluster.run_count,
        cloud=resolved.place.cloud,
        namespace=resolved.place.namespace,
        spec={**cluster.spec, **settled(resolved)},
        source=source,
        code=_program(cluster, spec, newest=newest),
        resources=resources_of(resolved),
        gpus=resolved.gpus,
        created_by=acting_user,
        not_before=not_before,
        roles={role: {"ready": 0, "count": each.count} for role, each in spec.active_roles.items()},
        wait_reason=wait[0],
        wait_message=wait[1],
        reason=wait[0] or "Submitted",
        message=wait[1] or "Waiting for the scheduler.",
    )
    cluster.current_run = run
    cluster.save(update_fields=["run_count", "current_run", "changed_at"])
    deployed = cluster_event("cluster.deployed", cluster, acting_user, f"Run {run.number} submitted.", run=run.number)
    record_all([*told, deployed])
    transaction.on_commit(lambda: wakeups.wake(run.pk))
    return run


def _hold_version(version: ModelVersion) -> None:
    """Keeps a version of a model from being deleted until the end of this transaction, which makes a run of it. Raises Invalid
    when that has happened just now."""
    with connection.cursor() as cursor:
        # Django knows no FOR SHARE, which holds up nobody but who deletes it; many runs of one version are made side by side.
        cursor.execute("SELECT deleted_at FROM clusters_modelversion WHERE id = %s FOR SHARE", [version.pk])
        row = cursor.fetchone()
        if row is None or row[0] is not None:
            message = f"Version {version.number} of {version.model.name} has just been deleted; name another one."
            raise Invalid.at("spec", "model", message=message)


def _program(cluster: Cluster, spec: ClusterSpec, *, newest: bool) -> dict[str, str]:
    """What is known by now of the program of its next run: the commit of the run before where that says the same repository and
    ref, unless the newest is wanted, which is asked for when the run is planned."""
    if spec.code is None:
        return {}
    if spec.code.git is None:
        return {"digest": spec.code.digest}
    last = cluster.current_run
    return dict(last.code) if last and not newest and last.spec.get("code") == cluster.spec["code"] else {}


def settled(resolved: Resolved) -> dict[str, Any]:
    """What its definition leaves open, as it is now: the newest versions of its environment and its plugins, the run whose
    output it reads, the version of its model, what the hooks of its appcode do."""
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
    """The last number that a deleted cluster of this name gave to a run. Numbers go on from there: they are in the names of
    objects and output folders, where a second run 1 would meet what the first one left, or even the first one itself.

    Raises Invalid when the appcode has as many clusters as it may, parts not counted; one statement for both."""
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
    """The row as it is now, locked until the end of the transaction, so that two clicks cannot both win.

    Its run is read afterwards: what is joined to a row that had to be waited for is as old as the wait.
    """
    Cluster.objects.select_for_update(no_key=True).only("pk").get(pk=cluster.pk)
    return Cluster.objects.select_related("appcode__org_node", "current_run").get(pk=cluster.pk)


def _locked_run(cluster: Cluster) -> Run | None:
    """The current run of a locked cluster, locked, too: the watch writes it meanwhile."""
    if cluster.current_run_id is None:
        return None
    run = Run.objects.select_for_update(no_key=True).get(pk=cluster.current_run_id)
    run.cluster = cluster
    return run


def _require_alive(cluster: Cluster) -> None:
    """Raises Conflict for a cluster that somebody deleted while this was being asked for."""
    if cluster.deleted_at is not None:
        raise Conflict(f"{cluster.name} was deleted.")
