"""Moves a pipeline's run on: records which stages have ended, and starts those that may.

One transaction under the pipeline's lock: graph.py decides from the stages' states. Woken at the end of a stage's run, or by
`resync` if that was lost; repeated, it changes nothing. Stages that need not run again (reuse.py) are found before it.
"""

from __future__ import annotations

from collections import Counter

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.urls import reverse
from django.utils import timezone

from clusters import wakeups
from clusters.cluster import actions
from clusters.manifest.cluster import ClusterManifest, ClusterSpec
from clusters.pipelines.access import PIPELINES, pipelines_for, stages_of, used_by
from clusters.pipelines.graph import FAILED, RUNNING, SKIPPED, STOPPED, SUCCEEDED, Node, State, decide
from clusters.pipelines.manifest import PipelineSpec, StageSpec, cluster_name, part_of, reading, sweep_name
from clusters.pipelines.models import Pipeline, PipelineRun, StageRun
from clusters.pipelines.reuse import unchanged
from clusters.runs.models import Run
from clusters.runs.status.notifications import Whole, tell_whole, told_whole
from clusters.runs.status.phase import TERMINAL
from clusters.sweeps.actions import create_sweep
from clusters.sweeps.manifest import SweepManifest, SweepSpec, trial_spec
from clusters.sweeps.models import Sweep
from clusters.sweeps.totals import sums_of
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, Invalid, sentence
from portal.manifests import parse
from portal.models import User

# Pipelines woken by one resync, in random order: an appcode whose store does not answer must not block others.
RESYNC_LIMIT = 500
# Clusters of removed stages that are deleted at once.
MOST_REMOVED = 500


def advance(appcode_id: int, name: str) -> None:
    """Does the next step of the pipeline, if there is one."""
    living = PipelineRun.objects.filter(pipeline__appcode=appcode_id, pipeline__name=name, finished_at=None)
    run = living.select_related("pipeline__appcode__org_node").first()
    if run is None:
        _start_next(appcode_id, name)
        return
    # A paused run starts nothing, so stages are not checked for reuse; resuming it causes another turn.
    paused = run.phase == PipelineRun.Phase.PAUSED
    if run.fresh or paused:
        _go_on(run, {}, None, paused=paused)
        return
    # One worker at a time queries the servers of an appcode; the resync retries for those without the lock.
    with advisory_lock(Lock.PIPELINES, str(appcode_id)) as is_mine:
        if is_mine:
            latest = latest_of(run)
            _go_on(run, unchanged(run, PipelineSpec.stored(run.spec), latest), latest)


@transaction.atomic
def _go_on(
    run: PipelineRun, reusable: dict[str, Run], asked_of: dict[str, StageRun] | None, *, paused: bool = False
) -> None:
    """Rechecks what is `reusable` if a stage has ended since `asked_of`, as it may have written what others read."""
    if PIPELINES.hold(pk=run.pipeline_id) is None:
        return  # deleted meanwhile
    if asked_of is not None and _over(asked_of) != _over(latest_of(run)):
        wake(run.pipeline)
    else:
        go_on(run.pipeline, reusable, paused=paused)


def _over(latest: dict[str, StageRun]) -> set[int]:
    return {row.pk for row in latest.values() if row.has_ended}


def resync() -> None:
    """Wakes pipelines whose wake-up was lost: live runs in which no stage is under way, or one has ended that is not recorded
    yet, and requested next runs. Two queries."""
    under_way = StageRun.objects.filter(pipeline_run=OuterRef("pk"), phase=RUNNING)
    unnoted = under_way.filter(Q(run=None, sweep=None) | Q(run__phase__in=TERMINAL) | Q(sweep__phase__in=TERMINAL))
    stands = ~Exists(under_way) & ~Q(phase=PipelineRun.Phase.PAUSED)
    lost = PipelineRun.objects.filter(stands | Exists(unnoted), finished_at=None)
    wanted = Pipeline.objects.filter(next_by__isnull=False).exclude(runs__finished_at=None)
    for rows, way in ((lost, "pipeline__"), (wanted, "")):
        for appcode_id, name in rows.values_list(f"{way}appcode_id", f"{way}name").order_by("?")[:RESYNC_LIMIT]:
            wakeups.wake_whole(appcode_id, part_of(name))


def latest_of(run: PipelineRun) -> dict[str, StageRun]:
    return {row.stage: row for row in stages_of([run])[run.pk]}


