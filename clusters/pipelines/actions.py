"""User actions on pipelines. Each is one transaction: the change, its Event, and a wake-up on commit.

Rows are locked in one order: appcode → pipeline → cluster → run.
"""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from clusters.catalog.lookup import require_active, resolve
from clusters.cluster import actions
from clusters.pipelines.access import PIPELINES
from clusters.pipelines.graph import RUNNING, Node, behind
from clusters.pipelines.loop import begin, forget_removed, go_on, latest_of, wake
from clusters.pipelines.manifest import PipelineManifest, PipelineSpec, cluster_name, part_of, reading
from clusters.pipelines.models import Pipeline, PipelineRun, StageRun
from clusters.runs.models import Cluster
from clusters.sweeps.actions import cancel_sweep, delete_sweep, judge_sweep
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.models import Sweep
from portal.access import OPERATE, require
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests.kept import refuse_changes
from portal.models import Appcode, User

# Pipelines of one appcode.
MOST = 500


def judge(manifest: PipelineManifest, appcode: Appcode) -> None:
    """Raises Invalid with every field that names something missing or taken. Writes nothing."""
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
    """The sweep without its input, to be judged before its input exists."""
    template = reading(sweep.template, pipeline, node, None)
    return sweep.model_copy(update={"template": template, "folds": sweep.folds if template.input else None})


@transaction.atomic
def create_pipeline(manifest: PipelineManifest, appcode: Appcode, *, acting_user: User) -> Pipeline:
    """Creates the pipeline without running it. Raises Invalid."""
    require(acting_user, appcode, OPERATE)
    require_active(appcode)
    name = manifest.metadata.name
    PIPELINES.reserve(appcode, name, MOST)
    judge(manifest, appcode)
    spec = manifest.spec.model_dump(mode="json", by_alias=True)
    made = Pipeline.objects.create(appcode=appcode, name=name, spec=spec, created_by=acting_user)
    PIPELINES.record(made, "created", acting_user, "Created.")
    return made


@transaction.atomic
def change_pipeline(pipeline: Pipeline, manifest: PipelineManifest, *, acting_user: User) -> Pipeline:
    """Replaces the definition. A live run keeps the one it started with; the next run uses the new one."""
    pipeline = PIPELINES.locked(pipeline, acting_user)
    refuse_changes(manifest, name=pipeline.name)
    judge(manifest, pipeline.appcode)
    spec = manifest.spec.model_dump(mode="json", by_alias=True)
    if spec != pipeline.spec:
        pipeline.spec = spec
        pipeline.save(update_fields=["spec", "changed_at"])
        PIPELINES.record(pipeline, "changed", acting_user, "Changed; the next run uses the new definition.")
        if pipeline.current_run is None or pipeline.current_run.finished_at:
            forget_removed(pipeline)
    return pipeline


@transaction.atomic
def run_pipeline(pipeline: Pipeline, *, acting_user: User, fresh: bool = False, newest: bool = False) -> PipelineRun:
    """Starts the next run. With `fresh` no earlier result is reused; with `newest` code from Git is updated to its newest
    commit. Raises Conflict while a run is alive, and Invalid if the appcode accepts nothing new."""
    pipeline = PIPELINES.locked(pipeline, acting_user)
    require_active(pipeline.appcode)
    living = pipeline.current_run
    if living and living.finished_at is None:
        raise Conflict(f"Run {living.number} of {pipeline.name} has not ended yet; cancel it first.")
    return begin(pipeline, acting_user, fresh=fresh, newest=newest)


@transaction.atomic
def run_pipeline_next(pipeline: Pipeline, *, acting_user: User) -> None:
    """Requests the next run, with the newest code, as soon as the live one is over; once, however often it is called."""
    pipeline = PIPELINES.locked(pipeline, acting_user)
    pipeline.next_by = acting_user
    pipeline.save(update_fields=["next_by"])
    wake(pipeline)


@transaction.atomic
def cancel_pipeline(pipeline: Pipeline, *, acting_user: User) -> PipelineRun:
    """Ends the live run and its stages' runs; their output is stored first. Repeating it changes nothing."""
    pipeline = PIPELINES.locked(pipeline, acting_user)
    run = pipeline.current_run
    if run is None:
        raise Conflict(f"{pipeline.name} has never been run.")
    if pipeline.next_by_id:
        pipeline.next_by = None
        pipeline.save(update_fields=["next_by"])
    if run.finished_at is not None or run.cancelled_at is not None:
        return run
    run.cancelled_at, run.message = timezone.now(), f"Stopped by {acting_user.display_name}."
    run.phase = PipelineRun.Phase.RUNNING
    run.save(update_fields=["cancelled_at", "message", "phase"])
    PIPELINES.record(pipeline, "cancelled", acting_user, f"Run {run.number} stopped.", run=run.number)
    _end_stages(run, acting_user)
    go_on(pipeline, {})
    run.refresh_from_db()
    return run


