"""From a view to its rows: which runs, in which order, with all their numbers. Three queries however many rows and metrics.

The first finds the page: it sorts and filters all runs of the appcode by little columns and the covering index of their metrics,
and says how many there are. The other two read what that page shows. Until somebody chose columns, a view with a filter or an
order reads the newest runs as well, by which columns are chosen; a fourth query finds those.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import reduce
from operator import and_, or_

from django.db.models import (
    Avg,
    BooleanField,
    Case,
    Count,
    Exists,
    F,
    FloatField,
    Func,
    IntegerField,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    TextField,
    Value,
    When,
    Window,
)
from django.db.models.expressions import Combinable, CombinedExpression, Expression, OrderBy
from django.db.models.functions import Cast, Coalesce, Extract, Lower, NullIf, RowNumber
from django.db.models.lookups import GreaterThanOrEqual, LessThan, LessThanOrEqual
from django.utils import timezone

from clusters.frameworks import COMPUTING
from clusters.results.models import Metric, RunMetric
from clusters.results.values import Extreme, Summary, is_less_better
from clusters.results.view import NUMBERS, STARTED, TEXTS, Column, Condition, View, alternatives, conditions, span_of
from clusters.runs.models import Cluster, Run
from clusters.scalars.events import tag_order
from portal.models import Appcode

ROWS, MOST_GROUPS, MOST_WORDS = 50, 200, 8
# Metrics that groups show until somebody chose some.
GROUP_METRICS, MOST_NAMES = 4, 1000
# Runs of these are part of something else, and no results.
NO_RESULTS = ("services/", "hooks/", "models/")
# What a row needs of its run: not the spec, which may hold the files of its code.
RUN_FIELDS = (
    "number", "phase", "reason", "message", "gone", "created_at", "started_at", "finished_at", "usage_as_of", "gpus",
    "gpu_seconds", "gpu_rate", "cost", "cost_rate", "tags", "note", "parameters", "numbers_at", "colour", "cluster__name",
    "cluster__part_of", "cluster__appcode", "created_by__username",
)  # fmt: skip
LOOKUPS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_IS_NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\s*$"


@dataclass(frozen=True)
class Row:
    """A run, and what it came to."""

    run: Run
    numbers: dict[str, Summary]
    # How many trials of a sweep share it.
    trials: int = 0

    @property
    def name(self) -> str:
        return f"{self.run.cluster.name}/{self.run.number}"

    @property
    def counts(self) -> bool:
        """Whether its values may be the best. Those of a failed run were reached on the way."""
        return self.run.phase != Run.Phase.FAILED

    @property
    def parameters(self) -> dict[str, str]:
        return self.run.parameters or {}


@dataclass(frozen=True)
class Found:
    """A page of rows, how many runs there are in all, and sentences about what the filters could not mean. `newest` are the rows
    with which the table begins, if they were asked for."""

    rows: list[Row]
    total: int
    notes: list[str] = field(default_factory=list)
    newest: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Group:
    """The runs that have the same value of a parameter: how many, what they cost, and of each metric the mean of the last values
    and the best one, of those that did not fail."""

    value: str | None
    runs: int
    # How many of them still live.
    living: int
    gpu_hours: float
    cost: Decimal
    numbers: dict[str, tuple[float | None, float | None]]


def find(appcode: Appcode, view: View, now: dt.datetime, limit: int = ROWS, *, with_newest: bool = False) -> Found:
    """One page of the view. A page after the last one is the last one."""
    runs, notes = matching(appcode, view, now)
    ordered = _ordered(runs, appcode, view, now).annotate(total=Window(Count("pk")))
    found = list(ordered.values_list("pk", "total")[(view.page - 1) * limit : view.page * limit])
    if not found and view.page > 1:
        last = -(-runs.count() // limit) or 1
        return find(appcode, view.but(page=min(last, view.page - 1)), now, limit, with_newest=with_newest)
    shown = [pk for pk, _ in found]
    first = _newest(appcode, view) if with_newest else []
    rows = {row.run.pk: row for row in rows_of(list(dict.fromkeys(shown + first)))}
    if not found:
        notes += _unknown(appcode, view)
    picked = [[rows[pk] for pk in pks if pk in rows] for pks in (shown, first)]
    return Found(picked[0], found[0][1] if found else 0, notes, picked[1])


def _unknown(appcode: Appcode, view: View) -> list[str]:
    """Which names of the conditions no run has. A query or two for each, so only where nothing was found."""
    names = list(dict.fromkeys(each.name for each in conditions(view.where)[0] if not each.fact))
    known = set(Metric.objects.filter(appcode=appcode, name__in=names).values_list("name", flat=True))
    runs = runs_in(appcode, view)
    names = [name for name in names if name not in known and not runs.filter(parameters__has_key=name).exists()]
    if not names:
        return []
    there = list(Metric.objects.filter(appcode=appcode).values_list("name", flat=True)[:MOST_NAMES])
    newest = runs.order_by("-pk").values_list("parameters", flat=True)[:ROWS]
    by_fold = {name.casefold(): name for name in (*there, *(name for each in newest for name in each or ()))}
    return [
        f"No run has a metric or parameter “{name}”"
        + (f"; there is {by_fold[name.casefold()]}." if name.casefold() in by_fold else ".")
        for name in names
    ]


def newest(appcode: Appcode, view: View) -> list[Row]:
    """The rows with which the table begins: neither filtered nor sorted. Three queries."""
    return rows_of(_newest(appcode, view))


def _newest(appcode: Appcode, view: View) -> list[int]:
    return list(runs_in(appcode, view).order_by("-pk").values_list("pk", flat=True)[:ROWS])


def rows_of(run_ids: Sequence[int]) -> list[Row]:
    """The rows of these runs, in this order. Two queries."""
    sharing = Cluster.objects.filter(pk=OuterRef("cluster"), trials__index__isnull=False).values("pk")
    trials = Subquery(sharing.annotate(count=Count("trials")).values("count"))
    runs = (
        Run.objects.select_related("cluster", "created_by").only(*RUN_FIELDS).annotate(sharing=trials).in_bulk(run_ids)
    )
    numbers = numbers_of(run_ids)
    return [Row(run, numbers.get(pk, {}), run.sharing or 0) for pk in run_ids if (run := runs.get(pk))]


def numbers_of(run_ids: Sequence[int]) -> dict[int, dict[str, Summary]]:
    """The metrics of runs, by run and name. One query."""
    fields = ("run_id", "metric__name", "last", "step", "low", "low_step", "high", "high_step")
    found: dict[int, dict[str, Summary]] = {}
    for run_id, name, last, step, low, low_step, high, high_step in RunMetric.objects.filter(
        run__in=run_ids
    ).values_list(*fields):
        summary = Summary(
            last, step,
            None if low is None else Extreme(low, low_step), None if high is None else Extreme(high, high_step),
        )  # fmt: skip
        found.setdefault(run_id, {})[name] = summary
    return found


def runs_in(appcode: Appcode, view: View) -> QuerySet[Run]:
    """All runs of the table before its filters: of the cluster, of the sweep or pipeline, or else of all that computes."""
    runs = Run.objects.filter(cluster__appcode=appcode, cluster__deleted_at=None)
    if view.cluster:
        return runs.filter(cluster__name=view.cluster)
    if view.whole:
        return runs.filter(cluster__part_of=view.whole)
    runs = runs.filter(cluster__framework__in=list(COMPUTING))
    for part in NO_RESULTS:
        runs = runs.exclude(cluster__part_of__startswith=part)
    return runs


def matching(appcode: Appcode, view: View, now: dt.datetime) -> tuple[QuerySet[Run], list[str]]:
    """The runs that match the filters, with those that are pinned; and sentences about conditions that mean nothing."""
    wanted, found = Q(), runs_in(appcode, view)
    for word in view.search.split()[:MOST_WORDS]:
        wanted &= (
            Q(cluster__name__icontains=word) | Q(note__icontains=word) | Q(tags__contains=[word])
            | Q(created_by__username__icontains=word)
        )  # fmt: skip
    if view.state:
        names = {name.strip().lower() for name in view.state.split(",")}
        wanted &= Q(phase__in=[phase for phase in Run.Phase.values if phase.lower() in names])
    if view.who:
        wanted &= Q(created_by__username=view.who)
    if view.tag:
        wanted &= Q(tags__contains=[view.tag])
    said, unclear = alternatives(view.where)
    notes = [f"“{each}” is no condition; write one like loss < 0.3." for each in unclear]
    one_of = Q()
    for several in said:
        meant = {each: _condition(appcode, each, now) for each in several}
        notes += [f"“{each}” {_why_not(each)}" for each, condition in meant.items() if condition is None]
        if known := [condition for condition in meant.values() if condition is not None]:
            one_of |= reduce(and_, known)
    wanted &= one_of
    if wanted:
        found = found.filter(wanted | _pins(view)) if view.pins else found.filter(wanted)
    return found, notes


def _pins(view: View) -> Q:
    pins = Q(pk__in=[])
    for name, _, number in (pin.partition("/") for pin in view.pins):
        pins |= Q(cluster__name=name, number=int(number))
    return pins


def _condition(appcode: Appcode, said: Condition, now: dt.datetime) -> Q | None:
    """Of a condition with several values, one of which a run must have, or none. None if one means nothing."""
    each = [_simple_condition(appcode, replace(said, value=value), now) for value in said.values]
    known = [condition for condition in each if condition is not None]
    return None if len(known) < len(each) else reduce(and_ if said.operator == "!=" else or_, known)


def _simple_condition(appcode: Appcode, said: Condition, now: dt.datetime) -> Q | None:
    """None if it compares with something that is no number. A name without a kind is that of a metric or a parameter; a fact of
    the run comes first."""
    number = said.number
    if said.fact in TEXTS:
        return _text_condition(said)
    if said.fact == STARTED:
        return _time_condition(said, now)
    if said.fact:
        if number is None or said.operator == "~":
            return None
        return _compared(_fact(said.fact, now), said.operator, Value(number, FloatField()))
    metric = None
    if said.kind != "param" and number is not None and said.operator != "~":
        metric = _metric_condition(appcode, Column(said.kind or "last", said.name), said.operator, number)
    if said.kind and said.kind != "param":
        return metric
    parameter = _parameter_condition(said, number)
    if said.operator == "!=" and metric is not None and parameter is not None:
        return metric | (parameter & ~_has_metric(appcode, said.name))
    return metric if parameter is None else parameter if metric is None else metric | parameter


def _why_not(said: Condition) -> str:
    if said.fact in TEXTS:
        return "needs =, != or ~."
    if said.fact == STARTED:
        return "needs a time, like 2026-11-30, yesterday or 7 days ago."
    return "compares with no number."


def _time_condition(said: Condition, now: dt.datetime) -> Q | None:
    """A day is everything from its beginning to its end: what is later than it began comes after “> yesterday”."""
    span = span_of(said.value, timezone.localtime(now))
    if span is None or said.operator == "~":
        return None
    begin, end = span
    at = Coalesce("started_at", "created_at")
    if said.operator in (">", ">="):
        return Q(GreaterThanOrEqual(at, begin))
    if said.operator == "<":
        return Q(LessThan(at, begin))
    if said.operator == "<=":
        return Q(LessThan(at, end) if end > begin else LessThanOrEqual(at, end))
    inside = Q(GreaterThanOrEqual(at, begin)) & Q(LessThan(at, end) if end > begin else LessThanOrEqual(at, end))
    return inside if said.operator == "=" else ~inside


def _text_condition(said: Condition) -> Q | None:
    """Of a fact that is a text, in any case; a run goes by the name of its cluster, too. None if it is compared as a number."""
    if said.operator in LOOKUPS:
        return None
    names = {"run": "cluster__name", "state": "phase", "who": "created_by__username", "note": "note"}
    if said.fact == "tags" and said.operator == "~":
        found = _contains(
            Func(F("tags"), Value("\n"), function="array_to_string", output_field=TextField()), said.value
        )
    elif said.fact == "tags":
        found = Q(tags__contains=[said.value])
    else:
        lookup, value = ("icontains" if said.operator == "~" else "iexact"), said.value
        if "*" in value:
            lookup, value = "iregex", f"^{re.escape(value).replace(chr(92) + '*', '.*')}$"
        found = Q(**{f"{names[said.fact]}__{lookup}": value})
    name, mark, run = said.value.partition("/")
    if said.fact == "run" and mark and run.isdecimal() and len(run) < 10:
        found |= Q(cluster__name__iexact=name, number=int(run))
    return ~found if said.operator == "!=" else found


def _parameter_condition(said: Condition, number: float | None) -> Q | None:
    text = _parameter(said.name)
    if said.operator in LOOKUPS:
        return None if number is None else _compared(_numeric(text), said.operator, Value(number, FloatField()))
    if said.operator == "~":
        return _contains(text, said.value)
    equal = _compared(text, "=", Value(said.value, TextField()))
    if number is not None and not math.isnan(number):
        equal |= _compared(_numeric(text), "=", Value(number, FloatField()))
    return equal if said.operator == "=" else ~equal


def _contains(text: Combinable, word: str) -> Q:
    place = Func(Lower(text), Value(word.lower()), function="strpos", output_field=IntegerField())
    return _compared(place, ">", Value(0))


def _compared(left: Combinable, operator: str, right: Value) -> Q:
    """As a condition that a filter takes. Unknown is no match, so that its negation is one."""
    test = Func(left, right, template="(%(expressions)s)", arg_joiner=f" {operator} ", output_field=BooleanField())
    return Q(Coalesce(test, Value(False)))


def _metric_condition(appcode: Appcode, column: Column, operator: str, number: float) -> Q:
    of = _metric_rows(appcode, column.name, OuterRef("pk"))
    name = _column_of(column)
    if math.isnan(number):
        # To PostgreSQL, NaN equals NaN.
        is_nan = Q(Exists(of.filter(**{name: number})))
        return {"=": is_nan, "!=": Q(Exists(of.exclude(**{name: number})))}.get(operator, Q(pk__in=[]))
    rows = of.exclude(**{name: math.nan})
    if operator == "!=":
        return Q(Exists(rows.exclude(**{name: number})))
    return Q(Exists(rows.filter(**{f"{name}__{LOOKUPS.get(operator, 'exact')}": number})))


def _has_metric(appcode: Appcode, name: str) -> Q:
    return Q(Exists(_metric_rows(appcode, name, OuterRef("pk"))))


def _metric_rows(appcode: Appcode, name: str, run: OuterRef) -> QuerySet[RunMetric]:
    ids = Metric.objects.filter(appcode=appcode, name=name).values("pk")[:1]
    return RunMetric.objects.filter(run=run, metric=Subquery(ids))


def _column_of(column: Column) -> str:
    if column.kind == "best":
        return "low" if is_less_better(column.name) else "high"
    return {"min": "low", "max": "high"}.get(column.kind, "last")


def _parameter(name: str) -> Func:
    return Func(F("parameters"), Value(name), function="jsonb_extract_path_text", output_field=TextField())


def _numeric(text: Combinable) -> Case:
    """A parameter as a number; NULL if it is none."""
    is_number = Func(
        text, Value(_IS_NUMBER), template="(%(expressions)s)", arg_joiner=" ~ ", output_field=BooleanField()
    )
    return Case(When(Q(is_number), then=Cast(text, FloatField())), default=None, output_field=FloatField())


def _fact(name: str, now: dt.datetime) -> Expression:
    """A number of a run, with what it holds now added, as `Run.cost_at` does it."""
    since = Coalesce(Extract(Value(now) - F("usage_as_of"), "epoch"), 0.0, output_field=FloatField())

    def grown(base: str, rate: str) -> CombinedExpression:
        return Cast(base, FloatField()) + Cast(rate, FloatField()) * since

    if name == "cost":
        return grown("cost", "cost_rate")
    if name == "hours":
        return grown("gpu_seconds", "gpu_rate") / Value(3600.0)
    if name == "duration":
        return Cast(Extract(Coalesce("finished_at", Value(now)) - F("started_at"), "epoch"), FloatField())
    return Cast("gpus", FloatField())


def _ordered(runs: QuerySet[Run], appcode: Appcode, view: View, now: dt.datetime) -> QuerySet[Run]:
    """Pinned runs first. Runs without a value come last in both directions."""
    order: list[OrderBy] = []
    if view.pins:
        order.append(Case(When(_pins(view), then=Value(0)), default=Value(1)).asc())
    if sorting := view.sorting:
        column, falls = sorting
        keys = _keys(column, appcode, now)
        order += [key.desc(nulls_last=True) if falls else key.asc(nulls_last=True) for key in keys]
    return runs.order_by(*order, "-pk")


def _keys(column: Column, appcode: Appcode, now: dt.datetime) -> list[Expression | F]:
    if column.kind == "param":
        text = _parameter(column.name)
        return [_numeric(text), text]
    if column.is_metric:
        value = _metric_rows(appcode, column.name, OuterRef("pk")).values(_column_of(column))[:1]
        return [NullIf(Subquery(value, output_field=FloatField()), Value(math.nan, FloatField()))]
    if column.name in NUMBERS:
        return [_fact(column.name, now)]
    if column.name == "run":
        return [F("cluster__name"), F("number")]
    names = {"state": "phase", "who": "created_by__username"}
    return [Coalesce("started_at", "created_at") if column.name == "started" else F(names[column.name])]


def groups(appcode: Appcode, view: View, now: dt.datetime) -> tuple[list[Group], int, list[str], list[str]]:
    """The groups of the view, most runs first; how many runs there are; the metrics that are shown; and notes. Three queries, and
    a fourth if there are more than MOST_GROUPS."""
    column = Column.of(view.group)
    assert column is not None
    runs, notes = matching(appcode, view.but(pins=()), now)
    chosen = [each.name for key in view.columns or () if (each := Column.of(key)) and each.is_metric]
    ids = _metrics(appcode, list(dict.fromkeys(chosen)))
    runs = runs.annotate(value=_group_of(column)).order_by()
    sums = runs.values("value").annotate(
        runs=Count("pk"),
        living=Count("pk", filter=Q(gone=False)),
        hours=Sum(_fact("hours", now)),
        spent=Sum(_fact("cost", now)),
    )
    found = list(sums.order_by("-runs", "value")[: MOST_GROUPS + 1])
    total = sum(each["runs"] for each in found)
    # From the runs to their numbers: the covering index has all of a metric.
    rows = runs.exclude(phase=Run.Phase.FAILED).filter(numbers__metric__in=list(ids.values()))
    if len(found) > MOST_GROUPS:
        notes.append(f"The {MOST_GROUPS} largest groups are shown.")
        found, total = found[:MOST_GROUPS], runs.count()
        rows = rows.filter(value__in=[each["value"] for each in found])
    last, names = NullIf("numbers__last", Value(math.nan, FloatField())), {pk: name for name, pk in ids.items()}
    means = rows.values_list("value", "numbers__metric").annotate(
        mean=Avg(last), least=Min("numbers__low"), most=Max("numbers__high")
    )
    numbers: dict[str | None, dict[str, tuple[float | None, float | None]]] = {}
    for value, metric_id, mean, low, high in means:
        best = low if is_less_better(names[metric_id]) else high
        # Where all ended with NaN, their mean is NaN.
        numbers.setdefault(value, {})[names[metric_id]] = (math.nan if mean is None else mean, best)
    lines = [
        Group(
            each["value"], each["runs"], each["living"], each["hours"], Decimal(str(each["spent"])),
            numbers.get(each["value"], {}),
        )
        for each in found
    ]  # fmt: skip
    return lines, total, list(ids), notes


def members(
    appcode: Appcode, view: View, now: dt.datetime, values: Sequence[str | None], most: int
) -> dict[str | None, list[Run]]:
    """The newest runs with numbers of each of these groups that did not fail, at most `most` of each. Two queries."""
    column = Column.of(view.group)
    assert column is not None
    runs, _ = matching(appcode, view.but(pins=()), now)
    named = Q(value__in=[value for value in values if value is not None])
    runs = runs.exclude(headline=[]).exclude(phase=Run.Phase.FAILED).annotate(value=_group_of(column))
    runs = runs.filter(named | Q(value=None) if None in values else named)
    runs = runs.annotate(place=Window(RowNumber(), partition_by=[F("value")], order_by=F("pk").desc()))
    chosen = dict(runs.filter(place__lte=most).order_by("-pk").values_list("pk", "value"))
    rows = Run.objects.select_related("cluster").in_bulk(chosen)
    found: dict[str | None, list[Run]] = {}
    for pk, value in chosen.items():
        if pk in rows:
            found.setdefault(value, []).append(rows[pk])
    return found


def _group_of(column: Column) -> Combinable:
    if column.kind == "param":
        return _parameter(column.name)
    return F("phase") if column.name == "state" else F("created_by__username")


def _metrics(appcode: Appcode, chosen: Sequence[str]) -> dict[str, int]:
    """The ids of these metrics, in their order; without any, of those that people look at first. One query."""
    rows = Metric.objects.filter(appcode=appcode)
    rows = rows.filter(name__in=chosen) if chosen else rows
    found = dict(rows.values_list("name", "pk")[:MOST_NAMES])
    names = [name for name in chosen if name in found]
    names = names or sorted(found, key=tag_order)[:GROUP_METRICS]
    return {name: found[name] for name in names}