def begin(pipeline: Pipeline, user: User, *, fresh: bool, newest: bool) -> PipelineRun:
    """Creates the next run of a locked pipeline without a live run."""
    pipeline.run_count += 1
    run = PipelineRun.objects.create(
        pipeline=pipeline, number=pipeline.run_count, spec=pipeline.spec, fresh=fresh, newest=newest, created_by=user
    )
    names = [stage["name"] for stage in pipeline.spec["stages"]]
    StageRun.objects.bulk_create([StageRun(pipeline_run=run, stage=name) for name in names])
    pipeline.current_run, pipeline.next_by = run, None
    pipeline.save(update_fields=["run_count", "current_run", "next_by"])
    PIPELINES.record(pipeline, "started", user, f"Run {run.number} started.", run=run.number)
    wake(pipeline)
    return run


def wake(pipeline: Pipeline) -> None:
    appcode_id, part = pipeline.appcode_id, part_of(pipeline.name)
    transaction.on_commit(lambda: wakeups.wake_whole(appcode_id, part))


@transaction.atomic
def _start_next(appcode_id: int, name: str) -> None:
    """Starts the run that was requested for when the one before is over."""
    pipeline = PIPELINES.hold(appcode=appcode_id, name=name)
    if pipeline and pipeline.next_by and not pipeline.runs.filter(finished_at=None).exists():
        begin(pipeline, pipeline.next_by, fresh=False, newest=True)


def go_on(pipeline: Pipeline, reusable: dict[str, Run], *, paused: bool = False) -> None:
    """Makes all possible steps of a locked pipeline's live run. `paused`: it was paused before, even if it is resumed by now."""
    rows = PipelineRun.objects.filter(pipeline=pipeline, finished_at=None)
    run = rows.select_related("created_by").first()
    if run is None:
        return
    run.pipeline = pipeline
    paused = paused or run.phase == PipelineRun.Phase.PAUSED
    spec = PipelineSpec.stored(run.spec)
    latest = latest_of(run)
    stages, nodes = {stage.name: stage for stage in spec.stages}, {node.name: node for node in spec.nodes}
    for row in latest.values():
        _note(row)
    while True:
        states = {
            name: State(
                row.phase,
                may_retry=(row.run_id or row.sweep_id) is not None and row.tries <= stages[name].retries,
                has_run=row.run_id is not None,
            )
            for name, row in latest.items()
        }
        following = decide(spec.nodes, states, cancelled=run.cancelled_at is not None, paused=paused)
        for name, why in following.skip:
            _end(latest[name], SKIPPED, why)
        for name in following.again:
            row = latest[name]
            latest[name] = StageRun.objects.create(
                pipeline_run=run, stage=name, attempt=row.attempt + 1, tries=row.tries + 1
            )
        for name in following.start:
            _start(run, spec, stages[name], nodes[name], latest, reusable.get(name))
        if not (following.start or following.skip or following.again):
            break
    if following.phase:
        _finish(run, following.phase, latest)


def _note(row: StageRun) -> None:
    if row.phase != RUNNING:
        return
    if row.sweep:
        if row.sweep.phase in TERMINAL or row.sweep.deleted_at:
            row.finished_at = row.sweep.finished_at
            _end(row, row.sweep.phase if row.sweep.phase in TERMINAL else STOPPED, row.sweep.message)
    elif row.run is None:
        _end(row, FAILED, "Its run is gone.")
    elif row.run.is_terminal:
        row.finished_at = row.run.finished_at
        _end(row, row.run.phase, row.run.message)


def _end(row: StageRun, phase: str, message: str) -> None:
    row.phase, row.message, row.finished_at = phase, message, row.finished_at or timezone.now()
    row.save(update_fields=["phase", "message", "finished_at", "run", "reused", "started_at"])


def _start(
    run: PipelineRun, whole: PipelineSpec, stage: StageSpec, node: Node, latest: dict[str, StageRun], before: Run | None
) -> None:
    row, name = latest[stage.name], run.pipeline.name
    source = latest[node.source].run if node.source else None
    spec = reading(whole.cluster_of(stage), name, node, source.number if source else None)
    reads_another = before and node.source and spec.input and _reads(before) != spec.input.from_
    if before and row.attempt == 1 and not reads_another:
        row.run, row.reused = before, True
        row.started_at = row.finished_at = timezone.now()
        _end(row, SUCCEEDED, f"Run {before.number} is used again: nothing has changed since.")
        return
    try:
        if stage.sweep:
            sweep = stage.sweep.model_copy(update={"template": spec})
            row.sweep = _search(run, sweep_name(name, stage.name, run.number, row.attempt), sweep)
        else:
            if stage.best:
                spec = _best(whole, stage.best, spec, latest[stage.best].sweep)
            row.run = _deploy(run, cluster_name(name, stage.name), spec)
    except (Invalid, PermissionDenied, Conflict) as error:
        why = sentence(error)
        _end(row, FAILED, f"It could not be started: {why}")
        return
    row.phase, row.started_at = RUNNING, timezone.now()
    row.save(update_fields=["phase", "started_at", "run", "sweep"])


