"""User actions on benchmarks. Each is one transaction: the change and its event.

Rows are locked in one order: appcode → benchmark → cluster → run.
"""

from __future__ import annotations

from django.db import transaction

from clusters.benchmarks.access import BENCHMARKS
from clusters.benchmarks.loop import begin_next, finish
from clusters.benchmarks.manifest import BenchmarkManifest, BenchmarkSpec, cluster_name, cluster_of
from clusters.benchmarks.models import Benchmark
from clusters.catalog.lookup import resolve, usable_appcode
from clusters.cluster import actions
from clusters.runs.models import Cluster
from clusters.runs.placing.known import capacity_of
from clusters.runs.placing.room import Wish, judge
from clusters.runs.queries.preview import placed
from portal.errors import Conflict, FieldError, Invalid
from portal.models import Appcode, User

# Benchmarks of one appcode, and those of them that are not over.
MOST, MOST_LIVING = 200, 5


@transaction.atomic
def create_benchmark(manifest: BenchmarkManifest, *, acting_user: User, appcode: Appcode | None = None) -> Benchmark:
    """Stores the benchmark and starts the first measurement. Raises Invalid or PermissionDenied."""
    name, spec = manifest.metadata.name, manifest.spec
    appcode = usable_appcode(manifest.metadata.appcode, acting_user, appcode)
    BENCHMARKS.reserve(appcode, name, MOST)
    if Benchmark.objects.filter(appcode=appcode, finished_at=None).count() >= MOST_LIVING:
        why = f"{appcode.code} has {MOST_LIVING} benchmarks that are not over; wait for one, or cancel what is not needed."
        raise Invalid.at("metadata", "name", message=why)
    _judge(name, spec, appcode)
    body = spec.model_dump(mode="json", by_alias=True)
    made = Benchmark.objects.create(appcode=appcode, name=name, spec=body, created_by=acting_user)
    BENCHMARKS.record(made, "created", acting_user, f"{len(spec.points)} measurements.")
    begin_next(made)
    return made


@transaction.atomic
def pause_benchmark(benchmark: Benchmark, *, acting_user: User) -> Benchmark:
    """Starts no more measurements; the current one goes on. Repeating it changes nothing. Raises Conflict if it is over."""
    benchmark = BENCHMARKS.locked(benchmark, acting_user)
    _require_alive(benchmark)
    if benchmark.phase != Benchmark.Phase.PAUSED:
        benchmark.phase, benchmark.message = Benchmark.Phase.PAUSED, f"Paused by {acting_user.display_name}."
        benchmark.save(update_fields=["phase", "message"])
        BENCHMARKS.record(benchmark, "paused", acting_user, benchmark.message)
    return benchmark


@transaction.atomic
def resume_benchmark(benchmark: Benchmark, *, acting_user: User) -> Benchmark:
    """Resumes it in the name of `acting_user`. Repeating it changes nothing. Raises Conflict if it is over, and Invalid if the
    appcode accepts nothing new."""
    benchmark = BENCHMARKS.locked(benchmark, acting_user)
    _require_alive(benchmark)
    if benchmark.phase == Benchmark.Phase.PAUSED:
        usable_appcode(benchmark.appcode.code, acting_user, benchmark.appcode)
        benchmark.phase, benchmark.message, benchmark.created_by = Benchmark.Phase.RUNNING, "", acting_user
        benchmark.save(update_fields=["phase", "message", "created_by"])
        BENCHMARKS.record(benchmark, "resumed", acting_user, "Resumed.")
        if not benchmark.measurements.filter(phase="").exists():
            begin_next(benchmark)
    return benchmark


@transaction.atomic
def cancel_benchmark(benchmark: Benchmark, *, acting_user: User) -> Benchmark:
    """Ends the benchmark and the current measurement; earlier ones stay. Repeating it changes nothing."""
    benchmark = BENCHMARKS.locked(benchmark, acting_user)
    if benchmark.finished_at is None:
        why = f"Stopped by {acting_user.display_name}."
        for each in benchmark.measurements.filter(phase=""):
            each.phase, each.message = Benchmark.Phase.STOPPED, why
            each.save(update_fields=["phase", "message"])
            if each.cluster_id:
                actions.end_part(each.cluster_id, "Cancelled", f"Its benchmark was ended. {why}")
        finish(benchmark, Benchmark.Phase.STOPPED, why)
        BENCHMARKS.record(benchmark, "cancelled", acting_user, why)
    return benchmark


@transaction.atomic
def delete_benchmark(benchmark: Benchmark, *, acting_user: User) -> None:
    """Deletes it with its results and its clusters, whose runs end."""
    benchmark = BENCHMARKS.locked(benchmark, acting_user)
    parts = Cluster.objects.filter(appcode=benchmark.appcode, part_of=benchmark.part_of, deleted_at=None)
    actions.delete_parts(benchmark.appcode_id, benchmark.part_of, parts.count())
    BENCHMARKS.record(benchmark, "deleted", acting_user, "Deleted.")
    benchmark.delete()


def _judge(name: str, spec: BenchmarkSpec, appcode: Appcode) -> None:
    """Raises Invalid, at the benchmark's fields, if a measurement could not be made."""
    numbers = [cluster_name(name, number) for number in range(1, len(spec.points) + 1)]
    taken = Cluster.objects.filter(appcode=appcode, name__in=numbers, deleted_at=None).values_list("name", flat=True)
    if found := taken.first():
        message = f"There is a cluster “{found}”, as a measurement of this would be called; choose another name."
        raise Invalid.at("metadata", "name", message=message)
    for point in spec.points:
        if point.data != spec.data[0]:
            continue  # the same tasks again
        where = ("spec", "counts", str(spec.counts.index(point.count)))
        try:
            manifest = cluster_of(name, appcode.code, spec, 1, point, 1000)
            resolved = resolve(manifest.spec, appcode)
        except Invalid as invalid:
            # Several roles have the same flavor, so errors may repeat.
            said = dict.fromkeys(_as_said(each, spec, where, point.words) for each in invalid.errors)
            raise Invalid(list(said)) from invalid
        cloud = resolved.place.cloud
        judged = judge(placed(resolved), capacity_of(cloud), cloud, Wish(appcode, resolved.place.namespace))
        if judged.fits == "never":
            at = where if point.count > spec.counts[0] else ("spec", "flavor")
            raise Invalid.at(*at, message=f"{point.words}: {judged.message}")


def _as_said(error: FieldError, spec: BenchmarkSpec, count: tuple[str, ...], words: str) -> FieldError:
    """An error of a measurement's cluster, at the benchmark's field that caused it."""
    path = error.path[1:]
    if path in (("image",), ("framework",)):
        return FieldError(("spec", "image"), error.message, error.see)
    if path[:1] == ("roles",) and "GPU" not in error.message and path[-1:] == ("flavor",):
        is_server = spec.server_flavor is not None and spec.server_flavor in error.message
        return FieldError(("spec", "serverFlavor" if is_server else "flavor"), error.message, error.see)
    if path[:1] == ("roles",):
        return FieldError(count, f"{words}: {error.message}", error.see)
    return error


def _require_alive(benchmark: Benchmark) -> None:
    if benchmark.finished_at is not None:
        raise Conflict(f"{benchmark.name} is over ({benchmark.phase}); make another one.")
