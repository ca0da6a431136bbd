"""What the points of a sweep came to, for its page: read in a number of queries that does not grow with them, and never more
than can be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Avg, Count, F, FloatField, QuerySet, StdDev
from django.db.models import Value as Constant

from clusters.models import Sweep, Trial
from clusters.sweeps.manifest import SweepSpec, Value

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