def _best(whole: PipelineSpec, stage: str, template: ClusterSpec, found: Sweep | None) -> ClusterSpec:
    """The sweep's template with the parameters of its best trial. Raises Conflict if there is none."""
    said = next(each.sweep for each in whole.stages if each.name == stage)
    if said is None or found is None or not found.best:
        raise Conflict(f"{stage} has found no best trial.")
    spec = said.model_copy(update={"template": template})
    return parse(ClusterSpec, trial_spec(spec, found.best["parameters"]))


def _search(run: PipelineRun, name: str, spec: SweepSpec) -> Sweep:
    """Creates a stage's sweep. Raises Invalid and PermissionDenied."""
    metadata = {"name": name, "appcode": run.pipeline.appcode.code}
    manifest = parse(SweepManifest, {"metadata": metadata, "spec": spec})
    return create_sweep(manifest, acting_user=_starter(run))


def _starter(run: PipelineRun) -> User:
    if run.created_by is None:
        raise Conflict("Who started the pipeline is not known any more; run it again.")
    return run.created_by


def _reads(before: Run) -> str:
    said = before.spec["input"]
    return said.get("from", "") if isinstance(said, dict) else ""


def _deploy(run: PipelineRun, name: str, spec: ClusterSpec) -> Run:
    """Starts the next run of a stage's cluster, creating the cluster if needed. Raises Invalid, PermissionDenied and Conflict."""
    pipeline = run.pipeline
    metadata = {"name": name, "appcode": pipeline.appcode.code}
    manifest = ClusterManifest.model_validate({"metadata": metadata, "spec": spec})
    return actions.deploy_part(manifest, part_of(pipeline.name), acting_user=_starter(run), newest=run.newest)


def forget_removed(pipeline: Pipeline) -> None:
    """Deletes clusters of stages that the current definition no longer has. The pipeline is locked and has no live run."""
    spec = Pipeline.objects.values_list("spec", flat=True).get(pk=pipeline.pk)
    names = [cluster_name(pipeline.name, stage["name"]) for stage in spec["stages"]]
    actions.delete_parts(pipeline.appcode_id, part_of(pipeline.name), MOST_REMOVED, keep=names)


def _finish(run: PipelineRun, phase: str, latest: dict[str, StageRun]) -> None:
    broken = [row for row in latest.values() if row.phase in ("Failed", "Stopped")]
    if phase == FAILED:
        run.message = " ".join(f"{row.stage}: {row.message}" for row in broken[:3])
    elif phase == SUCCEEDED:
        reused = sum(row.reused for row in latest.values())
        run.message = f"Used again, because nothing had changed: {reused} of {len(latest)} stages." if reused else ""
    run.phase, run.finished_at = phase, timezone.now()
    run.save(update_fields=["phase", "message", "finished_at"])
    forget_removed(run.pipeline)
    said = f"Run {run.number}: {phase}. {run.message}".strip()
    PIPELINES.record(run.pipeline, phase.lower(), None, said, run=run.number)
    _tell_end(run)
    if run.pipeline.next_by_id:
        wake(run.pipeline)


def _tell_end(run: PipelineRun) -> None:
    """One mail for all stages with all their attempts."""
    user, at = run.created_by, run.finished_at
    if user is None or at is None or run.phase.lower() not in user.mail_phases:
        return
    rows = stages_of([run])[run.pk]
    seconds, cost = used_by(rows, sums_of([row.sweep.pk for row in rows if row.sweep], at), at)
    counts = Counter({row.stage: row.phase for row in rows}.values())
    said = ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items(), reverse=True))
    ended = f"Run {run.number}: {said}. {run.message}".strip()
    whole = Whole(
        key=f"pipeline run {run.pk} {run.phase} {at.isoformat()}",
        appcode_id=run.pipeline.appcode_id,
        name=str(run.pipeline),
        url=_url(run),
        phase=run.phase,
        sentence=ended + "".join(f"\n{row.stage}: {row.sweep.message}" for row in rows if row.sweep),
        gpu_seconds=seconds,
        cost=cost,
    )
    tell_whole(whole, user)


def _url(run: PipelineRun) -> str:
    return f"{reverse('pipeline', args=[run.pipeline.appcode.code, run.pipeline.name])}?run={run.number}"


def _runs_of(user: User) -> QuerySet[PipelineRun]:
    seen = pipelines_for(user).order_by().values("pk")
    return (
        PipelineRun.objects.filter(created_by=user, pipeline__in=seen).select_related("pipeline__appcode").defer("spec")
    )


TOLD = told_whole("pipeline", _runs_of, _url)
