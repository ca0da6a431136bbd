"""The list of benchmarks, and the page of one. The browser polls live parts as fragments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe

from clusters.benchmarks import actions
from clusters.benchmarks.access import BENCHMARKS, benchmark_for, benchmarks_for
from clusters.benchmarks.manifest import BenchmarkSpec
from clusters.benchmarks.models import Benchmark
from clusters.benchmarks.results import NOISY
from clusters.benchmarks.summary import Shown, Sums, measurements_of, sums_of
from clusters.frame.acts import Act, act_view
from portal.access import OPERATE, appcodes_for, may
from portal.pages.appcodes import person
from portal.pages.charts import Chart, Line, draw, draw_columns, number
from portal.pages.layout import listed, page_of, words

PARTS = ("compute", "communication", "input")
TITLES = {"all-reduce": "All-reduce", "parameter-server": "Parameter servers"}


@dataclass(frozen=True)
class Row:
    """A benchmark in the list, or the head of its page."""

    benchmark: Benchmark
    spec: BenchmarkSpec
    sums: Sums

    @property
    def url(self) -> str:
        return f"/benchmarks/{self.benchmark.appcode.code}/{self.benchmark.name}"

    @property
    def total(self) -> int:
        return len(self.spec.points)

    @property
    def percent(self) -> int:
        return 100 * self.sums.ended // self.total

    @property
    def counts(self) -> str:
        return ", ".join(map(str, self.spec.counts))

    @property
    def strategies(self) -> str:
        return ", ".join(TITLES[each] for each in self.spec.strategies)

    @property
    def is_over(self) -> bool:
        return self.benchmark.finished_at is not None


@dataclass(frozen=True)
class Measured:
    shown: Shown
    url: str
    title: str
    rate: str
    examples: str
    spread: str
    efficiency: str
    # Milliseconds of the median step by part.
    step: Sequence[tuple[str, str]]
    said: str


@require_safe
def benchmarks(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/benchmarks/benchmarks.html", _listed(request))


@require_safe
@conditional_page
def rows(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/benchmarks/_rows.html", _listed(request))


def _listed(request: HttpRequest) -> dict[str, Any]:
    user = person(request)
    page, following = page_of(request, listed(request, benchmarks_for(user), "name"), "-id")
    sums = sums_of([each.pk for each in page], timezone.now())
    return {
        "rows": [Row(each, BenchmarkSpec.stored(each.spec), sums[each.pk]) for each in page],
        "next_cursor": following,
        "searched": bool(words(request) or request.GET.get("cursor")),
        "query": request.GET.urlencode(),
        "may_create": appcodes_for(user, OPERATE).exists(),
    }


@require_safe
def benchmark(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    return render(request, "clusters/benchmarks/benchmark.html", _shown(request, appcode, name))


@require_safe
@conditional_page
def live(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    return render(request, "clusters/benchmarks/_benchmark.html", _shown(request, appcode, name))


def _shown(request: HttpRequest, appcode: str, name: str) -> dict[str, Any]:
    found = benchmark_for(person(request), appcode, name)
    spec = BenchmarkSpec.stored(found.spec)
    measured = measurements_of(found)
    good = [each for each in measured if each.result]
    last = good[-1].result if good else None
    lives = found.finished_at is None
    return {
        "row": Row(found, spec, sums_of([found.pk], timezone.now())[found.pk]),
        "benchmark": found,
        "spec": spec,
        "measured": [_line(each, found) for each in measured],
        "waiting": [(TITLES[each.strategy], each) for each in spec.points[len(measured) :]] if lives else [],
        "charts": _charts(good) if len({each.row.count for each in good}) > 1 else [],
        "times": _times(good) if good else None,
        "parts": PARTS,
        "slow": [(each, outlier) for each in good for outlier in each.outliers],
        "noisy": any(each.result and each.result.spread > NOISY for each in good),
        "last": last,
        "may_operate": may(person(request), found.appcode, OPERATE),
    }


def _line(shown: Shown, benchmark_: Benchmark) -> Measured:
    result = shown.result
    step = result.step if result else None
    return Measured(
        shown=shown,
        url=f"/clusters/{benchmark_.appcode.code}/{shown.cluster}",
        title=TITLES[shown.row.strategy],
        rate=number(result.global_step_per_second) if result else "",
        examples=number(result.examples_per_second) if result else "",
        spread=f"{100 * result.spread:.0f}" if result else "",
        efficiency="" if shown.efficiency is None else f"{100 * shown.efficiency:.0f}",
        step=[(part, f"{1000 * getattr(step, part):.2f}") for part in PARTS] if step else [],
        said=shown.before or shown.message,
    )


def _charts(good: Sequence[Shown]) -> list[Chart]:
    """For each kind of data: examples per second by count, with the ideal line through the first point, and steps per second."""
    charts = []
    for data in dict.fromkeys(each.row.data for each in good):
        lines, steps = [], []
        for strategy, title in TITLES.items():
            mine = [each for each in good if each.row.data == data and each.row.strategy == strategy]
            points = [(each.row.count, each.result) for each in mine if each.result]
            if not points:
                continue
            (least, first), most = points[0], points[-1][0]
            ideal = first.examples_per_second / least
            lines.append(Line(title, [(float(n), result.examples_per_second) for n, result in points]))
            lines.append(Line(f"{title}, linear", [(float(n), ideal * n) for n in sorted({least, most})]))
            steps.append(Line(title, [(float(n), result.global_step_per_second) for n, result in points]))
        charts.append(draw(f"examples/sec, {data}", lines, x_label="tasks that compute"))
        charts.append(draw(f"global_step/sec, {data}", steps, x_label="tasks that compute"))
    return charts


def _times(good: Sequence[Shown]) -> Any:
    """The time of a step by part: one column per measurement, in milliseconds."""
    short = {"all-reduce": "AR", "parameter-server": "PS"}
    columns = []
    for each in good:
        assert each.result is not None
        step = each.result.step
        values = {part: Decimal(f"{1000 * max(getattr(step, part), 0.0):.3f}") for part in PARTS}
        columns.append((f"{short[each.row.strategy]} {each.row.data} {each.row.count}", values))
    return draw_columns("Milliseconds of a step", columns, unit="ms", order=PARTS)


ACTS = {
    "pause": Act(
        actions.pause_benchmark, "Pause", "{name} starts no more measurements; the one that is being made goes on."
    ),
    "resume": Act(actions.resume_benchmark, "Resume", "{name} goes on, in your name."),
    "cancel": Act(
        actions.cancel_benchmark, "Stop", "{name} is stopped.",
        "The measurement that is being made is ended; those before stay.",
    ),
    "delete": Act(
        actions.delete_benchmark, "Delete", "{name} is deleted.",
        "Its results go with the logs of its clusters, and later ones are not compared with it any more.",
    ),
}  # fmt: skip


act = act_view(BENCHMARKS, ACTS)
