"""A benchmark goes on: the measurement that has ended is read, and the next one is started. It can die at any line.

The line that a measurement has printed is read outside any transaction; what it says and the next cluster are written in one,
under the lock of the benchmark. A measurement that fails is kept as failed, and the next one is made: often it is only the
largest that does not fit.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.urls import reverse
from django.utils import timezone

from clusters import actions, wakeups
from clusters.benchmarks.manifest import BenchmarkSpec, cluster_of
from clusters.benchmarks.measured import Result, placed, result_of
from clusters.benchmarks.shown import sums_of
from clusters.clouds.drivers.base import CloudError
from clusters.logs.read import TAIL_BYTES, RunLogs
from clusters.models import Benchmark, Flavor, Measurement, Run
from clusters.phase import TERMINAL
from clusters.runs.telling import Whole, tell_whole
from clusters.scalars.reading import leading
from portal.access import OPERATE, may
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Invalid
from portal.events import record
from portal.models import User

# For how long after its end the log of a run is asked for where its place does not answer.
PATIENCE = dt.timedelta(minutes=10)
RESYNC_LIMIT = 500


@dataclass(frozen=True)
class Reading:
    """Of `run`: a result, or why there is none; `again` where that may change."""

    run: int
    result: Result | None = None
    why: str = ""
    again: bool = False


def advance(appcode_id: int, name: str) -> None:
    """Does what is to be done next, if anything is."""
    benchmark = Benchmark.objects.filter(appcode=appcode_id, name=name, finished_at=None).first()
    if benchmark is None:
        return
    # One worker of an appcode reads numbers, as of the trials of its sweeps; who is not let in comes again with the resync.
    with advisory_lock(Lock.TRIALS, str(appcode_id)) as is_mine:
        if is_mine:
            _go_on(benchmark.pk, _read(benchmark))


def resync() -> None:
    """Wakes those that live: a wake-up may have been lost, or what did not answer does now."""
    measures = Measurement.objects.filter(benchmark=OuterRef("pk"), phase="")
    rows = Benchmark.objects.filter(~Q(phase=Benchmark.Phase.PAUSED) | Exists(measures), finished_at=None)
    living = rows.order_by("?")
    for appcode_id, name in living.values_list("appcode", "name")[:RESYNC_LIMIT]:
        wakeups.wake_whole(appcode_id, f"benchmarks/{name}")


def _read(benchmark: Benchmark) -> Reading | None:
    """What the measurement has printed that has ended well and is not judged yet."""
    living = benchmark.measurements.filter(phase="", cluster__current_run__phase=Run.Phase.SUCCEEDED)
    found = living.select_related("cluster__appcode", "cluster__current_run").first()
    if found is None or found.cluster is None or found.cluster.current_run is None:
        return None
    run = found.cluster.current_run
    run.cluster = found.cluster
    try:
        role, attempt = leading(run)
        if attempt is None:
            return Reading(run.pk, why="It had no task.")
        chunk = RunLogs(run).read(role, 0, attempt, limit=TAIL_BYTES, tail=TAIL_BYTES)
    except CloudError as error:
        return Reading(run.pk, why=f"Its log cannot be read now: {error}", again=True)
    if chunk.absent and not chunk.complete:
        return Reading(run.pk, why="Its log is not there yet.", again=True)
    result = result_of(chunk.data)
    if result is None or len(result.workers) != found.count:
        return Reading(run.pk, why="It has not printed what it came to; its log says more.")
    nodes = {(each.role, each.index): each.node for each in run.tasks.order_by("attempt").only("role", "index", "node")}
    return Reading(run.pk, placed(result, found.strategy, nodes))


@transaction.atomic
def _go_on(benchmark_id: int, reading: Reading | None) -> None:
    rows = Benchmark.objects.select_for_update(of=("self",), no_key=True).select_related("appcode", "created_by")
    benchmark = rows.filter(pk=benchmark_id, finished_at=None).first()
    if benchmark is None:
        return
    living = benchmark.measurements.filter(phase="").select_related("cluster__current_run").first()
    if living is None or _is_over(living, reading):
        begin_next(benchmark)


def _is_over(measurement: Measurement, reading: Reading | None) -> bool:
    """Whether it has ended, which is written."""
    run = measurement.cluster.current_run if measurement.cluster else None
    if run is not None and run.phase not in TERMINAL:
        return False
    if run is None or run.phase == Run.Phase.STOPPED:
        measurement.phase, measurement.message = (
            Measurement.Phase.STOPPED,
            run.message if run else "Its cluster is gone.",
        )
    elif run.phase == Run.Phase.FAILED:
        measurement.phase, measurement.message = Measurement.Phase.FAILED, run.message
    elif reading is None or reading.run != run.pk:
        return False
    elif reading.again and timezone.now() < (run.finished_at or timezone.now()) + PATIENCE:
        if measurement.message != reading.why:
            measurement.message = reading.why
            measurement.save(update_fields=["message"])
        return False
    elif reading.result is None:
        measurement.phase, measurement.message = Measurement.Phase.FAILED, reading.why
    else:
        measurement.phase, measurement.message = Measurement.Phase.SUCCEEDED, ""
        measurement.result = reading.result.model_dump(mode="json")
    measurement.cloud = run.cloud if run else ""
    measurement.finished_at = (run and run.finished_at) or timezone.now()
    measurement.save()
    return True


def begin_next(benchmark: Benchmark) -> None:
    """Starts the measurement that comes next, unless the benchmark is paused; where there is none, or it cannot be started, the
    benchmark is over."""
    spec = BenchmarkSpec.model_validate(benchmark.spec)
    begun = benchmark.measurements.count()
    if begun == len(spec.points):
        good = benchmark.measurements.filter(phase=Measurement.Phase.SUCCEEDED).count()
        phase = Benchmark.Phase.SUCCEEDED if good else Benchmark.Phase.FAILED
        finish(benchmark, phase, f"{good} of {begun} measured.")
        told(benchmark, phase.lower(), None, benchmark.message)
        _mail(benchmark)
        return
    if benchmark.phase == Benchmark.Phase.PAUSED:
        return
    point, user = spec.points[begun], benchmark.created_by
    cores = Flavor.objects.filter(name=spec.flavor).values_list("cpu_milli", flat=True).first() or 1000
    try:
        if user is None or not may(user, benchmark.appcode, OPERATE):
            who = user.display_name if user else "Whoever made it"
            raise PermissionDenied(f"{who} may start nothing in {benchmark.appcode.code} any more.")
        manifest = cluster_of(benchmark.name, benchmark.appcode.code, spec, begun + 1, point, cores)
        made = actions.create_cluster(manifest, acting_user=user, part_of=benchmark.part_of)
    except (Invalid, PermissionDenied) as error:
        why = " ".join(each.message for each in error.errors) if isinstance(error, Invalid) else str(error)
        finish(benchmark, Benchmark.Phase.FAILED, f"{point.words} could not be started: {why}")
        told(benchmark, "failed", None, benchmark.message)
        _mail(benchmark)
        return
    benchmark.measurements.create(
        number=begun + 1, strategy=point.strategy, data=point.data, count=point.count, cluster=made
    )


def finish(benchmark: Benchmark, phase: str, message: str) -> None:
    benchmark.phase, benchmark.message, benchmark.finished_at = phase, message, timezone.now()
    benchmark.save(update_fields=["phase", "message", "finished_at"])


def _mail(benchmark: Benchmark) -> None:
    """One for all of its measurements, to who made it."""
    sums = sums_of([benchmark.pk], timezone.now())[benchmark.pk]
    whole = Whole(
        key=f"benchmark {benchmark.pk}",
        appcode_id=benchmark.appcode_id,
        name=str(benchmark),
        url=reverse("benchmark", args=[benchmark.appcode.code, benchmark.name]),
        phase=benchmark.phase,
        sentence=benchmark.message,
        gpu_seconds=sums.gpu_seconds,
        cost=sums.cost,
    )
    tell_whole(whole, benchmark.created_by)


def told(benchmark: Benchmark, verb: str, actor: User | None, message: str) -> None:
    code = benchmark.appcode.code
    record(f"benchmark.{verb}", actor=actor, appcode=code, object=f"benchmark {benchmark}", message=message)
