"""A run of a pipeline goes on: what has ended is noted, what may start is started.

One transaction under the lock of the pipeline, from what the runs of its stages are to what graph.py decides of it. Woken when
the run of a stage ends, and by `resync` where that was lost; twice, it changes nothing. What need not be run again (reuse.py) is
asked before, outside of it.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.urls import reverse
from django.utils import timezone

from clusters import actions, wakeups
from clusters.manifest import ClusterManifest, ClusterSpec
from clusters.models import Cluster, Pipeline, PipelineRun, Run, StageRun, Sweep
from clusters.phase import TERMINAL
from clusters.pipelines.access import stages_of
from clusters.pipelines.graph import FAILED, RUNNING, SKIPPED, STOPPED, SUCCEEDED, Node, State, decide
from clusters.pipelines.manifest import PipelineSpec, StageSpec, cluster_name, part_of, reading, sweep_name
from clusters.pipelines.reuse import unchanged
from clusters.runs.telling import Whole, tell_whole
from clusters.sweeps.actions import create_sweep
from clusters.sweeps.manifest import SweepManifest, SweepSpec, trial_spec
from clusters.sweeps.sums import sums_of
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, Invalid
from portal.events import record
from portal.manifests import parse
from portal.models import User

# So many are found by one sweep, in any order: those of an appcode whose store does not answer stand before nobody.
RESYNC_LIMIT = 500
# Clusters of removed stages that are deleted at one time.
MOST_REMOVED = 500


def advance(appcode_id: int, name: str) -> None:
    """Does what is to be done next for the pipeline, if anything is."""
    living = PipelineRun.objects.filter(pipeline__appcode=appcode_id, pipeline__name=name, finished_at=None)
    run = living.select_related("pipeline__appcode__org_node").first()
    if run is None:
        _start_next(appcode_id, name)
        return
    # Paused it starts nothing, so nobody is asked what need not be run again; whoever resumes it makes another turn.
    paused = run.phase == PipelineRun.Phase.PAUSED
    if run.fresh or paused:
        _go_on(run, {}, None, paused=paused)
        return
    # One worker at a time asks the servers of an appcode; the sweep comes again for who was not let in.
    with advisory_lock(Lock.PIPELINES, str(appcode_id)) as is_mine:
        if is_mine:
            latest = latest_of(run)
            _go_on(run, unchanged(run, PipelineSpec.model_validate(run.spec), latest), latest)


@transaction.atomic
def _go_on(
    run: PipelineRun, reusable: dict[str, Run], asked_of: dict[str, StageRun] | None, *, paused: bool = False
) -> None:
    """`reusable` is what was true of stages as they were then (`asked_of`); what has ended since may have written what they
    read."""
    try:
        lock(run.pipeline)
    except Pipeline.DoesNotExist:
        return  # deleted meanwhile
    if asked_of is not None and _over(asked_of) != _over(latest_of(run)):
        wake(run.pipeline)
    else:
        go_on(run.pipeline, reusable, paused=paused)


def _over(latest: dict[str, StageRun]) -> set[int]:
    return {row.pk for row in latest.values() if row.has_ended}


def resync() -> None:
    """Wakes the pipelines that a lost wake-up has left: of those that live, where nothing is under way, or something ended
    that nobody has noted. One query."""
    under_way = StageRun.objects.filter(pipeline_run=OuterRef("pk"), phase=RUNNING)
    unnoted = under_way.filter(Q(run=None, sweep=None) | Q(run__phase__in=TERMINAL) | Q(sweep__phase__in=TERMINAL))
    stands = ~Exists(under_way) & ~Q(phase=PipelineRun.Phase.PAUSED)
    lost = PipelineRun.objects.filter(stands | Exists(unnoted), finished_at=None)
    wanted = Pipeline.objects.filter(next_by__isnull=False).exclude(runs__finished_at=None)
    for rows, way in ((lost, "pipeline__"), (wanted, "")):
        for appcode_id, name in rows.values_list(f"{way}appcode_id", f"{way}name").order_by("?")[:RESYNC_LIMIT]:
            wakeups.wake_whole(appcode_id, part_of(name))


def lock(pipeline: Pipeline) -> None:
    Pipeline.objects.select_for_update(no_key=True).only("pk").get(pk=pipeline.pk)


def latest_of(run: PipelineRun) -> dict[str, StageRun]:
    return {row.stage: row for row in stages_of([run])[run.pk]}


def begin(pipeline: Pipeline, user: User, *, fresh: bool, newest: bool) -> PipelineRun:
    """Makes the next run of a locked pipeline that has none alive."""
    pipeline.run_count += 1
    run = PipelineRun.objects.create(
        pipeline=pipeline, number=pipeline.run_count, spec=pipeline.spec, fresh=fresh, newest=newest, created_by=user
    )
    names = [stage["name"] for stage in pipeline.spec["stages"]]
    StageRun.objects.bulk_create([StageRun(pipeline_run=run, stage=name) for name in names])
    pipeline.current_run, pipeline.next_by = run, None
    pipeline.save(update_fields=["run_count", "current_run", "next_by"])
    told(pipeline, "started", user, f"Run {run.number} started.", run)
    wake(pipeline)
    return run


def wake(pipeline: Pipeline) -> None:
    appcode_id, part = pipeline.appcode_id, part_of(pipeline.name)
    transaction.on_commit(lambda: wakeups.wake_whole(appcode_id, part))


def told(pipeline: Pipeline, verb: str, actor: User | None, message: str, run: PipelineRun | None = None) -> None:
    data = {"run": run.number} if run else {}
    code = pipeline.appcode.code
    record(
        f"pipeline.{verb}",
        actor=actor,
        appcode=code,
        object=f"pipeline {code}/{pipeline.name}",
        message=message,
        **data,
    )


@transaction.atomic
def _start_next(appcode_id: int, name: str) -> None:
    """What a schedule wanted as soon as the run before is over."""
    rows = Pipeline.objects.select_for_update(of=("self",), no_key=True).filter(appcode=appcode_id, name=name)
    pipeline = rows.select_related("appcode", "next_by").first()
    if pipeline and pipeline.next_by and not pipeline.runs.filter(finished_at=None).exists():
        begin(pipeline, pipeline.next_by, fresh=False, newest=True)


def go_on(pipeline: Pipeline, reusable: dict[str, Run], *, paused: bool = False) -> None:
    """One step of the living run of a locked pipeline, until nothing is to be done but to wait. `paused`: it was when the step
    began, though somebody may have resumed it meanwhile."""
    rows = PipelineRun.objects.filter(pipeline=pipeline, finished_at=None)
    run = rows.select_related("created_by").first()
    if run is None:
        return
    run.pipeline = pipeline
    paused = paused or run.phase == PipelineRun.Phase.PAUSED
    spec = PipelineSpec.model_validate(run.spec)
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
        why = " ".join(each.message for each in error.errors) if isinstance(error, Invalid) else str(error)
        _end(row, FAILED, f"It could not be started: {why}")
        return
    row.phase, row.started_at = RUNNING, timezone.now()
    row.save(update_fields=["phase", "started_at", "run", "sweep"])


def _best(whole: PipelineSpec, stage: str, template: ClusterSpec, found: Sweep | None) -> ClusterSpec:
    """The template of a sweep with the parameters that it has found to be the best. Raises Conflict where it has found none."""
    said = next(each.sweep for each in whole.stages if each.name == stage)
    if said is None or found is None or not found.best:
        raise Conflict(f"{stage} has found no best trial.")
    spec = said.model_copy(update={"template": template})
    return parse(ClusterSpec, trial_spec(spec, found.best["parameters"]))


def _search(run: PipelineRun, name: str, spec: SweepSpec) -> Sweep:
    """Makes the sweep of a stage. Raises Invalid and PermissionDenied."""
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
    """The next run of a stage's cluster, which is made where there is none. Raises Invalid, PermissionDenied and Conflict."""
    pipeline, user = run.pipeline, _starter(run)
    part = part_of(pipeline.name)
    metadata = {"name": name, "appcode": pipeline.appcode.code}
    manifest = ClusterManifest.model_validate({"metadata": metadata, "spec": spec})
    cluster = Cluster.objects.filter(appcode=pipeline.appcode, name=name, part_of=part, deleted_at=None).first()
    with transaction.atomic():
        if cluster is None:
            made = actions.create_cluster(manifest, acting_user=user, part_of=part).current_run
            assert made is not None
            return made
        changed = actions.change_cluster(cluster, manifest, acting_user=user)
        return actions.deploy(changed, acting_user=user, newest=run.newest)


