"""Charts of a sweep's results with a bounded number of points. The metric curves of the best trials load after the page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import conditional_page, require_safe

from clusters.clouds.drivers.base import CloudError
from clusters.cluster.pages.metrics import READ_SECONDS, line_of
from clusters.comparison.runs import name_of, numbers_of
from clusters.results.values import styles
from clusters.runs.models import Run
from clusters.scalars.events import Scalars
from clusters.scalars.reading import printed_by
from clusters.sweeps.access import sweep_for
from clusters.sweeps.copies import ROLE
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.models import Sweep
from clusters.sweeps.objective import lines_of
from clusters.sweeps.pages.labels import in_words
from clusters.sweeps.parameters import Parameter, in_order, written
from clusters.sweeps.points import BEST, NEWEST, Outcome, is_maximized, outcomes, valued
from clusters.sweeps.search.importance import LEAST, importances
from clusters.sweeps.shared import by_run
from datastores.drivers.patience import within
from portal.api.problems import Unavailable
from portal.pages.appcodes import person
from portal.pages.charts import Chart, Dimension, Line, Strands, draw, draw_strands, number, styled, without_outliers
from portal.web.limits import LOOKS

# Trials whose curves share a chart, and trials beyond its axis that are named.
CURVES, NAMED = 10, 3
# Seconds for which drawn charts are cached.
KEPT_SECONDS = 3600


@require_safe
@conditional_page
def charts(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Charts of the results: value by trial, parallel coordinates, importance."""
    found = sweep_for(person(request), appcode, name)
    spec = SweepSpec.stored(found.spec)
    # Values never change, so their number identifies the set.
    key = f"sweep.charts.{found.pk}.{valued(found, spec).count() if spec.goal else 0}"
    return HttpResponse(cache.get_or_set(key, partial(_drawn, found, spec), KEPT_SECONDS))


def _drawn(found: Sweep, spec: SweepSpec) -> str:
    """The charts as HTML, the same for every user who may see them."""
    context: dict[str, Any] = {"spec": spec}
    points = outcomes(found, spec) if spec.goal else []
    if points:
        shares = importances(spec, points)
        course, beyond = _course(spec, points)
        context |= {
            "points": len(points),
            "total": valued(found, spec).count(),
            "course": course,
            "beyond": beyond,
            "strands": _strands(found, spec, points) if len(points) > 1 else None,
            "importance": [(name, f"{100 * share:.0f}") for name, share in shares.items()],
            "sometimes": [name for name, each in spec.parameters.items() if each.when],
            "least": LEAST,
            "drawn_best": BEST,
            "drawn_newest": NEWEST,
        }
    return render_to_string("clusters/sweeps/_charts.html", context)


