"""Runs side by side: their settings, metrics and cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_http_methods, require_POST, require_safe

from clusters.access import clusters_in
from clusters.catalog.folders import output_folder
from clusters.cluster.pages.metrics import MAX_CHARTS, READ_SECONDS, has_words, labels, line_of
from clusters.comparison.media import media
from clusters.comparison.runs import name_of, numbers_of, runs_to_compare, styles_of, view_of, what_differs
from clusters.comparison.values import MOST, Summary, alike, placed, summaries
from clusters.comparison.view import AXES, SMOOTH, View
from clusters.frame.changed_lines import changed_files
from clusters.manifest.code import code_of
from clusters.results import view as results_view
from clusters.results.columns import value_of
from clusters.results.models import RunMetric
from clusters.results.query import numbers_of as stored_numbers
from clusters.results.values import Summary as KeptSummary
from clusters.results.values import is_judged, is_less_better
from clusters.runs.models import Run
from clusters.scalars.events import Scalars, tag_order
from datastores.drivers.patience import within
from portal.access import appcode_for
from portal.api.problems import Unavailable
from portal.errors import Invalid
from portal.models import Appcode
from portal.pages.appcodes import person, safe_next
from portal.pages.charts import Chart, Line, draw, number, styled
from portal.pages.layout import of_one_appcode
from portal.pages.plain import rendered
from portal.web.limits import LOOKS

# How many latest runs are offered for the comparison.
LATEST = 50
# Charts above the table of results: one row of them on a wide window.
BRIEF = 3
# Between the names of one metric.
BETWEEN = " · "


@dataclass(frozen=True)
class Column:
    """A run, and where its output is."""

    run: Run
    name: str
    # Of its curves.
    series: int
    cost: object
    gpu_seconds: float
    output: str
    without: str


@dataclass(frozen=True)
class Kept:
    """A row of the table of metrics, by all names that runs have for it: for each run (value, step, whether it is the best), of
    its last and of its best value."""

    names: tuple[str, ...]
    last: list[tuple[str, str, bool]]
    best: list[tuple[str, str, bool]]

    @property
    def name(self) -> str:
        return BETWEEN.join(self.names)

    @property
    def pairs(self) -> list[tuple[tuple[str, str, bool], tuple[str, str, bool]]]:
        return list(zip(self.last, self.best, strict=True))


@dataclass(frozen=True)
class Metric:
    """A chart, and for each line: the run, and the last, smallest and largest value."""

    chart: Chart
    rows: list[tuple[str, str, str, str, str]]


@require_http_methods(["GET", "HEAD", "POST"])
def compare(request: HttpRequest, code: str) -> HttpResponse:
    """`?runs=train/3,train/4&x=time&smooth=0.6`. POST redirects there from ticked runs (`runs`), or from clusters whose
    latest run is meant (`cluster=APPCODE/NAME`)."""
    appcode = appcode_for(person(request), code)
    if request.method == "POST":
        return _to_comparison(_ticked(request, appcode), code)
    view = view_of(request)
    try:
        runs = runs_to_compare(view.runs, appcode)
    except Invalid as invalid:
        runs = []
        messages.error(request, invalid.errors[0].message)
    now = timezone.now()
    names, style = tuple(name_of(run) for run in runs), styles_of(runs)
    view = view.but(runs=names)
    columns = [
        Column(
            run, name, style[run.pk], run.cost_at(now), run.gpu_seconds_at(now), _output(run),
            view.but(runs=tuple(each for each in names if each != name)).query,
        )
        for run, name in zip(runs, names, strict=True)
    ]  # fmt: skip
    latest = Run.objects.filter(cluster__appcode=appcode, cluster__deleted_at=None).select_related("cluster")
    latest = latest.annotate(has_numbers=Exists(RunMetric.objects.filter(run=OuterRef("pk"))))
    newest = latest.only("number", "cluster__name").order_by("-id")[: LATEST + MOST]
    # Those with something to compare first, each kind from the newest on.
    offered = [name_of(run) for run in sorted(newest, key=lambda run: not run.has_numbers)]
    files = [(run_code.files if (run_code := code_of(run.spec)) else None) or {} for run in runs]
    numbers = stored_numbers([run.pk for run in runs])
    failed = [run.phase == Run.Phase.FAILED for run in runs]
    kept, same = _kept([numbers.get(run.pk, {}) for run in runs], failed, equal=view.equal, apart=view.apart)
    definitions = what_differs(runs, equal=True) if len(runs) > 1 else []
    same += sum(not each.differs for each in definitions)
    context = {
        **of_one_appcode(appcode.code, "results"),
        "appcode": appcode, "view": view, "columns": columns, "kept": kept, "same": same,
        "differences": [each for each in definitions if view.equal or each.differs],
        "files": list(changed_files(*files)) if len(runs) == 2 else [],
        "has_code": any(each.path == "code.digest" and each.differs for each in definitions),
        "others": [name for name in offered if name not in names][:LATEST],
        "is_full": len(runs) >= MOST, "is_live": any(not run.is_terminal for run in runs), "axes": AXES, "smooth": SMOOTH,
        "metrics": sorted({name for each in numbers.values() for name in each}, key=tag_order),
        "has_alike": any(len(row.names) > 1 for row in kept),
        "switch": view.but(equal=not view.equal).query, "alike": view.but(apart=not view.apart).query,
        "plain": view.but(plain=True).query,
        "parts": rendered(request, code, charts=charts, media=media) if view.plain else {},
    }  # fmt: skip
    return render(request, "clusters/comparison/compare.html", context)


@require_safe
@conditional_page
def charts(request: HttpRequest, code: str) -> HttpResponse:
    """The metric charts, loaded separately because reading them may take seconds. With `brief`, as they stand above the
    table of results: few, without tables, of the metrics that it shows (`metric`, several times) if it shows any."""
    appcode = appcode_for(person(request), code)
    view = view_of(request)
    context: dict[str, object] = {"metrics": [], "appcode": appcode, "view": view}
    try:
        runs = runs_to_compare(view.runs, appcode)
        with LOOKS.enter(person(request).pk), within(READ_SECONDS):
            found, refused = numbers_of(runs, READ_SECONDS)
    except Invalid as invalid:
        context["notes"] = [invalid.errors[0].message]
    except Unavailable as error:
        context["notes"] = [str(error)]
    else:
        told = list(zip(runs, found, strict=True))
        drawn = _drawn_together(found, view.joined, apart=view.apart)
        if view.metrics:
            # A tag of several folders has a name for each: FOLDER/TAG.
            drawn = [
                tags
                for tags in drawn
                if any(name == tag or name.endswith(f"/{tag}") for name in view.metrics for tag in tags)
            ]
        drawn = [tags for tags in drawn if has_words(BETWEEN.join(tags), view.find)]
        if view.brief:
            drawn = drawn[:BRIEF]
        undated = [name_of(run) for run, each in told if not all(curve.is_timed for curve in each.curves)]
        if view.axis == "time" and undated:
            refused.append(f"Numbers of {', '.join(undated)} without times are drawn over steps only.")
        context |= {
            "metrics": [_metric(tags, told, view.axis, float(view.smooth)) for tags in drawn[:MAX_CHARTS]],
            "left_out": max(0, len(drawn) - MAX_CHARTS),
            "notes": [*refused, *(note for each in found for note in each.notes)],
        }  # fmt: skip
    return render(request, "clusters/comparison/_charts.html", context)


def _grouped(runs: Sequence[Collection[str]], *, apart: bool) -> list[tuple[str, ...]]:
    """The names of metrics that are one row or chart each: first those that several runs have, then losses and accuracies."""
    names = dict.fromkeys(name for each in runs for name in each)
    found = [(name,) for name in names] if apart else alike(runs)

    def order(group: tuple[str, ...]) -> tuple[bool, tuple[int, str, str]]:
        return sum(any(name in run for name in group) for run in runs) < 2, tag_order(group[0])

    return sorted(found, key=order)


def _drawn_together(found: Sequence[Scalars], joined: Sequence[str], *, apart: bool) -> list[tuple[str, ...]]:
    """The tags of each chart: first those of the person's choice."""
    chosen = tuple(tag for tag in joined if any(tag in each.tags for each in found))
    rest = _grouped([[tag for tag in each.tags if tag not in chosen] for each in found], apart=apart)
    return [chosen, *rest] if chosen else rest


