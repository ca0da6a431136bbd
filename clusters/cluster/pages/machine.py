"""What the machine did: the strip on Overview, and charts on Metrics. Both load after the page, and read a bounded number of
rows for any number of tasks (clusters/machine/reading.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import conditional_page, require_safe

from clusters.cluster.pages.cluster import page_of
from clusters.cluster.pages.metrics import has_words, others_of
from clusters.machine.reading import GpuState, MachineUse, Usage, curves, use_of
from clusters.runs.models import Run
from portal.pages.charts import COLOURS, Chart, Line, draw, number, series
from portal.pages.layout import words

# Points of a line beside a number, and of one in a chart.
FEW, MANY = 60, 400
# Points of all lines of a chart together, if there are many lines.
TOGETHER = 2000
# More tasks are shown as their mean and extremes.
EACH_TASK = 10
# GPUs that the notice names.
NAMED = 5
# Less than that of any unit is nothing that anybody looks for.
LEAST = 0.0005
GIB, MB = float(1 << 30), 1e6
MODES = (("together", "Mean and range"), ("busiest", "The ten busiest"))


@dataclass(frozen=True)
class Kind:
    """How one of QUANTITIES is shown: its values are divided by `scale`."""

    quantity: str
    title: str
    unit: str
    scale: float = 1.0

    @property
    def is_traffic(self) -> bool:
        return self.unit == "MB/s"

    def text(self, value: float | None) -> str:
        if value is None:
            return "–"
        shown = value / self.scale
        if shown < LEAST:
            return "0"
        return number(round(shown)) if self.quantity == "gpu" or shown >= 100 else number(float(f"{shown:.2g}"))


KINDS = (
    Kind("gpu", "GPU", "%"),
    Kind("gpu_memory", "GPU memory", "GiB", GIB),
    Kind("cpu", "CPU", "cores"),
    Kind("memory", "Memory", "GiB", GIB),
    Kind("received", "Received", "MB/s", MB),
    Kind("sent", "Sent", "MB/s", MB),
    Kind("read", "Read from disk", "MB/s", MB),
    Kind("written", "Written to disk", "MB/s", MB),
)


@dataclass(frozen=True)
class Figure:
    """One number of the strip, with its line over the run. `limit`: what a task may have, "" if there is no such thing."""

    kind: Kind
    value: str
    note: str
    limit: str
    path: str


@dataclass(frozen=True)
class IdleGpu:
    gpu: GpuState
    task: Usage


@require_safe
@conditional_page
def strip(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The live part of the Overview. Three queries beside those of the page."""
    shown = page_of(request, appcode, name)
    context: dict[str, object] = {"page": shown}
    if shown.run:
        use = use_of(shown.run, shown.now)
        idle = [IdleGpu(gpu, task) for task in use.tasks for gpu in task.idle_gpus(shown.now)]
        figures = _figures(shown.run, use)
        context |= {
            "use": use,
            "figures": figures,
            "has_lines": any(each.path for each in figures),
            "idle": idle[:NAMED],
            "idle_more": max(0, len(idle) - NAMED),
            "idle_all": len(idle),
        }
    return render(request, "clusters/machine/_strip.html", context)


