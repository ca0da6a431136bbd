"""Sweeps: the list, one of them with its charts and trials, and what is done with it. What changes by itself is asked for again
as fragments; charts are drawn of a bounded number of points, and the curves of the best are read after the page."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db.models import (
    Avg,
    BooleanField,
    Case,
    Count,
    Exists,
    F,
    FloatField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_http_methods, require_POST, require_safe

from clusters import actions as clusters
from clusters.comparison.runs import numbers_of
from clusters.models import Run, Sweep, Trial
from clusters.pages.create import free_name
from clusters.pages.metrics import READ_SECONDS
from clusters.sweeps import actions
from clusters.sweeps.access import sweep_for, sweeps_for, trial_for
from clusters.sweeps.importance import LEAST, importances
from clusters.sweeps.manifest import Parameter, SweepManifest, SweepSpec, in_order, name_again, trial_name, written
from clusters.sweeps.measured import lines_of
from clusters.sweeps.points import BEST, NEWEST, Outcome, is_maximized, outcomes
from clusters.sweeps.sums import Sums, sums_of
from datastores.drivers.patience import within
from portal.access import OPERATE, appcodes_for, may
from portal.api.problems import Unavailable
from portal.charts import Chart, Dimension, Line, Strands, draw, draw_strands, number, without_outliers
from portal.errors import Conflict, Invalid
from portal.limits import LOOKS
from portal.manifests import parse
from portal.pages.appcodes import person
from portal.pages.layout import matching, page_of, selected_appcode, sorted_page_of, words

ROWS = 50
# Trials whose curves are drawn together.
CURVES = 10
# For how long it is remembered what parameters matter.
KEPT_SECONDS = 3600
# With more parameters than this they share a column.
COLUMNS = 6
PHASES = ("Running", "Paused", "Succeeded", "Failed", "Stopped")
# What a trial's phase is filtered by; "" is that of one that lives.
TRIAL_PHASES = {"Living": "", "Succeeded": "Succeeded", "Failed": "Failed", "Pruned": "Pruned", "Stopped": "Stopped"}


@dataclass(frozen=True)
class Row:
    """A sweep in the list, or the head of its page."""

    sweep: Sweep
    spec: SweepSpec
    sums: Sums

    @property
    def url(self) -> str:
        return f"/sweeps/{self.sweep.appcode.code}/{self.sweep.name}"

    @property
    def total(self) -> int:
        """Trainings in all, folds counted."""
        return self.spec.points * (self.spec.folds or 1)

    @property
    def ended(self) -> int:
        return sum(count for phase, count in self.sums.trials.items() if phase in TRIAL_PHASES.values())

    @property
    def living(self) -> int:
        return sum(self.sums.trials.values()) - self.ended

    @property
    def percent(self) -> int:
        return 100 * self.ended // self.total

    @property
    def failed(self) -> int:
        return self.sums.trials.get("Failed", 0)

    @property
    def best(self) -> str:
        return number(self.sweep.best["value"]) if self.sweep.best else ""

    @property
    def is_over(self) -> bool:
        return self.sweep.phase in ("Succeeded", "Failed", "Stopped")

    @property
    def how(self) -> str:
        """How the next points are chosen, in a line."""
        words_ = {"grid": "every combination", "random": "at random", "tpe": "nearer to what was good (TPE)"}
        folds = f", {self.spec.folds} folds each" if self.spec.folds else ""
        early = f", those behind ended from step {self.spec.stop_early.min_steps} on" if self.spec.stop_early else ""
        return f"{words_[self.spec.sampler]}{folds}{early}, {self.spec.parallel} at once"


@dataclass(frozen=True)
class TrialRow:
    """A point. `trainings` are (fold, phase, cluster) of each training of it, `value` and `sd` those of all of them."""

    number: int
    parameters: Sequence[str]
    phase: str
    message: str
    value: str
    sd: str
    trainings: Sequence[tuple[int, str, str]]
    started: dt.datetime | None
    finished: dt.datetime | None
    gpu_seconds: int
    cost: Decimal
    is_best: bool


@require_safe
def sweeps(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/sweeps.html", _listed(request))


@require_safe
@conditional_page
def rows(request: HttpRequest) -> HttpResponse:
    """The part of the list that changes."""
    return render(request, "clusters/_sweep_rows.html", _listed(request))


def _listed(request: HttpRequest) -> dict[str, Any]:
    user, code, phase = person(request), selected_appcode(request), words(request, "phase")
    found = sweeps_for(user)
    if code:
        found = found.filter(appcode__code=code)
    if phase in PHASES:
        found = found.filter(phase=phase)
    page, following = page_of(request, matching(found, words(request), "name"), "-id")
    sums = sums_of([sweep.pk for sweep in page], timezone.now())
    return {
        "rows": [Row(sweep, SweepSpec.model_validate(sweep.spec), sums[sweep.pk]) for sweep in page],
        "next_cursor": following,
        "phases": PHASES,
        "searched": bool(words(request) or phase or request.GET.get("cursor")),
        "query": request.GET.urlencode(),
        "may_create": appcodes_for(user, OPERATE).exists(),
    }


@require_safe
def sweep(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    return _page(request, sweep_for(person(request), appcode, name))


def _page(request: HttpRequest, found: Sweep, change: Mapping[str, Any] | None = None) -> HttpResponse:
    """`change` is what was typed in its form, where that is wrong."""
    head = _head(request, found)
    spec: SweepSpec = head["spec"]
    context = {
        **head,
        **_table(request, head["row"]),
        "described": [(name, _described(each)) for name, each in in_order(spec.parameters)],
        "query": request.GET.urlencode(),
        "changes": (("trials", "Points"), ("parallel", "At once")),
        "change": change or {"trials": spec.points, "parallel": spec.parallel, "wrong": {}},
    }
    return render(request, "clusters/sweep.html", context)


@require_safe
@conditional_page
def live(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Its head, and the best so far."""
    return render(request, "clusters/_sweep.html", _head(request, sweep_for(person(request), appcode, name)))


