"""Moves a benchmark on: reads the measurement that has ended, and starts the next one. It may die at any line.

The line that a measurement printed is read outside any transaction. Its result and the next cluster are written in one, under
the benchmark's lock. A failed measurement is kept as failed, and the next one is made: often only the largest does not fit.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.urls import reverse
from django.utils import timezone

from clusters import wakeups
from clusters.benchmarks.access import BENCHMARKS, benchmarks_for
from clusters.benchmarks.manifest import BenchmarkSpec, cluster_of
from clusters.benchmarks.models import Benchmark, Measurement
from clusters.benchmarks.results import Result, placed, result_of
from clusters.benchmarks.summary import sums_of
from clusters.catalog.models import Flavor
from clusters.clouds.drivers.base import CloudError
from clusters.cluster import actions
from clusters.logs.read import TAIL_BYTES, RunLogs
from clusters.runs.models import Run
from clusters.runs.status.notifications import Whole, tell_whole, told_whole
from clusters.runs.status.phase import TERMINAL
from clusters.scalars.reading import leading
from portal.access import OPERATE, may
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Invalid, sentence

# How long after a run's end its log is retried if it cannot be read.
PATIENCE = dt.timedelta(minutes=10)
RESYNC_LIMIT = 500


@dataclass(frozen=True)
class Reading:
    """A result of `run`, or why there is none. `again`: a retry may succeed."""

    run: int
    result: Result | None = None
    why: str = ""
    again: bool = False


def advance(appcode_id: int, name: str) -> None:
    """Does the next step, if there is one."""
    benchmark = Benchmark.objects.filter(appcode=appcode_id, name=name, finished_at=None).first()
    if benchmark is None:
        return
    # One worker of an appcode reads logs, also for trials of sweeps. The resync retries for those without the lock.
    with advisory_lock(Lock.TRIALS, str(appcode_id)) as is_mine:
        if is_mine:
            _go_on(benchmark.pk, _read(benchmark))


def resync() -> None:
    """Wakes live benchmarks: a wake-up may have been lost, or a server that was silent may answer now."""
    measures = Measurement.objects.filter(benchmark=OuterRef("pk"), phase="")
    rows = Benchmark.objects.filter(~Q(phase=Benchmark.Phase.PAUSED) | Exists(measures), finished_at=None)
    living = rows.order_by("?")
    for appcode_id, name in living.values_list("appcode", "name")[:RESYNC_LIMIT]:
        wakeups.wake_whole(appcode_id, f"benchmarks/{name}")


def _read(benchmark: Benchmark) -> Reading | None:
    """Reads the output of the measurement that has succeeded and is not judged yet."""
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
    benchmark = BENCHMARKS.hold(pk=benchmark_id, finished_at=None)
    if benchmark is None:
        return
    living = benchmark.measurements.filter(phase="").select_related("cluster__current_run").first()
    if living is None or _is_over(living, reading):
        begin_next(benchmark)


def _is_over(measurement: Measurement, reading: Reading | None) -> bool:
    """Whether it has ended; then the outcome is saved."""
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
    """Starts the next measurement, unless paused. Ends the benchmark if there is none, or it cannot be started."""
    spec = BenchmarkSpec.stored(benchmark.spec)
    begun = benchmark.measurements.count()
    if begun == len(spec.points):
        good = benchmark.measurements.filter(phase=Measurement.Phase.SUCCEEDED).count()
        phase = Benchmark.Phase.SUCCEEDED if good else Benchmark.Phase.FAILED
        finish(benchmark, phase, f"{good} of {begun} measured.")
        BENCHMARKS.record(benchmark, phase.lower(), None, benchmark.message)
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
        why = sentence(error)
        finish(benchmark, Benchmark.Phase.FAILED, f"{point.words} could not be started: {why}")
        BENCHMARKS.record(benchmark, "failed", None, benchmark.message)
        _mail(benchmark)
        return
    benchmark.measurements.create(
        number=begun + 1, strategy=point.strategy, data=point.data, count=point.count, cluster=made
    )


def finish(benchmark: Benchmark, phase: str, message: str) -> None:
    benchmark.phase, benchmark.message, benchmark.finished_at = phase, message, timezone.now()
    benchmark.save(update_fields=["phase", "message", "finished_at"])


def _mail(benchmark: Benchmark) -> None:
    """Sends one mail for all measurements to the user who created the benchmark."""
    sums = sums_of([benchmark.pk], timezone.now())[benchmark.pk]
    whole = Whole(
        key=f"benchmark {benchmark.pk}",
        appcode_id=benchmark.appcode_id,
        name=str(benchmark),
        url=_url(benchmark),
        phase=benchmark.phase,
        sentence=benchmark.message,
        gpu_seconds=sums.gpu_seconds,
        cost=sums.cost,
    )
    tell_whole(whole, benchmark.created_by)


def _url(benchmark: Benchmark) -> str:
    return reverse("benchmark", args=[benchmark.appcode.code, benchmark.name])


TOLD = told_whole("benchmark", lambda user: benchmarks_for(user).filter(created_by=user), _url)