@transaction.atomic
def pause_pipeline(pipeline: Pipeline, *, acting_user: User) -> PipelineRun:
    """Starts no more stages; those that run go on. Repeating it changes nothing. Raises Conflict without a live run."""
    pipeline = PIPELINES.locked(pipeline, acting_user)
    run = _living(pipeline)
    if run.phase != PipelineRun.Phase.PAUSED:
        run.phase, run.message = PipelineRun.Phase.PAUSED, f"Paused by {acting_user.display_name}."
        run.save(update_fields=["phase", "message"])
        PIPELINES.record(pipeline, "paused", acting_user, f"Run {run.number} paused.", run=run.number)
    return run


@transaction.atomic
def resume_pipeline(pipeline: Pipeline, *, acting_user: User) -> PipelineRun:
    """Resumes the run in the name of `acting_user`. Repeating it changes nothing. Raises Conflict without a live run, and
    Invalid if the appcode accepts nothing new."""
    pipeline = PIPELINES.locked(pipeline, acting_user)
    run = _living(pipeline)
    if run.phase == PipelineRun.Phase.PAUSED:
        require_active(pipeline.appcode)
        run.phase, run.message, run.created_by = PipelineRun.Phase.RUNNING, "", acting_user
        run.save(update_fields=["phase", "message", "created_by"])
        PIPELINES.record(pipeline, "resumed", acting_user, f"Run {run.number} resumed.", run=run.number)
        wake(pipeline)
    return run


@transaction.atomic
def retry_stage(pipeline: Pipeline, stage: str, *, acting_user: User) -> PipelineRun:
    """Runs a stage of the latest run again, and all that depend on it, as they were defined then. Raises Conflict while the
    stage or one of these is unfinished, and Invalid for an unknown stage."""
    pipeline = PIPELINES.locked(pipeline, acting_user)
    require_active(pipeline.appcode)
    run = pipeline.current_run
    if run is None:
        raise Conflict(f"{pipeline.name} has never been run.")
    latest = latest_of(run)
    if stage not in latest:
        raise Invalid.at("stage", message=f"Run {run.number} has no stage “{stage[:60]}”; it has: {', '.join(latest)}.")
    if run.finished_at is None and run.cancelled_at is not None:
        raise Conflict(f"Run {run.number} is being stopped.")
    if run.phase == PipelineRun.Phase.PAUSED:
        raise Conflict(f"Run {run.number} is paused; resume it first.")
    again = {stage, *behind(stage, PipelineSpec.stored(run.spec).nodes)}
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
    said = f"Run {run.number}: {stage} and what comes after it run again."
    PIPELINES.record(pipeline, "retried", acting_user, said, run=run.number)
    # At once: while another stage runs, the resync would not find a lost wake-up.
    go_on(pipeline, {})
    run.refresh_from_db()
    return run


@transaction.atomic
def delete_pipeline(pipeline: Pipeline, *, acting_user: User) -> None:
    """Deletes the pipeline with its history and its stages' clusters, whose runs end. Data in datastores stays."""
    pipeline = PIPELINES.locked(pipeline, acting_user)
    clusters = Cluster.objects.filter(appcode=pipeline.appcode, part_of=part_of(pipeline.name), deleted_at=None)
    for cluster in clusters.order_by("pk"):
        actions.delete_cluster(cluster, acting_user=acting_user)
    for sweep in Sweep.objects.filter(stages__pipeline_run__pipeline=pipeline, deleted_at=None).distinct():
        delete_sweep(sweep, acting_user=acting_user)
    PIPELINES.record(pipeline, "deleted", acting_user, "Deleted.")
    pipeline.delete()


def _living(pipeline: Pipeline) -> PipelineRun:
    """The live run of a locked pipeline, which may be paused. Raises Conflict."""
    run = pipeline.current_run
    if run is None:
        raise Conflict(f"{pipeline.name} has never been run.")
    if run.finished_at is not None:
        raise Conflict(f"Run {run.number} of {pipeline.name} is over ({run.phase}).")
    if run.cancelled_at is not None:
        raise Conflict(f"Run {run.number} is being stopped.")
    return run


def _end_stages(run: PipelineRun, user: User) -> None:
    under_way = StageRun.objects.filter(pipeline_run=run, phase=RUNNING, run__isnull=False)
    clusters = Cluster.objects.filter(pk__in=under_way.values("run__cluster"), deleted_at=None)
    for cluster in clusters.order_by("pk"):
        actions.disable(cluster, acting_user=user)
    for sweep in Sweep.objects.filter(stages__pipeline_run=run, stages__phase=RUNNING, deleted_at=None).distinct():
        cancel_sweep(sweep, acting_user=user)
