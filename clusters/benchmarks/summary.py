"""Results of a benchmark for its page and REST: its measurements, what follows from them, and its totals."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.db.models import Count, F, Q, Sum

from clusters.benchmarks.manifest import BenchmarkSpec, Point, cluster_name
from clusters.benchmarks.models import Benchmark, Measurement
from clusters.benchmarks.results import NOISY, Outlier, Result, difference, efficiencies, outliers, stored
from clusters.runs.models import Run


@dataclass(frozen=True)
class Shown:
    """A measurement that was started. `efficiency` is 1.0 for linear scaling, None if there is nothing to compare. `before` is
    a sentence that compares it with the last similar one of the appcode, or ""."""

    row: Measurement
    cluster: str
    phase: str
    message: str
    result: Result | None
    efficiency: float | None = None
    before: str = ""
    outliers: Sequence[Outlier] = ()


@dataclass
class Sums:
    """Totals over the clusters of a benchmark, until now."""

    begun: int = 0
    ended: int = 0
    gpu_seconds: int = 0
    cost: Decimal = Decimal(0)


def measurements_of(benchmark: Benchmark) -> list[Shown]:
    """Measurements ordered by number. Two queries for any number of them."""
    rows = list(benchmark.measurements.select_related("cluster__current_run").defer("cluster__spec"))
    results = {row.pk: stored(row.result) for row in rows}
    shares = _shares(rows, results)
    earlier = _earlier(benchmark)
    found = []
    for row in rows:
        run = row.cluster.current_run if row.cluster else None
        living = run.phase if run and not run.is_terminal else "Running" if run else "Queued"
        result = results[row.pk]
        found.append(
            Shown(
                row,
                cluster_name(benchmark.name, row.number),
                row.phase or living,
                row.message or ("" if row.phase or run is None else run.message),
                result,
                shares.get(row.pk),
                _before(row, result, earlier),
                outliers(result.workers) if result else (),
            )
        )
    return found


def sums_of(benchmarks: Iterable[int], now: dt.datetime) -> dict[int, Sums]:
    """Totals by benchmark. Three queries."""
    found = {pk: Sums() for pk in benchmarks}
    rows = Measurement.objects.filter(benchmark__in=found).order_by()
    counts = rows.values_list("benchmark").annotate(begun=Count("pk"), ended=Count("pk", filter=~Q(phase="")))
    for pk, begun, ended in counts:
        found[pk].begun, found[pk].ended = begun, ended
    runs = Run.objects.filter(cluster__measurement__benchmark__in=found).order_by()
    sums = runs.values_list("cluster__measurement__benchmark").annotate(Sum("gpu_seconds"), Sum("cost"))
    for pk, seconds, cost in sums:
        found[pk].gpu_seconds, found[pk].cost = seconds, cost
    # Runs that hold resources now use more every second.
    growing = runs.filter(gone=False).annotate(benchmark=F("cluster__measurement__benchmark"))
    for each in growing.only("usage_as_of", "gpu_seconds", "gpu_rate", "cost", "cost_rate"):
        found[each.benchmark].gpu_seconds += each.gpu_seconds_at(now) - each.gpu_seconds
        found[each.benchmark].cost += each.cost_at(now) - each.cost
    return found


def _shares(rows: Sequence[Measurement], results: Mapping[int, Result | None]) -> dict[int, float]:
    """Efficiency of each measurement, by primary key."""
    lines: dict[tuple[str, str], dict[int, Measurement]] = {}
    for row in rows:
        lines.setdefault((row.strategy, row.data), {})[row.count] = row
    found: dict[int, float] = {}
    for line in lines.values():
        rates = {n: result.examples_per_second for n, row in line.items() if (result := results[row.pk])}
        found |= {line[n].pk: share for n, share in efficiencies(rates).items()}
    return found


@dataclass
class _Earlier:
    rate: float
    at: dt.datetime
    image: str


_Key = tuple[str, str, int, str]


def _key(row: Measurement) -> _Key:
    return row.strategy, row.data, row.count, row.cloud


def _earlier(benchmark: Benchmark) -> dict[_Key, _Earlier]:
    """The last similar measurements: undisturbed, of the same appcode, from an earlier benchmark. One query."""
    same = BenchmarkSpec.stored(benchmark.spec).same
    others = Measurement.objects.filter(
        benchmark__appcode=benchmark.appcode_id,
        benchmark__pk__lt=benchmark.pk,
        phase=Measurement.Phase.SUCCEEDED,
        result__spread__lte=NOISY,
        **{f"benchmark__spec__{key}": value for key, value in same.items()},
    )
    like = ("strategy", "data", "count", "cloud")
    said = (
        others.exclude(finished_at=None)
        .order_by(*like, "-pk")
        .distinct(*like)
        .values_list(
            "strategy", "data", "count", "cloud", "result__examples_per_second", "finished_at", "benchmark__spec__image"
        )
    )
    return {
        (strategy, data, n, cloud): _Earlier(rate, at, image)
        for strategy, data, n, cloud, rate, at, image in said
        if at
    }


def _before(row: Measurement, result: Result | None, earlier: Mapping[_Key, _Earlier]) -> str:
    last = earlier.get(_key(row))
    if result is None or last is None or result.spread > NOISY:
        return ""
    return difference(result.examples_per_second, last.rate, last.at, last.image)


def waiting(benchmark: Benchmark, begun: int) -> list[Point]:
    """The points that are still to be measured."""
    return BenchmarkSpec.stored(benchmark.spec).points[begun:] if benchmark.phase == "Running" else []
