"""What people do to benchmarks. Each action is one transaction: the change and its event.

Rows are locked in one order: appcode → benchmark → cluster → run.
"""

from __future__ import annotations

from django.db import transaction
from django.http import Http404

from clusters import actions
from clusters.benchmarks.loop import begin_next, finish, told
from clusters.benchmarks.manifest import BenchmarkManifest, BenchmarkSpec, cluster_name, cluster_of
from clusters.clouds.drivers.base.fit import judge
from clusters.models import Benchmark, Cluster
from clusters.runs.preview import capacity_of, placed
from clusters.spec.catalog import resolve, usable_appcode
from portal.access import OPERATE, require
from portal.errors import Conflict, FieldError, Invalid
from portal.models import Appcode, User

# Of one appcode, and those of them that are not over.
MOST, MOST_LIVING = 200, 5


@transaction.atomic
def create_benchmark(manifest: BenchmarkManifest, *, acting_user: User, appcode: Appcode | None = None) -> Benchmark:
    """Writes it down and starts the first measurement. Raises Invalid or PermissionDenied."""
    name, spec = manifest.metadata.name, manifest.spec
    appcode = usable_appcode(manifest.metadata.appcode, acting_user, appcode)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    rows = Benchmark.objects.filter(appcode=appcode)
    why = ""
    if rows.filter(name=name).exists():
        why = f"{appcode.code} already has a benchmark “{name}”; choose another name."
    elif rows.count() >= MOST:
        why = f"{appcode.code} has {MOST} benchmarks already; delete one."
    elif rows.filter(finished_at=None).count() >= MOST_LIVING:
        why = f"{appcode.code} has {MOST_LIVING} benchmarks that are not over; wait for one, or cancel what is not needed."
    if why:
        raise Invalid.at("metadata", "name", message=why)
    _judge(name, spec, appcode)
    body = spec.model_dump(mode="json", by_alias=True)
    made = Benchmark.objects.create(appcode=appcode, name=name, spec=body, created_by=acting_user)
    told(made, "created", acting_user, f"{len(spec.points)} measurements.")
    begin_next(made)
    return made


@transaction.atomic
def pause_benchmark(benchmark: Benchmark, *, acting_user: User) -> Benchmark:
    """Starts no more measurements; the one that is being made goes on. Repeating it changes nothing. Raises Conflict for one
    that is over."""
    benchmark = _locked(benchmark, acting_user)
    _require_alive(benchmark)
    if benchmark.phase != Benchmark.Phase.PAUSED:
        benchmark.phase, benchmark.message = Benchmark.Phase.PAUSED, f"Paused by {acting_user.display_name}."
        benchmark.save(update_fields=["phase", "message"])
        told(benchmark, "paused", acting_user, benchmark.message)
    return benchmark


@transaction.atomic
def resume_benchmark(benchmark: Benchmark, *, acting_user: User) -> Benchmark:
    """Goes on, from now in the name of who resumes it. Repeating it changes nothing. Raises Conflict for one that is over, and
    Invalid where the appcode takes nothing new."""
    benchmark = _locked(benchmark, acting_user)
    _require_alive(benchmark)
    if benchmark.phase == Benchmark.Phase.PAUSED:
        usable_appcode(benchmark.appcode.code, acting_user, benchmark.appcode)
        benchmark.phase, benchmark.message, benchmark.created_by = Benchmark.Phase.RUNNING, "", acting_user
        benchmark.save(update_fields=["phase", "message", "created_by"])
        told(benchmark, "resumed", acting_user, "Resumed.")
        if not benchmark.measurements.filter(phase="").exists():
            begin_next(benchmark)
    return benchmark


@transaction.atomic
def cancel_benchmark(benchmark: Benchmark, *, acting_user: User) -> Benchmark:
    """Ends it and the measurement that is being made; those before stay. Repeating it changes nothing."""
    benchmark = _locked(benchmark, acting_user)
    if benchmark.finished_at is None:
        why = f"Cancelled by {acting_user.display_name}."
        for each in benchmark.measurements.filter(phase=""):
            each.phase, each.message = Benchmark.Phase.STOPPED, why
            each.save(update_fields=["phase", "message"])
            if each.cluster_id:
                actions.end_part(each.cluster_id, "Cancelled", f"Its benchmark was ended. {why}")
        finish(benchmark, Benchmark.Phase.STOPPED, why)
        told(benchmark, "cancelled", acting_user, why)
    return benchmark


@transaction.atomic
def delete_benchmark(benchmark: Benchmark, *, acting_user: User) -> None:
    """Removes it with its results and its clusters, whose runs end."""
    benchmark = _locked(benchmark, acting_user)
    parts = Cluster.objects.filter(appcode=benchmark.appcode, part_of=benchmark.part_of, deleted_at=None)
    actions.delete_parts(benchmark.appcode_id, benchmark.part_of, parts.count())
    told(benchmark, "deleted", acting_user, "Deleted.")
    benchmark.delete()


def _judge(name: str, spec: BenchmarkSpec, appcode: Appcode) -> None:
    """Raises Invalid, at the fields of the benchmark, for what no measurement could be made of."""
    numbers = [cluster_name(name, number) for number in range(1, len(spec.points) + 1)]
    taken = Cluster.objects.filter(appcode=appcode, name__in=numbers, deleted_at=None).values_list("name", flat=True)
    if found := taken.first():
        message = f"There is a cluster “{found}”, as a measurement of this would be called; choose another name."
        raise Invalid.at("metadata", "name", message=message)
    for point in spec.points:
        if point.data != spec.data[0]:
            continue  # the same tasks once more
        where = ("spec", "counts", str(spec.counts.index(point.count)))
        try:
            manifest = cluster_of(name, appcode.code, spec, 1, point, 1000)
            resolved = resolve(manifest.spec, appcode)
        except Invalid as invalid:
            # Several roles have the same flavor.
            said = dict.fromkeys(_as_said(each, spec, where, point.words) for each in invalid.errors)
            raise Invalid(list(said)) from invalid
        judged = judge(placed(resolved), capacity_of(resolved.place.cloud))
        if judged.fits == "never":
            at = where if point.count > spec.counts[0] else ("spec", "flavor")
            raise Invalid.at(*at, message=f"{point.words}: {judged.message}")


def _as_said(error: FieldError, spec: BenchmarkSpec, count: tuple[str, ...], words: str) -> FieldError:
    """An error of a measurement's cluster, at the field of the benchmark that it comes from."""
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


def _locked(benchmark: Benchmark, user: User) -> Benchmark:
    """The row as it is now, until the end of the transaction. Raises Http404 where it was deleted meanwhile."""
    require(user, benchmark.appcode, OPERATE)
    rows = Benchmark.objects.select_for_update(of=("self",), no_key=True).select_related("appcode", "created_by")
    found = rows.filter(pk=benchmark.pk).first()
    if found is None:
        raise Http404(f"There is no benchmark “{benchmark.name}” any more.")
    return found