@require_safe
@conditional_page
def table(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Its trials."""
    head = _head(request, sweep_for(person(request), appcode, name))
    return render(request, "clusters/_sweep_trials.html", {**head, **_table(request, head["row"])})


@require_safe
@conditional_page
def charts(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """What its points came to, drawn: value over trial, parallel coordinates, importance."""
    found = sweep_for(person(request), appcode, name)
    spec = SweepSpec.model_validate(found.spec)
    if spec.goal is None:
        return render(request, "clusters/_sweep_charts.html", {"spec": spec})
    points, total = outcomes(found, spec)
    # What has come to a value stays as it is, so their number says which they are.
    key = f"sweep.importance.{found.pk}.{total}"
    shares: dict[str, float] = cache.get_or_set(key, partial(importances, spec, points), KEPT_SECONDS) or {}
    context = {
        "spec": spec,
        "points": len(points),
        "total": total,
        "course": _course(spec, points) if points else None,
        "strands": _strands(found, spec, points) if len(points) > 1 else None,
        "importance": [(name, f"{100 * share:.0f}") for name, share in shares.items()],
        "sometimes": [name for name, each in spec.parameters.items() if each.when],
        "least": LEAST,
        "drawn_best": BEST,
        "drawn_newest": NEWEST,
    }
    return render(request, "clusters/_sweep_charts.html", context)


@require_safe
@conditional_page
def curves(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The goal's metric of the best trials together, which takes as long as their event files or logs take to be read."""
    user = person(request)
    found = sweep_for(user, appcode, name)
    spec = SweepSpec.model_validate(found.spec)
    context: dict[str, Any] = {"spec": spec, "chart": None, "notes": []}
    if spec.goal is not None:
        points = sorted(outcomes(found, spec)[0], key=lambda each: (_sign(spec) * each.value, each.number))[:CURVES]
        runs = _runs_of(found, [point.number for point in points])
        try:
            with LOOKS.enter(user.pk), within(READ_SECONDS):
                numbers, context["notes"] = numbers_of(list(runs.values()))
        except Unavailable as error:
            context["notes"] = [str(error)]
        else:
            read = zip(runs, numbers, strict=True)
            lines = [
                Line(f"trial {which}", [(point.step, point.value) for point in curve.points])
                for which, scalars in read
                for curve in lines_of(scalars, spec.goal.metric)[:1]
            ]
            context["chart"] = draw(spec.goal.metric, lines, x_label="step") if lines else None
    return render(request, "clusters/_sweep_curves.html", context)


def _runs_of(found: Sweep, numbers: Sequence[int]) -> dict[int, Run]:
    """By point the newest run of its first training, in the order of `numbers`."""
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


def _course(spec: SweepSpec, points: Sequence[Outcome]) -> Chart:
    """The value of each point, and the best until then."""
    assert spec.goal is not None
    low, high = without_outliers([point.value for point in points])
    best, leading = points[0].value, []
    for point in points:
        best = max(best, point.value) if is_maximized(spec) else min(best, point.value)
        leading.append((float(point.number), best))
    each = [(float(point.number), min(high, max(low, point.value))) for point in points]
    lines = [Line("best so far", leading), Line("each trial", each, scattered=True)]
    return draw(spec.goal.metric, lines, x_label="trial")


def _strands(found: Sweep, spec: SweepSpec, points: Sequence[Outcome]) -> Strands:
    assert spec.goal is not None
    ranked = sorted(points, key=lambda point: (_sign(spec) * point.value, point.number))
    low, high = without_outliers([point.value for point in ranked])
    dimensions = [_dimension(name, each, ranked) for name, each in in_order(spec.parameters)]
    dimensions.append(Dimension(spec.goal.metric, [point.value for point in ranked], low, high))
    things = [
        (
            f"trial {point.number}: {spec.goal.metric} = {number(point.value)}; {_said(point.parameters)}",
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


def _described(parameter: Parameter) -> str:
    """A parameter in words."""
    if parameter.type == "choice":
        said = "one of " + ", ".join(map(written, parameter.values))
    else:
        said = f"{number(float(parameter.low or 0))} to {number(float(parameter.high or 0))}"
        said += f", in steps of {parameter.step:g}" if parameter.step else ""
        said += ", by its logarithm" if parameter.log else ""
        said += ", whole numbers" if parameter.type == "int" else ""
    where = (f"{name} is {' or '.join(map(written, values))}" for name, values in parameter.when.items())
    return said + (f"; only where {' and '.join(where)}" if parameter.when else "")


def _said(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in sorted(parameters.items()))


def _short(value: Any) -> str:
    """For reading; the exact value is in REST and in the trial's own definition."""
    return number(value) if isinstance(value, float) else written(value)


def _head(request: HttpRequest, found: Sweep) -> dict[str, Any]:
    spec = SweepSpec.model_validate(found.spec)
    return {
        "row": Row(found, spec, sums_of([found.pk], timezone.now())[found.pk]),
        "sweep": found,
        "spec": spec,
        "best": _best(found, [name for name, _ in in_order(spec.parameters)]),
        "may_operate": may(person(request), found.appcode, OPERATE),
    }


def _table(request: HttpRequest, row: Row) -> dict[str, Any]:
    """A page of its trials, in the order and of the phase that are asked for."""
    found, spec = row.sweep, row.spec
    sort = chosen if (chosen := words(request, "sort")) in _orders(spec) else ""
    trials = _sortable(found, spec)
    phase, one = words(request, "phase"), words(request, "trial")
    if phase in TRIAL_PHASES:
        of = Trial.objects.filter(sweep=found, phase=TRIAL_PHASES[phase]).order_by()
        trials = trials.filter(number__in=of.values("number"))
    if one.isascii() and one.isdecimal() and len(one) < 6:
        trials = trials.filter(number=int(one))
    page, following = sorted_page_of(request, trials, _orders(spec)[sort], ROWS)
    names = [name for name, _ in in_order(spec.parameters)]
    return {
        "names": names if len(names) <= COLUMNS else [],
        "trials": _trial_rows(found, spec, names, [trial.number for trial in page], timezone.now()),
        "next_cursor": following,
        "phases": [(word, _count(row.sums, word)) for word in TRIAL_PHASES],
        "filtered": phase in TRIAL_PHASES or bool(one),
    }


def _best(found: Sweep, names: Sequence[str]) -> dict[str, Any] | None:
    """The best point so far, as people read it."""
    best = found.best
    if best is None:
        return None
    said = [(name, _short(best["parameters"][name])) for name in names if name in best["parameters"]]
    sd = "" if best["sd"] is None else number(best["sd"])
    return {"number": best["number"], "said": said, "value": number(best["value"]), "sd": sd}


def _count(sums: Sums, word: str) -> int:
    if TRIAL_PHASES[word]:
        return sums.trials.get(word, 0)
    return sum(count for phase, count in sums.trials.items() if phase not in TRIAL_PHASES.values())


def _orders(spec: SweepSpec) -> dict[str, tuple[str, ...]]:
    """Those that live first, then from the best on."""
    worst_last = "-sort_value" if is_maximized(spec) else "sort_value"
    return {
        "": ("-sort_living", worst_last, "number"),
        "number": ("number",),
        "-number": ("-number",),
        "value": ("sort_value", "number"),
        "-value": ("-sort_value", "number"),
    }


def _sortable(found: Sweep, spec: SweepSpec) -> QuerySet[Trial]:
    """A row for each point, which is its first training. What has no value is worse than all that have one."""
    of = Trial.objects.filter(sweep=found, number=OuterRef("number")).order_by()
    value: Combinable = F("value")
    lives: Q | Exists = Q(phase="")
    if spec.folds:
        done = of.filter(phase=Trial.Phase.SUCCEEDED).values("number").annotate(mean=Avg("value"), done=Count("pk"))
        value, lives = Subquery(done.filter(done=spec.folds).values("mean")), Exists(of.filter(phase=""))
    worst = Value(float("-inf") if is_maximized(spec) else float("inf"))
    return Trial.objects.filter(sweep=found, fold__lte=1).annotate(
        sort_value=Coalesce(value, worst, output_field=FloatField()),
        sort_living=Case(When(lives, then=True), default=False, output_field=BooleanField()),
    )


def _trial_rows(
    found: Sweep, spec: SweepSpec, names: Sequence[str], numbers: Sequence[int], now: dt.datetime
) -> list[TrialRow]:
    """Two queries."""
    of: dict[int, list[Trial]] = {which: [] for which in numbers}
    trials = found.trials.filter(number__in=numbers).select_related("cluster__current_run").order_by("number", "fold")
    for trial in trials.defer("cluster__spec", "cluster__current_run__spec"):
        of[trial.number].append(trial)
    runs = Run.objects.filter(cluster__trial__sweep=found, cluster__trial__number__in=numbers)
    used: dict[int, list[Run]] = {}
    for run in runs.annotate(point=F("cluster__trial__number")).only(
        "usage_as_of", "gpu_seconds", "gpu_rate", "cost", "cost_rate"
    ):
        used.setdefault(run.point, []).append(run)
    best = found.best["number"] if found.best else None
    return [_trial_row(found, spec, names, of[which], used.get(which, ()), which == best, now) for which in numbers]


def _trial_row(
    found: Sweep,
    spec: SweepSpec,
    names: Sequence[str],
    trials: Sequence[Trial],
    runs: Iterable[Run],
    is_best: bool,
    now: dt.datetime,
) -> TrialRow:
    runs = list(runs)
    phases = [_phase_of(trial) for trial in trials]
    values = [trial.value for trial in trials if trial.phase == Trial.Phase.SUCCEEDED and trial.value is not None]
    whole = len(values) == (spec.folds or 1)
    mean = sum(values) / len(values) if whole else None
    sd = (
        (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        if mean is not None and spec.folds
        else None
    )
    said = trials[0].parameters
    started = [trial.cluster.current_run.started_at for trial in trials if trial.cluster and trial.cluster.current_run]
    return TrialRow(
        number=trials[0].number,
        parameters=[_short(said[name]) if name in said else "" for name in names]
        if len(names) <= COLUMNS
        else [_said(said)],
        phase=_together(phases),
        message=next((trial.message.partition("\n")[0] for trial in trials if trial.message), ""),
        value="" if mean is None else number(mean),
        sd="" if sd is None else number(sd),
        trainings=[
            (trial.fold, phase, trial_name(found.name, trial.number, trial.fold))
            for trial, phase in zip(trials, phases, strict=True)
            if trial.cluster_id
        ],
        started=min((each for each in started if each), default=None),
        finished=max((trial.finished_at for trial in trials if trial.finished_at), default=None)
        if all(trial.phase for trial in trials)
        else None,
        gpu_seconds=sum(run.gpu_seconds_at(now) for run in runs),
        cost=sum((run.cost_at(now) for run in runs), Decimal(0)),
        is_best=is_best,
    )


def _phase_of(trial: Trial) -> str:
    """While it lives, that of its run; one that has ended is judged in a moment."""
    run = trial.cluster.current_run if trial.cluster else None
    if trial.phase or run is None:
        return trial.phase or "Queued"
    return "Running" if run.is_terminal else run.phase


def _together(phases: Sequence[str]) -> str:
    """Of several trainings of a point: those that live count before those that failed, and those before the others."""
    order = ("Running", "Starting", "Queued", "Failed", "Stopped", "Pruned", "Succeeded")
    return min(phases, key=order.index)


# -- what is done ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Act:
    """As `act.Act`, of a sweep."""

    do: Callable[..., Any]
    label: str
    done: str
    lost: str = ""


ACTS = {
    "pause": Act(actions.pause_sweep, "Pause", "{name} starts no more trials; those that run go on."),
    "resume": Act(actions.resume_sweep, "Resume", "{name} goes on, in your name."),
    "cancel": Act(
        actions.cancel_sweep,
        "Cancel",
        "{name} is ending.",
        "Its living trials are ended; what those have stored is kept, and so are all that have ended before.",
    ),
    "delete": Act(
        actions.delete_sweep,
        "Delete",
        "{name} is deleted.",
        "All of its trials are deleted with their logs and charts; living ones are ended. What lies in datastores stays.",
    ),
}


@require_http_methods(["GET", "HEAD", "POST"])
def act(request: HttpRequest, appcode: str, name: str, verb: str) -> HttpResponse:
    found = sweep_for(person(request), appcode, name, OPERATE)
    wanted = ACTS[verb]
    if request.method != "POST" or (wanted.lost and "confirmed" not in request.POST):
        return render(request, "clusters/ask_sweep.html", {"sweep": found, "act": wanted})
    try:
        wanted.do(found, acting_user=person(request))
    except Conflict as conflict:
        messages.error(request, str(conflict))
    except Invalid as invalid:
        messages.error(request, " ".join(error.message for error in invalid.errors))
    else:
        messages.success(request, wanted.done.format(name=name))
    return redirect("sweeps") if verb == "delete" else redirect("sweep", appcode, name)


@require_POST
def change(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """More trials, or more at once."""
    user = person(request)
    found = sweep_for(user, appcode, name, OPERATE)
    said = {key: request.POST.get(key, "").strip()[:20] for key in ("trials", "parallel")}
    body = {"metadata": {"name": name, "appcode": appcode}, "spec": {**found.spec, **said}}
    try:
        actions.change_sweep(found, parse(SweepManifest, body), acting_user=user)
    except Invalid as invalid:
        wrong = {
            error.path[1]: error.message for error in invalid.errors if error.path[1:2] in (("trials",), ("parallel",))
        }
        for error in invalid.errors:
            if error.path[1:2] not in (("trials",), ("parallel",)):
                messages.error(request, error.message)
        return _page(request, found, {**said, "wrong": wrong})
    except Conflict as conflict:
        messages.error(request, str(conflict))
    else:
        messages.success(request, f"{name} is changed.")
    return redirect("sweep", appcode, name)


@require_POST
def train(request: HttpRequest, appcode: str, name: str, trial: int) -> HttpResponse:
    """A trial once more, as a cluster of its own; of folds, with all of the input."""
    user = person(request)
    found = sweep_for(user, appcode, name, OPERATE)
    try:
        manifest = actions.cluster_of(trial_for(found, trial), free_name(user, name_again(name, trial)))
        made = clusters.create_cluster(manifest, acting_user=user)
    except (Invalid, PermissionDenied) as error:
        said = " ".join(each.message for each in error.errors) if isinstance(error, Invalid) else str(error)
        messages.error(request, said)
        return redirect("sweep", appcode, name)
    messages.success(
        request, f"{made.name} has been submitted: trial {trial} of {name} once more, as a cluster of its own."
    )
    return redirect("cluster", appcode, made.name)