@require_safe
@conditional_page
def curves(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The goal's metric of the best trials. As slow as reading their event files or logs."""
    user = person(request)
    found = sweep_for(user, appcode, name)
    spec = SweepSpec.stored(found.spec)
    context: dict[str, Any] = {"spec": spec, "chart": None, "notes": []}
    if spec.goal is not None:
        points = sorted(outcomes(found, spec), key=lambda each: (_sign(spec) * each.value, each.number))[:CURVES]
        read_ = _told_by_copies if spec.one_run else _told_by_runs
        try:
            with LOOKS.enter(user.pk), within(READ_SECONDS):
                told, context["notes"] = read_(found, [point.number for point in points])
        except Unavailable as error:
            context["notes"] = [str(error)]
        else:
            # By its number, so that a trial keeps its colour when a better one comes.
            style = styles({which: which - 1 for which in told})
            lines = [
                (style[which], [line_of(f"trial {which}{', fold 1' if spec.folds else ''}", curve, scalars.began)])
                for which, scalars in told.items()
                for curve in lines_of(scalars, spec.goal.metric)[:1]
            ]
            context["chart"] = draw(spec.goal.metric, styled(lines), x_label="step") if lines else None
    return render(request, "clusters/sweeps/_curves.html", context)


def _told_by_runs(found: Sweep, numbers: Sequence[int]) -> tuple[dict[int, Scalars], list[str]]:
    """The scalars by point, in the order of `numbers`, and a sentence for each run that cannot be read now."""
    runs = _runs_of(found, numbers)
    told, notes = numbers_of(list(runs.values()), READ_SECONDS)
    return dict(zip(runs, told, strict=True)), notes


def _told_by_copies(found: Sweep, numbers: Sequence[int]) -> tuple[dict[int, Scalars], list[str]]:
    """The same for points that share runs."""
    trials = found.trials.filter(number__in=numbers, cluster__isnull=False)
    told, notes = dict[int, Scalars](), []
    trials = trials.select_related("cluster__appcode", "cluster__current_run")
    for run, those in by_run(trials.defer("cluster__spec", "cluster__current_run__spec")):
        try:
            told |= {those[index].number: each for index, each in printed_by(run, ROLE, those).items()}
        except CloudError as error:
            notes.append(f"The numbers of {name_of(run)} cannot be read now: {error}")
    return {which: told[which] for which in numbers if which in told}, notes


def _runs_of(found: Sweep, numbers: Sequence[int]) -> dict[int, Run]:
    """The newest run of each point's first training, in the order of `numbers`."""
    trials = found.trials.filter(number__in=numbers, fold__lte=1, cluster__current_run__isnull=False)
    runs = {}
    for trial in trials.select_related("cluster__current_run"):
        assert trial.cluster is not None
        assert trial.cluster.current_run is not None
        trial.cluster.appcode = found.appcode
        runs[trial.number] = trial.cluster.current_run
        runs[trial.number].cluster = trial.cluster
    return {which: runs[which] for which in numbers if which in runs}


def _sign(spec: SweepSpec) -> int:
    return -1 if is_maximized(spec) else 1


def _course(spec: SweepSpec, points: Sequence[Outcome]) -> tuple[Chart, str]:
    """The value of each point, and the best so far; and a sentence about values beyond the axis, which are drawn at its ends."""
    assert spec.goal is not None
    low, high = without_outliers([point.value for point in points])
    best = points[0].value
    leading: list[tuple[float, float]] = []
    each: list[tuple[float, float]] = []
    for point in points:
        best = max(best, point.value) if is_maximized(spec) else min(best, point.value)
        for line, value in ((leading, best), (each, point.value)):
            line.append((float(point.number), min(high, max(low, value))))
    lines = [Line("best so far", leading), Line("each trial", each, scattered=True)]
    return draw(spec.goal.metric, lines, x_label="trial"), _beyond(points, low, high)


def _beyond(points: Sequence[Outcome], low: float, high: float) -> str:
    outside = [f"trial {point.number} ({number(point.value)})" for point in points if not low <= point.value <= high]
    if not outside:
        return ""
    named = "; ".join(outside[:NAMED]) + (f"; and {len(outside) - NAMED} more" if len(outside) > NAMED else "")
    return f"Beyond the axis, drawn at its edge: {named}."


def _strands(found: Sweep, spec: SweepSpec, points: Sequence[Outcome]) -> Strands:
    assert spec.goal is not None
    ranked = sorted(points, key=lambda point: (_sign(spec) * point.value, point.number))
    low, high = without_outliers([point.value for point in ranked])
    dimensions = [_dimension(name, each, ranked) for name, each in in_order(spec.parameters)]
    dimensions.append(Dimension(spec.goal.metric, [point.value for point in ranked], low, high))
    things = [
        (
            f"trial {point.number}: {spec.goal.metric} = {number(point.value)}; {in_words(point.parameters)}",
            reverse("sweep", args=[found.appcode.code, found.name]) + f"?trial={point.number}#trials",
        )
        for point in ranked
    ]
    return draw_strands(dimensions, things)


def _dimension(name: str, parameter: Parameter, points: Sequence[Outcome]) -> Dimension:
    said = [point.parameters.get(name) for point in points]
    if parameter.type == "choice":
        texts = [None if value is None else written(value) for value in said]
        return Dimension(name, texts, choices=[written(value) for value in parameter.values])
    assert parameter.low is not None
    assert parameter.high is not None
    numbers = [None if value is None else float(value) for value in said]
    return Dimension(name, numbers, float(parameter.low), float(parameter.high), parameter.log)