def forget_removed(pipeline: Pipeline) -> None:
    """Deletes the clusters of stages that the definition of a locked pipeline, of which no run lives, does not have any more."""
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
    told(run.pipeline, phase.lower(), None, f"Run {run.number}: {phase}. {run.message}".strip(), run)
    _tell_end(run)
    if run.pipeline.next_by_id:
        wake(run.pipeline)


def _tell_end(run: PipelineRun) -> None:
    """One mail for all of its stages, in all their attempts."""
    user, at, code = run.created_by, run.finished_at, run.pipeline.appcode.code
    if user is None or at is None or run.phase.lower() not in user.mail_phases:
        return
    rows = stages_of([run])[run.pk]
    searched = sums_of([row.sweep.pk for row in rows if row.sweep], at).values()
    runs = [row.run for row in rows if row.run and not row.reused]
    counts = Counter({row.stage: row.phase for row in rows}.values())
    said = ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items(), reverse=True))
    ended = f"Run {run.number}: {said}. {run.message}".strip()
    whole = Whole(
        key=f"pipeline run {run.pk} {run.phase} {at.isoformat()}",
        appcode_id=run.pipeline.appcode_id,
        name=str(run.pipeline),
        url=f"{reverse('pipeline', args=[code, run.pipeline.name])}?run={run.number}",
        phase=run.phase,
        sentence=ended + "".join(f"\n{row.stage}: {row.sweep.message}" for row in rows if row.sweep),
        gpu_seconds=sum(each.gpu_seconds_at(at) for each in runs) + sum(each.gpu_seconds for each in searched),
        cost=sum((each.cost_at(at) for each in runs), Decimal(0)) + sum((each.cost for each in searched), Decimal(0)),
    )
    tell_whole(whole, user)
