"""Reads what programs recorded: for charts and tables of the portal, and for MLflow's client."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

from django.db.models import (
    Exists,
    Expression,
    F,
    FloatField,
    Func,
    OrderBy,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
)

from clusters.runs.models import Run
from clusters.scalars.events import Curve
from clusters.tracking.filters import NUMBERS, Order, Term, order_of, pattern_of, terms_of
from clusters.tracking.messages import wrong
from clusters.tracking.models import TrackedMetric, TrackedRun
from clusters.tracking.store import absent, parsed_id, series_of
from portal.models import Appcode

# Runs in one answer to a search, and how many may be skipped.
PAGE, FURTHEST = 200, 100_000
# Metrics of a run that become curves.
MAX_CURVES = 400
# The tag in which MLflow's client notes tables: [{"path": "predictions.json", "type": "table"}, …].
ARTIFACTS = "mlflow.loggedArtifacts"
_COMPARED = {"=": "exact", "<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


def tables_of(run: Run) -> set[str]:
    """What `run` logged as tables, as ID/PATH of its artifact. One query."""
    tags = TrackedRun.objects.filter(run=run, tags__has_key=ARTIFACTS).values_list("pk", f"tags__{ARTIFACTS}")
    return {f"{pk.hex}/{path}" for pk, text in tags for path in _paths(text)}


def _paths(text: object) -> Iterator[str]:
    """The paths of tables in a tag, which a program may have written as well."""
    try:
        told = json.loads(text) if isinstance(text, str) else []
    except ValueError:
        return
    for each in told if isinstance(told, list) else ():
        if isinstance(each, dict) and each.get("type") == "table" and isinstance(each.get("path"), str):
            yield each["path"]


def curves_of(run: Run) -> tuple[Curve, ...]:
    """Returns the curves of everything that `run` recorded. Where it recorded several runs, each has a folder. Two queries."""
    tracked = {each.pk: each for each in TrackedRun.objects.filter(run=run).order_by("-started_at").only("pk", "name")}
    if not tracked:
        return ()
    names = [each.name for each in tracked.values()]
    rows = TrackedMetric.objects.filter(tracked__run=run).order_by("-tracked__started_at", "tracked", "name")[
        :MAX_CURVES
    ]
    return tuple(
        Curve(
            metric.name,
            folder_of(tracked[metric.tracked_id], names) if metric.tracked_id in tracked else "",
            tuple(sorted(series_of(metric).whole, key=lambda point: (point.step, point.wall_time))),
        )
        for metric in rows
    )


def parameters_of(run: Run) -> dict[str, str]:
    """Returns the parameters of `run`, and its tags that MLflow did not set. Of several runs that it recorded, nested ones not
    counted, those on which all agree. One query."""
    rows = TrackedRun.objects.filter(run=run, **{"tags__mlflow.parentRunId__isnull": True})
    told = [
        {**{key: value for key, value in tags.items() if not key.startswith("mlflow.")}, **params}
        for params, tags in rows.order_by("started_at").values_list("params", "tags")
    ]
    first, *others = told or [{}]
    return {key: value for key, value in first.items() if all(each.get(key) == value for each in others)}


def folder_of(tracked: TrackedRun, names: Sequence[str]) -> str:
    """Returns the folder of its curves: its name, with the beginning of its id where several have that name."""
    name = tracked.name.replace("/", "-")
    return f"mlflow/{name} {tracked.pk.hex[:6]}" if names.count(tracked.name) > 1 else f"mlflow/{name}"


def tracked_for(appcode: Appcode, tracked_id: str) -> TrackedRun:
    """Returns what a run of this appcode recorded. Raises Refused, the same for absent and forbidden."""
    rows = TrackedRun.objects.select_related("experiment", "run__cluster")
    found = rows.filter(pk=parsed_id(tracked_id), experiment__appcode=appcode).first()
    if found is None:
        raise absent(tracked_id)
    return found


def lasts(tracked: Iterable[TrackedRun]) -> dict[uuid.UUID, list[TrackedMetric]]:
    """Returns the metrics of several, without their points. One query."""
    found: dict[uuid.UUID, list[TrackedMetric]] = {each.pk: [] for each in tracked}
    for row in (
        TrackedMetric.objects.filter(tracked__in=list(found)).defer("kept", "recent").order_by("tracked", "name")
    ):
        found[row.tracked_id].append(row)
    return found


def search(
    appcode: Appcode, experiments: Iterable[int], words: str, order: Sequence[str], start: int, most: int
) -> list[TrackedRun]:
    """Returns at most `most` runs that MLflow's filter `words` describes, from the `start`-th on. Raises Refused."""
    if not 0 <= start <= FURTHEST:
        raise wrong(f"A search skips at most {FURTHEST:,} runs.")
    rows = TrackedRun.objects.filter(experiment__appcode=appcode, experiment__in=list(experiments))
    rows = reduce(_narrowed, terms_of(words), rows)
    wanted = [_ordered(order_of(each)) for each in order[:5]]
    return list(
        rows.select_related("experiment", "run__cluster").order_by(*wanted, "-started_at", "id")[start : start + most]
    )


def _narrowed(rows: QuerySet[TrackedRun], term: Term) -> QuerySet[TrackedRun]:
    if term.kind == "metric":
        metric = TrackedMetric.objects.filter(tracked=OuterRef("pk"), name=term.name)
        is_there = Exists(metric.filter(**{f"last__{_COMPARED.get(term.does, 'exact')}": term.value}))
        return rows.filter(Exists(metric), ~is_there) if term.does == "!=" else rows.filter(is_there)
    if term.kind == "attribute" and term.name == "id":
        texts = term.value if isinstance(term.value, tuple) else (term.value,)
        return _compared(
            rows, "pk", Term(term.kind, "id", term.does, tuple(parsed_id(str(each)).hex for each in texts))
        )
    field = term.name
    if term.kind in ("param", "tag"):
        field = "searched"
        rows = rows.alias(searched=_json(term.kind, term.name)).filter(searched__isnull=False)
    return _compared(rows, field, term)


def _compared(rows: QuerySet[TrackedRun], field: str, term: Term) -> QuerySet[TrackedRun]:
    value: Any = term.value
    if isinstance(value, tuple):
        condition = Q(**{f"{field}__in": value})
        return rows.exclude(condition) if term.does in ("NOT IN", "!=") else rows.filter(condition)
    if term.does in ("LIKE", "ILIKE"):
        return rows.filter(**{f"{field}__{'regex' if term.does == 'LIKE' else 'iregex'}": pattern_of(value)})
    if field in NUMBERS:
        value = int(value)
    if term.does == "!=":
        return rows.exclude(**{field: value})
    return rows.filter(**{f"{field}__{_COMPARED[term.does]}": value})


def _ordered(order: Order) -> OrderBy:
    value: Expression | F | Subquery[Any]
    if order.kind == "metric":
        metric = TrackedMetric.objects.filter(tracked=OuterRef("pk"), name=order.name)
        value = Subquery(metric.values("last")[:1], output_field=FloatField())
    elif order.kind == "attribute":
        value = F(order.name)
    else:
        value = _json(order.kind, order.name)
    return OrderBy(value, descending=order.is_descending, nulls_last=True)


def _json(kind: str, name: str) -> Func:
    """The text under a name. Not a key transform, which takes a name of digits for the index of a list."""
    return Func(F(f"{kind}s"), Value(name), function="jsonb_extract_path_text", output_field=TextField())
