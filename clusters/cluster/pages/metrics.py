"""The Metrics tab: charts of the run's scalars (clusters/scalars)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import conditional_page, require_safe

from clusters.clouds.drivers.base import CloudError
from clusters.cluster.pages.cluster import Page, page_of
from clusters.cluster.pages.panels import COLUMNS, panels_of
from clusters.results.values import styles
from clusters.runs.models import Run
from clusters.scalars.events import Curve, Point, Scalars
from clusters.scalars.reading import scalars_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from portal.api.problems import Unavailable
from portal.pages.appcodes import person
from portal.pages.charts import COLOURS, Chart, Line, draw, number, styled
from portal.pages.layout import words
from portal.web.limits import LOOKS

# Seconds that one page may wait for the datastore. What was read is cached, and the next page continues there.
READ_SECONDS = 20
# Charts at first, and if somebody asks for all.
MAX_CHARTS, ALL_CHARTS = 40, 400
TABLE_ROWS = 100
# Earlier runs that the page offers, and how many of them it draws over the selected one.
OFFERED, MOST_OTHERS = 20, COLOURS - 1


@dataclass(frozen=True)
class Metric:
    """A chart, and its numbers as a table: one row per step, one column per line."""

    chart: Chart
    columns: list[str]
    rows: list[tuple[str, list[str]]]
    thinned: bool
    is_pinned: bool = False


@require_safe
def metrics(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The page. Its charts load afterwards, because reading a datastore may take seconds. `?with=2,1` lays other runs of the
    cluster over the selected one, and `?find=val loss` shows the charts that have these words in their names."""
    return render(request, "clusters/cluster/metrics.html", context_of(request, appcode, name))


def context_of(request: HttpRequest, appcode: str, name: str) -> dict[str, object]:
    shown = page_of(request, appcode, name)
    others = others_of(request, shown)
    said = {"run": request.GET.get("run", ""), "with": ",".join(str(each.number) for each in others)}
    said["all"] = request.GET.get("all", "")
    return {
        "page": shown,
        "others": others,
        "offered": _offered(shown),
        "query": urlencode({key: value for key, value in said.items() if value}, safe=","),
        "with": said["with"],
        "find": words(request, "find"),
        "plain_query": _kept(request, "run", "with", "find", "all", "show", "image"),
        "machine_query": _kept(request, "run", "show", "with"),
        "media_query": _kept(request, "run", "image", "all"),
    }


def _kept(request: HttpRequest, *keys: str) -> str:
    return "?" + urlencode({key: request.GET[key] for key in keys if request.GET.get(key)})


@require_safe
@conditional_page
def charts(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    context: dict[str, object] = {"page": shown, "metrics": [], "error": ""}
    if shown.run:
        notes, told = list[str](), list[tuple[Run, Scalars]]()
        try:
            with LOOKS.enter(person(request).pk), within(READ_SECONDS):
                found = scalars_of(shown.run)
                for other in others_of(request, shown):
                    try:
                        told.append((other, scalars_of(other)))
                    except (DriverError, CloudError) as error:
                        notes.append(f"The numbers of run {other.number} cannot be read now: {error}")
        except (DriverError, CloudError, Unavailable) as error:
            context["error"] = str(error)
        else:
            panels = panels_of(person(request), shown.cluster.appcode)
            tags = list(dict.fromkeys([*found.tags, *(tag for _, each in told for tag in each.tags)]))
            wanted = panels.ordered(tag for tag in tags if has_words(tag, words(request, "find")))
            most = ALL_CHARTS if "all" in request.GET else MAX_CHARTS
            drawn = [
                replace(_metric(found, tag, shown.run, told), is_pinned=tag in panels.pins) for tag in wanted[:most]
            ]
            context |= {
                "metrics": drawn, "found": found, "notes": [*found.notes, *notes], "panels": panels, "columns": COLUMNS,
                "total": len(tags), "matching": len(wanted), "left_out": max(0, len(wanted) - most),
                "all_query": _kept(request, "run", "with", "find"),
            }  # fmt: skip
    return render(request, "clusters/cluster/_charts.html", context)


def has_words(name: str, typed: str) -> bool:
    """Whether all typed words occur in a name, in any case. A | divides alternatives."""
    parts = [words_ for part in typed.casefold().split("|") if (words_ := part.split())]
    return not parts or any(all(word in name.casefold() for word in part) for part in parts)


def _offered(shown: Page) -> list[Run]:
    if shown.run is None:
        return []
    return list(shown.cluster.runs.exclude(pk=shown.run.pk).defer("spec").order_by("-number")[:OFFERED])


def others_of(request: HttpRequest, shown: Page) -> list[Run]:
    """The runs of `?with=`, newest first; names of none are ignored."""
    said = [word for text in request.GET.getlist("with") for word in text[:200].split(",")]
    numbers = {int(word) for word in said if word.isascii() and word.isdecimal() and len(word) < 10}
    if not numbers or shown.run is None:
        return []
    found = list(shown.cluster.runs.filter(number__in=numbers - {shown.run.number}).order_by("-number")[:MOST_OTHERS])
    for run in found:
        run.cluster = shown.cluster
    return found


def _metric(found: Scalars, tag: str, run: Run, others: Sequence[tuple[Run, Scalars]]) -> Metric:
    """The lines of the run, whose values are the table, and then those of `others`."""
    curves = [curve for curve in found.curves if curve.tag == tag]
    names = labels([curve.folder for curve in curves])
    lines = lines_of(found, tag)
    if others:
        told = [(run, found), *others]
        style = styles({each.pk: each.hue for each, _ in told})
        lines = styled([(style[each.pk], lines_of(scalars, tag, f"run {each.number}")) for each, scalars in told])
    by_step: dict[int, dict[int, Point]] = {}
    for column, curve in enumerate(curves):
        for point in curve.points:
            by_step.setdefault(point.step, {})[column] = point
    steps = sorted(by_step)
    stride = -(-len(steps) // TABLE_ROWS) or 1
    chosen = sorted({*steps[::stride], *steps[-1:]}, reverse=True)
    rows = [
        (f"{step:,}", [number(by_step[step][n].value) if n in by_step[step] else "" for n in range(len(curves))])
        for step in chosen
    ]
    return Metric(draw(tag, lines, x_label="step"), names, rows, stride > 1)


def lines_of(found: Scalars, tag: str, run: str = "") -> list[Line]:
    """A line for each folder that has the number; `run` stands before their names."""
    curves = [curve for curve in found.curves if curve.tag == tag]
    names = [f"{run} {label}".strip() for label in labels([curve.folder for curve in curves])]
    return [line_of(label, curve, found.began) for label, curve in zip(names, curves, strict=True)]


def line_of(label: str, curve: Curve, began: float) -> Line:
    """Values by step, with their times if these are known. Relative time counts from `began`."""
    times = [point.wall_time for point in curve.points] if curve.is_timed else []
    return Line(label, [(point.step, point.value) for point in curve.points], times=times, began=began)


def labels(folders: list[str]) -> list[str]:
    """Short labels of lines: their folders without the common prefix; a single line needs none."""
    if len(folders) < 2:
        return [""] * len(folders)
    parts = [PurePosixPath(folder).parts for folder in folders]
    common = 0
    while all(len(each) > common and each[common] == parts[0][common] for each in parts):
        common += 1
    return ["/".join(each[common:]) or (each[-1] if each else "output") for each in parts]
