"""Everything that a person does to a pipeline. Each action is one transaction: the change, its Event, and a wake-up on commit.

Rows are locked in one order: appcode → pipeline → cluster → run.
"""

from __future__ import annotations

from django.db import transaction
from django.http import Http404
from django.utils import timezone

from clusters import actions
from clusters.models import Cluster, Pipeline, PipelineRun, StageRun, Sweep
from clusters.pipelines.advance import begin, forget_removed, go_on, latest_of, lock, told, wake
from clusters.pipelines.graph import RUNNING, Node, behind
from clusters.pipelines.manifest import PipelineManifest, PipelineSpec, cluster_name, part_of, reading
from clusters.spec.catalog import require_active, resolve
from clusters.sweeps.actions import cancel_sweep, delete_sweep, judge_sweep
from clusters.sweeps.manifest import SweepSpec
from portal.access import OPERATE, require
from portal.errors import Conflict, FieldError, Invalid
from portal.models import Appcode, User

# Of one appcode.
MOST = 500


def judge(manifest: PipelineManifest, appcode: Appcode) -> None:
    """Raises Invalid with every field that names what is absent or taken. Writes nothing."""
    errors: list[FieldError] = []
    name, stages = manifest.metadata.name, manifest.spec.stages
    names = [cluster_name(name, stage.name) for stage in stages]
    others = Cluster.objects.filter(appcode=appcode, name__in=names, deleted_at=None).exclude(part_of=part_of(name))
    taken = set(others.values_list("name", flat=True))
    for place, (stage, node) in enumerate(zip(stages, manifest.spec.nodes, strict=True)):
        where = ("spec", "stages", str(place))
        if names[place] in taken:
            sentence = f"{appcode.code} already has a cluster “{names[place]}”; choose another name."
            errors.append(FieldError((*where, "name"), sentence))
        try:
            if stage.spec:
                resolve(reading(stage.spec, name, node, None), appcode)
            if stage.sweep:
                judge_sweep(_unread(stage.sweep, name, node), appcode)
        except Invalid as invalid:
            for each in invalid.errors:
                path = ("sweep", *each.path[1:]) if stage.sweep and each.path[:1] == ("spec",) else each.path
                errors.append(FieldError((*where, *path), each.message, each.see))
    if errors:
        raise Invalid(errors)


def _unread(sweep: SweepSpec, pipeline: str, node: Node) -> SweepSpec:
    """The sweep as far as it can be judged before there is what it reads."""
    template = reading(sweep.template, pipeline, node, None)
    return sweep.model_copy(update={"template": template, "folds": sweep.folds if template.input else None})


@transaction.atomic
def create_pipeline(manifest: PipelineManifest, appcode: Appcode, *, acting_user: User) -> Pipeline:
    """Defines it and runs nothing. Raises Invalid."""
    require(acting_user, appcode, OPERATE)
    require_active(appcode)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    rows, name = Pipeline.objects.filter(appcode=appcode), manifest.metadata.name
    if rows.filter(name=name).exists():
        sentence = f"{appcode.code} already has a pipeline “{name}”; choose another name."
        raise Invalid.at("metadata", "name", message=sentence)
    if rows.count() >= MOST:
        raise Invalid.at("metadata", "name", message=f"{appcode.code} has {MOST} pipelines already; delete one.")
    judge(manifest, appcode)
    spec = manifest.spec.model_dump(mode="json", by_alias=True)
    made = Pipeline.objects.create(appcode=appcode, name=name, spec=spec, created_by=acting_user)
    told(made, "created", acting_user, "Created.")
    return made


@transaction.atomic
def change_pipeline(pipeline: Pipeline, manifest: PipelineManifest, *, acting_user: User) -> Pipeline:
    """Replaces the definition; a living run keeps what it was started with, the next one uses the new definition."""
    pipeline = _locked(pipeline, acting_user)
    if manifest.metadata.name != pipeline.name:
        raise Invalid.at("metadata", "name", message="A pipeline keeps its name; create another one.")
    judge(manifest, pipeline.appcode)
    spec = manifest.spec.model_dump(mode="json", by_alias=True)
    if spec != pipeline.spec:
        pipeline.spec = spec
        pipeline.save(update_fields=["spec", "changed_at"])
        told(pipeline, "changed", acting_user, "Changed; the next run uses the new definition.")
        if pipeline.current_run is None or pipeline.current_run.finished_at:
            forget_removed(pipeline)
    return pipeline