def _kept(
    runs: Sequence[dict[str, KeptSummary]], failed: Sequence[bool], *, equal: bool, apart: bool
) -> tuple[list[Kept], int]:
    """The metrics of the runs as they are kept, and how many are the same in all. These are left out unless `equal`. No value
    of a failed run is the best."""
    rows, same = list[Kept](), 0
    for group in _grouped(runs, apart=apart):
        summaries_ = [next((each[name] for name in group if name in each), None) for each in runs]
        marked = (_marked(results_view.Column(kind, group[0]), summaries_, failed) for kind in ("last", "best"))
        row = Kept(group, *marked)
        is_same = len(runs) > 1 and all(len({value for value, _, _ in cells}) == 1 for cells in (row.last, row.best))
        same += is_same
        if equal or not is_same:
            rows.append(row)
    return rows, same


def _marked(
    column: results_view.Column, found: Sequence[KeptSummary | None], failed: Sequence[bool]
) -> list[tuple[str, str, bool]]:
    pairs = [value_of(column, each) if each else (None, None) for each in found]
    values = [
        value
        for (value, _), has_failed in zip(pairs, failed, strict=True)
        if value is not None and math.isfinite(value) and not has_failed
    ]
    is_clear = len(set(values)) > 1 and is_judged(column.name)
    best = (min if is_less_better(column.name) else max)(values) if is_clear else None
    return [
        (
            "" if value is None else number(value),
            "" if step is None else f"{step:,}",
            value is not None and value == best and not has_failed,
        )
        for (value, step), has_failed in zip(pairs, failed, strict=True)
    ]


