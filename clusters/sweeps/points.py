"""Results of a sweep's points, for its page (a limited number), its sampler, and the best. A fixed number of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from django.db.models import Avg, Count, F, FloatField, QuerySet, StdDev
from django.db.models import Value as Constant

from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.models import Sweep, Trial
from clusters.sweeps.parameters import Value
from clusters.sweeps.search.sampler import Point, chosen

# Limits for drawing: the best and the newest points.
BEST, NEWEST = 100, 400


@dataclass(frozen=True)
class Outcome:
    """A point with a value. With folds it is their mean, and `sd` their standard deviation (`valued`)."""

    number: int
    parameters: Mapping[str, Value]
    value: float
    sd: float | None = None


def outcomes(sweep: Sweep, spec: SweepSpec) -> list[Outcome]:
    """Outcomes ordered by number. Three queries."""
    newest = valued(sweep, spec).order_by("-number")[:NEWEST]
    found = {number: (mean, sd) for number, mean, sd in (*_best_first(sweep, spec)[:BEST], *newest)}
    points = sweep.trials.filter(number__in=found, fold__lte=1).order_by("number")
    return [Outcome(number, said, *found[number]) for number, said in points.values_list("number", "parameters")]


def valued(sweep: Sweep, spec: SweepSpec) -> QuerySet[Trial, tuple[int, float, float | None]]:
    """(number, mean, standard deviation or None without folds) of points whose folds have all succeeded, unordered. The deviation
    is that of the population: it describes these folds, and equals the `std_test_score` of scikit-learn."""
    done = Trial.objects.filter(sweep=sweep, phase=Trial.Phase.SUCCEEDED, value__isnull=False).order_by()
    if spec.folds is None:
        # Without folds each point would be its own group, and grouping thousands takes most of the time.
        alone = done.annotate(mean=F("value"), sd=Constant(None, output_field=FloatField()))
        return alone.values_list("number", "mean", "sd")
    grouped = done.values("number").annotate(mean=Avg("value"), sd=StdDev("value"), done=Count("pk"))
    return grouped.filter(done=spec.folds).values_list("number", F("mean"), F("sd"))


def _best_first(sweep: Sweep, spec: SweepSpec) -> QuerySet[Trial, tuple[int, float, float | None]]:
    return valued(sweep, spec).order_by("-mean" if is_maximized(spec) else "mean", "number")


def is_maximized(spec: SweepSpec) -> bool:
    return spec.goal is not None and spec.goal.direction == "maximize"


def known_points(sweep: Sweep, spec: SweepSpec) -> list[Point]:
    """The started points for the sampler; with folds the mean, once all have a value. Only loads the parameters it needs."""
    rows = sweep.trials.order_by("number", "fold").values_list("number", "phase", "value", "step")
    points = [
        _known(number, list(trials), spec.folds or 1) for number, trials in groupby(rows.iterator(), lambda row: row[0])
    ]
    told = chosen(spec, points)
    numbers = [point.number for point in told]
    parameters = dict(sweep.trials.filter(number__in=numbers).values_list("number", "parameters"))
    return [replace(point, parameters=parameters[point.number]) for point in told]


def _known(number: int, trials: Sequence[tuple[int, str, float | None, int | None]], count: int) -> Point:
    _, phase, reached, step = trials[0]
    if phase == Trial.Phase.PRUNED:
        return Point(number, {}, None, True, step, reached)
    values = [value for _, phase, value, _ in trials if phase == Trial.Phase.SUCCEEDED and value is not None]
    if len(values) == count:
        return Point(number, {}, sum(values) / count, True)
    lost = any(phase and phase != Trial.Phase.SUCCEEDED for _, phase, _, _ in trials)
    return Point(number, {}, None, lost)


def best_of(sweep: Sweep, spec: SweepSpec) -> dict[str, object] | None:
    """The best point whose folds all have a value. Ties go to the first. Two queries."""
    best = _best_first(sweep, spec).first() if spec.goal else None
    if best is None:
        return None
    number, value, sd = best
    trial = sweep.trials.filter(number=number).order_by("fold")[0]
    return {"number": number, "value": value, "sd": sd, "parameters": trial.parameters}