@transaction.atomic
def run_pipeline(pipeline: Pipeline, *, acting_user: User, fresh: bool = False, newest: bool = False) -> PipelineRun:
    """Starts the next run; with `fresh` nothing is used again, with `newest` code of Git is asked for its newest commit. Raises
    Conflict while one is alive, and Invalid where the appcode takes nothing new."""
    pipeline = _locked(pipeline, acting_user)
    require_active(pipeline.appcode)
    living = pipeline.current_run
    if living and living.finished_at is None:
        raise Conflict(f"Run {living.number} of {pipeline.name} has not ended yet; cancel it first.")
    return begin(pipeline, acting_user, fresh=fresh, newest=newest)


@transaction.atomic
def run_pipeline_next(pipeline: Pipeline, *, acting_user: User) -> None:
    """The next run as soon as the living one is over, with the newest code; once, however often it is asked for."""
    pipeline = _locked(pipeline, acting_user)
    pipeline.next_by = acting_user
    pipeline.save(update_fields=["next_by"])
    wake(pipeline)


@transaction.atomic
def cancel_pipeline(pipeline: Pipeline, *, acting_user: User) -> PipelineRun:
    """Ends the living run and the runs of its stages; their output is stored first. Repeating it changes nothing."""
    pipeline = _locked(pipeline, acting_user)
    run = pipeline.current_run
    if run is None:
        raise Conflict(f"{pipeline.name} has never been run.")
    if pipeline.next_by_id:
        pipeline.next_by = None
        pipeline.save(update_fields=["next_by"])
    if run.finished_at is not None or run.cancelled_at is not None:
        return run
    run.cancelled_at, run.message = timezone.now(), f"Cancelled by {acting_user.display_name}."
    run.phase = PipelineRun.Phase.RUNNING
    run.save(update_fields=["cancelled_at", "message", "phase"])
    told(pipeline, "cancelled", acting_user, f"Run {run.number} cancelled.", run)
    _end_stages(run, acting_user)
    go_on(pipeline, {})
    run.refresh_from_db()
    return run


@transaction.atomic
def pause_pipeline(pipeline: Pipeline, *, acting_user: User) -> PipelineRun:
    """Starts no more stages of the living run; those that run go on. Repeating it changes nothing. Raises Conflict where none
    lives."""
    pipeline = _locked(pipeline, acting_user)
    run = _living(pipeline)
    if run.phase != PipelineRun.Phase.PAUSED:
        run.phase, run.message = PipelineRun.Phase.PAUSED, f"Paused by {acting_user.display_name}."
        run.save(update_fields=["phase", "message"])
        told(pipeline, "paused", acting_user, f"Run {run.number} paused.", run)
    return run


@transaction.atomic
def resume_pipeline(pipeline: Pipeline, *, acting_user: User) -> PipelineRun:
    """Goes on, from now in the name of who resumes it. Repeating it changes nothing. Raises Conflict where no run lives, and
    Invalid where the appcode takes nothing new."""
    pipeline = _locked(pipeline, acting_user)
    run = _living(pipeline)
    if run.phase == PipelineRun.Phase.PAUSED:
        require_active(pipeline.appcode)
        run.phase, run.message, run.created_by = PipelineRun.Phase.RUNNING, "", acting_user
        run.save(update_fields=["phase", "message", "created_by"])
        told(pipeline, "resumed", acting_user, f"Run {run.number} resumed.", run)
        wake(pipeline)
    return run