def _metric(tags: Sequence[str], told: Sequence[tuple[Run, Scalars]], axis: str, weight: float) -> Metric:
    """One chart, in which each run has its colour."""
    # Each line twice: as drawn, smoothed and over the chosen axis, and as it is for the script.
    drawn, numbers, rows = list[tuple[int, list[Line]]](), list[tuple[int, list[Line]]](), []
    style = styles_of([run for run, _ in told])
    for run, scalars in told:
        since = scalars.began
        drawn.append((style[run.pk], []))
        numbers.append((style[run.pk], []))
        for tag in tags:
            curves = [curve for curve in scalars.curves if curve.tag == tag and curve.points]
            folders = labels([curve.folder for curve in curves])
            for curve, folder, summary in zip(curves, folders, summaries(scalars, tag), strict=True):
                label = " ".join(filter(None, (name_of(run), tag if len(tags) > 1 else "", folder)))
                is_drawn = axis == "step" or curve.is_timed
                points = placed(curve.points, weight, since if axis == "time" else None) if is_drawn else ()
                drawn[-1][1].append(Line(label, points))
                numbers[-1][1].append(line_of(label, curve, since))
                rows.append(_row(label, summary))
    x_label = "step" if axis == "step" else "seconds"
    return Metric(draw(BETWEEN.join(tags), styled(drawn), x_label=x_label, numbers=("step", styled(numbers))), rows)


def _row(label: str, summary: Summary) -> tuple[str, str, str, str, str]:
    low, high = ("" if value is None else number(value) for value in (summary.smallest, summary.largest))
    return label, f"{summary.step:,}", number(summary.last), low, high


@require_POST
def compare_ticked(request: HttpRequest) -> HttpResponse:
    """Compares the latest runs of ticked clusters (`cluster=APPCODE/NAME`) of one appcode, which the ticks name."""
    codes = list(dict.fromkeys(text.partition("/")[0] for text in request.POST.getlist("cluster")))
    if len(codes) != 1:
        said = "Only runs of one appcode are compared: choose clusters of one." if codes else "Choose clusters first."
        messages.error(request, said)
        return redirect(safe_next(request))
    return _to_comparison(_ticked(request, appcode_for(person(request), codes[0])), codes[0])


def _ticked(request: HttpRequest, appcode: Appcode) -> list[str]:
    wanted = request.POST.getlist("runs")
    names = [text.replace("\0", "").partition("/")[::2] for text in request.POST.getlist("cluster")[: MOST + 1]]
    if strange := next((code for code, _ in names if code != appcode.code), None):
        messages.warning(request, f"Only runs of one appcode are compared: those of {strange[:63]} are left out.")
    clusters = clusters_in([appcode.pk]).filter(name__in=[name for code, name in names if code == appcode.code])
    return wanted + [f"{each.name}/{each.run_count}" for each in clusters if each.run_count]


def _to_comparison(names: Sequence[str], code: str) -> HttpResponse:
    return redirect(f"{reverse('compare', args=[code])}?{View(tuple(names)).query}")


def _output(run: Run) -> str:
    if not run.spec["output"]:
        return ""
    folder = output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)
    address = reverse("datastore", args=[run.cluster.appcode.code, run.spec["output"]])
    return f"{address}?{urlencode({'folder': folder}, safe='/')}"