@require_safe
@conditional_page
def charts(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The charts below those of the program's own numbers. `?show=busiest` has a line for each of ten tasks of many,
    `?show=worker-3` for one of them, and `?with=2,1` one for each of these runs, as the numbers above; `?find=gpu` draws those
    with these words in their titles."""
    shown = page_of(request, appcode, name)
    context: dict[str, object] = {"page": shown, "charts": []}
    if shown.run:
        use, wanted = use_of(shown.run, shown.now), request.GET.get("show", "")
        others = [(run, use_of(run, shown.now)) for run in others_of(request, shown)]
        made = drawn(traces_of_runs([(shown.run, use), *others]) if others else traces_of(use, wanted))
        context |= {
            "use": use,
            "charts": [chart for chart in made if has_words(chart.title, words(request, "find"))],
            "has_lines": any(line.path for chart in made for line in chart.lines),
            "show": wanted,
            "modes": MODES if len(use.tasks) > EACH_TASK and not others else (),
        }
    return render(request, "clusters/machine/_charts.html", context)


@dataclass(frozen=True)
class Trace:
    """What becomes a line in each chart: values by quantity at `times`, of something that began at `began`; of many, their mean,
    lowest and highest values."""

    label: str
    began: float
    times: Sequence[float]
    values: Mapping[str, Sequence[float | None]]
    low: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    high: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


def traces_of(use: MachineUse, wanted: str = "") -> list[Trace]:
    """A trace of each task; of many their mean, the lowest and the highest."""
    names = [each.name for each in use.tasks]
    chosen = names if len(names) <= EACH_TASK else [""]
    if wanted in names:
        chosen = [wanted]
    elif wanted == "busiest" and chosen == [""]:
        chosen = [each.name for each in use.busiest]
    began = use.since.timestamp()
    _, found = curves(use, chosen, use.since, use.until, min(MANY, TOGETHER // max(len(chosen), 1)))
    if chosen == [""]:
        label = f"mean and range of {len(names):,} tasks"
        return [Trace(label, began, each.times, each.mean, each.low, each.high) for each in found]
    return [Trace(each.name if len(names) > 1 else "", began, each.times, each.mean) for each in found]


def traces_of_runs(runs: Sequence[tuple[Run, MachineUse]]) -> list[Trace]:
    """A trace of each run: the mean of its tasks."""
    traces = []
    for run, use in runs:
        name = use.together.name if use.together else ""
        _, found = curves(use, [name], use.since, use.until, MANY)
        traces += [Trace(f"run {run.number}", use.since.timestamp(), each.times, each.mean) for each in found]
    return traces


def drawn(traces: Sequence[Trace]) -> list[Chart]:
    """A chart for each quantity that was measured. Traffic that never was has none."""
    made = []
    for kind in KINDS:
        # By its place among all, so that a task has one colour in all charts.
        known = [
            (n, each) for n, each in enumerate(traces) if any(value is not None for value in each.values[kind.quantity])
        ]
        if not known or (kind.is_traffic and not any(any(each.values[kind.quantity]) for _, each in known)):
            continue
        lines = [_line(each, kind, series(n, n // COLOURS)) for n, each in known]
        title = f"{kind.title}, {kind.unit}"
        made.append(draw(title, lines, x_label="minutes", from_zero=True, axes=["relative", "time"]))
    return made


def _line(trace: Trace, kind: Kind, style: int) -> Line:
    def scaled(values: Sequence[float | None]) -> list[float]:
        return [math.nan if value is None else value / kind.scale for value in values]

    values, name = scaled(trace.values[kind.quantity]), kind.quantity
    spread = list(zip(scaled(trace.low[name]), scaled(trace.high[name]), strict=True)) if trace.low else ()
    points = [((at - trace.began) / 60, value) for at, value in zip(trace.times, values, strict=True)]
    return Line(trace.label, points, times=trace.times, began=trace.began, has_gaps=True, series=style, spread=spread)


def _figures(run: Run, use: MachineUse) -> list[Figure]:
    """What all tasks do now on average, or did over the run once it is over; only what is measured."""
    together = use.together
    if together is None:
        return []
    _, found = curves(use, [together.name], use.since, use.until, FEW)
    over_run = run.is_terminal or not together.is_now
    values = together.mean if over_run else together.now
    made = []
    for kind in KINDS:
        # Traffic that never was is no figure.
        if together.mean[kind.quantity] is None or (kind.is_traffic and not together.peak[kind.quantity]):
            continue
        path = ""
        for curve in found:
            line = _line(Trace("", use.since.timestamp(), curve.times, curve.mean), kind, 1)
            path = draw(kind.title, [line], x_label="minutes", from_zero=True).lines[0].path
        made.append(
            Figure(
                kind,
                kind.text(values[kind.quantity]),
                _note(kind, use, over_run=over_run),
                _limit(kind, run, use),
                path,
            )
        )
    return made


def _note(kind: Kind, use: MachineUse, *, over_run: bool) -> str:
    """Which tasks are furthest from the mean, or the largest value of the only task."""
    if use.whole is None:
        peak = kind.text(use.tasks[0].peak[kind.quantity])
        return f"at most {peak}" if kind.quantity in ("gpu_memory", "memory", "cpu") and peak not in ("–", "0") else ""
    part: Callable[[Usage], float | None] = lambda each: (each.mean if over_run else each.now)[kind.quantity]  # noqa: E731
    known = [value for value in map(part, use.tasks) if value is not None]
    return f"{kind.text(min(known))} to {kind.text(max(known))} in {len(known)} tasks" if len(known) > 1 else ""


def _limit(kind: Kind, run: Run, use: MachineUse) -> str:
    """What the flavor gives to a task, if all tasks have the same."""
    name, scale = {"cpu": ("cpu_milli", 1000.0), "memory": ("memory_mb", 1024.0)}.get(kind.quantity, ("", 1.0))
    roles = {each.role for each in use.tasks}
    given = {run.resources.get(role, {}).get(name) for role in roles} if name else {None}
    (one,) = given if len(given) == 1 else (None,)
    return number(float(f"{one / scale:.3g}")) if one else ""
