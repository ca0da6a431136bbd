"""What the points of a sweep came to: for its page, never more than can be drawn, for its sampler, and the best. Read in a number
of queries that does not grow with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from django.db.models import Avg, Count, F, FloatField, QuerySet, StdDev
from django.db.models import Value as Constant

from clusters.models import Sweep, Trial
from clusters.sweeps.manifest import SweepSpec, Value
from clusters.sweeps.sampler import Point, chosen

# Of more points than that the best ones and the newest are drawn.
BEST, NEWEST = 100, 400


@dataclass(frozen=True)
class Outcome:
    """A point that has come to a value; of folds it is their mean, and `sd` their standard deviation."""

    number: int
    parameters: Mapping[str, Value]
    value: float
    sd: float | None = None


def outcomes(sweep: Sweep, spec: SweepSpec) -> list[Outcome]:
    """In the order of their numbers. Three queries."""
    rows = valued(sweep, spec)
    best = rows.order_by("-mean" if is_maximized(spec) else "mean", "number")[:BEST]
    newest = rows.order_by("-number")[:NEWEST]
    found = {number: (mean, sd) for number, mean, sd in (*best, *newest)}
    points = sweep.trials.filter(number__in=found, fold__lte=1).order_by("number")
    sd_of = spec.folds is not None
    return [
        Outcome(number, parameters, found[number][0], found[number][1] if sd_of else None)
        for number, parameters in points.values_list("number", "parameters")
    ]


def valued(sweep: Sweep, spec: SweepSpec) -> QuerySet[Trial, tuple[int, float, float | None]]:
    """(number, mean, standard deviation, None without folds) of the points all of whose folds have succeeded, unordered."""
    done = Trial.objects.filter(sweep=sweep, phase=Trial.Phase.SUCCEEDED, value__isnull=False).order_by()
    if spec.folds is None:
        # Each is a group of its own, and among thousands making these is most of the time.
        alone = done.annotate(mean=F("value"), sd=Constant(None, output_field=FloatField()))
        return alone.values_list("number", "mean", "sd")
    grouped = done.values("number").annotate(mean=Avg("value"), sd=StdDev("value", sample=True), done=Count("pk"))
    return grouped.filter(done=spec.folds).values_list("number", F("mean"), F("sd"))


def is_maximized(spec: SweepSpec) -> bool:
    return spec.goal is not None and spec.goal.direction == "maximize"


def known_points(sweep: Sweep, spec: SweepSpec) -> list[Point]:
    """What the sampler is told of points that were begun: of those of several folds their mean, when all have come to a value.
    The parameters are read only of those that it is told of."""
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
    """The best point of which all folds have a value: their mean and, of folds, their standard deviation (that of the values
    themselves, divided by their count, as scikit-learn says it). Of equal ones the first. Two queries."""
    if spec.goal is None:
        return None
    valued = sweep.trials.filter(phase=Trial.Phase.SUCCEEDED, value__isnull=False).order_by()
    means = valued.values("number").annotate(count=Count("pk"), mean=Avg("value"), sd=StdDev("value"))
    means = means.filter(count=spec.folds or 1)
    best = means.order_by("-mean" if spec.goal.direction == "maximize" else "mean", "number").first()
    if best is None:
        return None
    trial = sweep.trials.filter(number=best["number"]).order_by("fold")[0]
    sd = best["sd"] if spec.folds else None
    return {"number": best["number"], "value": best["mean"], "sd": sd, "parameters": trial.parameters}