@transaction.atomic
def retry_stage(pipeline: Pipeline, stage: str, *, acting_user: User) -> PipelineRun:
    """Runs a stage of the latest run again, and all that come after it, as they were defined then. Raises Conflict while one of
    these is under way or has not ended yet, and Invalid for a stage that is none."""
    pipeline = _locked(pipeline, acting_user)
    require_active(pipeline.appcode)
    run = pipeline.current_run
    if run is None:
        raise Conflict(f"{pipeline.name} has never been run.")
    latest = latest_of(run)
    if stage not in latest:
        raise Invalid.at("stage", message=f"Run {run.number} has no stage “{stage[:60]}”; it has: {', '.join(latest)}.")
    if run.finished_at is None and run.cancelled_at is not None:
        raise Conflict(f"Run {run.number} is being cancelled.")
    if run.phase == PipelineRun.Phase.PAUSED:
        raise Conflict(f"Run {run.number} is paused; resume it first.")
    again = {stage, *behind(stage, PipelineSpec.model_validate(run.spec).nodes)}
    if latest[stage].finished_at is None:
        raise Conflict(f"{stage} has not ended yet.")
    if busy := sorted(name for name in again if latest[name].phase == RUNNING):
        raise Conflict(f"{busy[0]} has not ended yet, and it comes after {stage}.")
    ended = [latest[name] for name in latest if name in again and latest[name].finished_at]
    StageRun.objects.bulk_create(
        [StageRun(pipeline_run=run, stage=row.stage, attempt=row.attempt + 1) for row in ended]
    )
    run.phase, run.message, run.finished_at, run.cancelled_at = PipelineRun.Phase.RUNNING, "", None, None
    run.created_by = acting_user
    run.save(update_fields=["phase", "message", "finished_at", "cancelled_at", "created_by"])
    told(pipeline, "retried", acting_user, f"Run {run.number}: {stage} and what comes after it run again.", run)
    # At once: while another stage runs, nobody would look for a wake-up that was lost.
    go_on(pipeline, {})
    run.refresh_from_db()
    return run


@transaction.atomic
def delete_pipeline(pipeline: Pipeline, *, acting_user: User) -> None:
    """Removes it with its history and the clusters of its stages, whose runs end. Data in datastores stays."""
    pipeline = _locked(pipeline, acting_user)
    clusters = Cluster.objects.filter(appcode=pipeline.appcode, part_of=part_of(pipeline.name), deleted_at=None)
    for cluster in clusters.order_by("pk"):
        actions.delete_cluster(cluster, acting_user=acting_user)
    for sweep in Sweep.objects.filter(stages__pipeline_run__pipeline=pipeline, deleted_at=None).distinct():
        delete_sweep(sweep, acting_user=acting_user)
    told(pipeline, "deleted", acting_user, "Deleted.")
    pipeline.delete()


def _living(pipeline: Pipeline) -> PipelineRun:
    """The run of a locked pipeline that goes on, or is paused. Raises Conflict."""
    run = pipeline.current_run
    if run is None:
        raise Conflict(f"{pipeline.name} has never been run.")
    if run.finished_at is not None:
        raise Conflict(f"Run {run.number} of {pipeline.name} is over ({run.phase}).")
    if run.cancelled_at is not None:
        raise Conflict(f"Run {run.number} is being cancelled.")
    return run


def _end_stages(run: PipelineRun, user: User) -> None:
    under_way = StageRun.objects.filter(pipeline_run=run, phase=RUNNING, run__isnull=False)
    clusters = Cluster.objects.filter(pk__in=under_way.values("run__cluster"), deleted_at=None)
    for cluster in clusters.order_by("pk"):
        actions.disable(cluster, acting_user=user)
    for sweep in Sweep.objects.filter(stages__pipeline_run=run, stages__phase=RUNNING, deleted_at=None).distinct():
        cancel_sweep(sweep, acting_user=user)


def _locked(pipeline: Pipeline, user: User) -> Pipeline:
    """The row as it is now, locked until the end of the transaction. Raises Http404 where it was deleted meanwhile."""
    require(user, pipeline.appcode, OPERATE)
    try:
        lock(pipeline)
    except Pipeline.DoesNotExist:
        raise Http404(f"There is no pipeline “{pipeline.name}” any more.") from None
    return Pipeline.objects.select_related("appcode__org_node", "current_run").get(pk=pipeline.pk)
