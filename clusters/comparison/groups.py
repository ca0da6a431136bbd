"""The curves of a grouped table of results: the mean of each group's newest runs, and their range as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe

from clusters.cluster.pages.metrics import READ_SECONDS
from clusters.comparison.pages import BRIEF, Metric
from clusters.comparison.runs import numbers_of
from clusters.comparison.values import mean_of
from clusters.comparison.view import View as Comparison
from clusters.results.groups import label_of, styles_of_groups
from clusters.results.query import Group, groups, members
from clusters.results.values import by_name
from clusters.results.view import Column, View
from clusters.scalars.events import Curve
from datastores.drivers.patience import within
from portal.access import appcode_for
from portal.api.problems import Unavailable
from portal.pages.appcodes import person
from portal.pages.charts import Chart, Line, draw
from portal.web.limits import LOOKS

# Runs whose numbers are read for one page, in all groups together.
MOST_READ = 40


@require_safe
@conditional_page
def charts(request: HttpRequest, code: str) -> HttpResponse:
    """The query is that of a grouped view whose columns are metrics (clusters/results/view.py). Reading may take seconds."""
    appcode = appcode_for(person(request), code)
    view, now = View.read(dict(request.GET.lists())), timezone.now()
    context: dict[str, object] = {"metrics": [], "appcode": appcode, "view": Comparison(brief=True)}
    if column := Column.of(view.group):
        found, _, names, _ = groups(appcode, view, now)
        style = styles_of_groups(found)
        drawn = [group for group in found if group.value in style]
        runs = members(appcode, view, now, list(style), MOST_READ // max(1, len(style)))
        everything = [run for several in runs.values() for run in several]
        try:
            with LOOKS.enter(person(request).pk), within(READ_SECONDS):
                read, refused = numbers_of(everything, READ_SECONDS)
        except Unavailable as error:
            context["notes"] = [str(error)]
        else:
            curves = {run.pk: by_name(scalars) for run, scalars in zip(everything, read, strict=True)}
            told = [
                (group, style[group.value], [curves[run.pk] for run in runs.get(group.value, ())]) for group in drawn
            ]
            reported = [name for name in names if any(name in run for run in curves.values())][:BRIEF]
            made = [_chart(name, column, told) for name in reported]
            context |= {"metrics": [Metric(chart, []) for chart in made], "notes": refused}
    return render(request, "clusters/comparison/_charts.html", context)


def _chart(name: str, column: Column, told: Sequence[tuple[Group, int, Sequence[Mapping[str, Curve]]]]) -> Chart:
    lines = []
    for group, style, several in told:
        curves = [run[name].points for run in several if name in run]
        points = mean_of(curves)
        if not points:
            continue
        read = f" ({len(curves)} of {group.runs:,} runs)" if len(curves) < group.runs else ""
        label = f"{label_of(column, group.value)}{read}"
        spread = [(low, high) for _, _, low, high in points]
        lines.append(Line(label, [(step, mean) for step, mean, _, _ in points], series=style, spread=spread))
    return draw(name, lines, x_label="step")
