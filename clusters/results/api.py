"""REST: what runs came to, notes on them, and the appcode's view."""

from __future__ import annotations

import datetime as dt
import math

from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from pydantic import Field
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.access import run_for
from clusters.frame.documents import Phase
from clusters.results import query
from clusters.results.access import views_of
from clusters.results.actions import MAX_NAME, MAX_NOTE, MAX_REPORT, MAX_TAG, MAX_TAGS, keep_view, write_notes
from clusters.results.values import Extreme, Summary
from clusters.results.view import MAX_PAGE, View
from clusters.runs.models import Run
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer, Who
from portal.api.money import Money, money
from portal.api.operations import Document, operation
from portal.api.pagination import DEFAULT_LIMIT, MAX_LIMIT, MAX_SEARCH, number, text, whole
from portal.api.views import person
from portal.errors import Invalid
from portal.manifests import Strict, parse
from portal.models import Appcode, User

FILTERS = {
    "search": "Only runs whose cluster, tags, note or person contain all of these words.",
    "state": "Several are divided by commas.",
    "who": "Who started them.",
    "tag": "Only runs with this tag.",
    "where": "Comparisons, divided by commas: `loss < 0.3, LR = 0.1`. A name is that of a metric or a parameter, or cost, hours, "
    "took (`10 min`), started (`yesterday`), gpus, name, state, who, tag or note; `best:loss` (or “loss best”), `min:loss`, "
    "`max:loss` and `param:LR` are precise.",
    "cluster": "Only runs of this cluster.",
    "of": "Only runs of a sweep or a pipeline: `sweeps/lr`.",
    "sort": "`started`, `cost`, `hours`, `duration`, `gpus`, `who`, `state`, `run`, `last:loss`, `best:loss`, `min:loss`, "
    "`max:loss` or `param:LR`; with a minus the largest first. The newest first when absent.",
}


class BestValue(Answer):
    value: float
    step: int = Field(description="Where it was first reached.")


class MetricResult(Answer):
    """NaN and infinite values are null."""

    last: float | None
    step: int = Field(description="That of the last value.")
    smallest: BestValue | None
    largest: BestValue | None


class RunResult(Answer):
    name: str = Field(examples=["train/3"])
    phase: Phase
    created_by: Who
    created: dt.datetime
    started: dt.datetime | None
    finished: dt.datetime | None
    gpus: int
    gpu_seconds: int
    cost: Money
    tags: list[str]
    note: str
    parameters: dict[str, str] = Field(description="Variables and options of the command.")
    metrics: dict[str, MetricResult]
    metrics_as_of: dt.datetime | None = Field(description="When they were read; null before that.")


class ResultsDocument(Answer):
    items: list[RunResult]
    total: int = Field(description="Runs on all pages.")
    page: int
    notes: list[str] = Field(description="What of `where` was not understood.")


class Results(APIView):
    @operation(
        "results_list",
        ResultsDocument,
        parameters=[
            *(OpenApiParameter(name, str, description=said) for name, said in FILTERS.items()),
            OpenApiParameter("page", whole(1, MAX_PAGE) | {"default": 1}),
            OpenApiParameter("limit", whole(1, MAX_LIMIT) | {"default": DEFAULT_LIMIT}, description="Runs of a page."),
        ],
    )
    def get(self, request: Request, code: str) -> Document:
        """What the runs of an appcode came to

        Metrics, parameters, tags, notes and cost, filtered and sorted. Metrics are read when a run ends, and of living runs while
        somebody looks at them; programs that need every point read the files of the output."""
        appcode = appcode_for(person(request), code)
        said = {name: [text(request, name, longest=MAX_SEARCH)] for name in FILTERS}
        view = View.read(said)
        if said["sort"][0] and not view.sort:
            raise Invalid.at(
                "sort", message=f"“{said['sort'][0]}” is no column; take one like cost, last:loss or param:LR."
            )
        now = timezone.now()
        page = number(request, "page", default=1, low=1, high=MAX_PAGE)
        limit = number(request, "limit", default=DEFAULT_LIMIT, low=1, high=MAX_LIMIT)
        found = query.find(appcode, view.but(page=page), now, limit)
        items = [_result(row, now) for row in found.rows]
        return ResultsDocument(items=items, total=found.total, page=page, notes=found.notes).json_value()


class Notes(Strict):
    """Tags and note of a run. What is left out becomes empty."""

    tags: list[str] = Field(
        default=[], max_length=MAX_TAGS, description=f"Each of at most {MAX_TAG} characters, without commas."
    )
    note: str = Field(default="", max_length=MAX_NOTE)


class NotesAnswer(Answer):
    tags: list[str]
    note: str


NOTES = OpenApiExample("A baseline", request_only=True, value={"tags": ["baseline"], "note": "Before the new data."})


class RunNotes(APIView):
    @operation("run_notes_read", NotesAnswer)
    def get(self, request: Request, code: str, name: str, run: int) -> Document:
        """Tags and note of a run"""
        return _notes(run_for(person(request), code, name, run))

    @operation("run_notes_replace", NotesAnswer, request=Notes, examples=[NOTES])
    def put(self, request: Request, code: str, name: str, run: int) -> Document:
        """Replace tags and note of a run"""
        user = person(request)
        found = run_for(user, code, name, run)
        said = parse(Notes, request.data)
        write_notes(found, said.tags, said.note, acting_user=user)
        return _notes(found)


QUERY = Field(
    default="", max_length=4000,
    description="As after the ? of the page's address, and its # with how charts are drawn; empty: no view.",
    examples=["sort=-best:accuracy&where=cost < 5"],
)  # fmt: skip


class CommonViewBody(Strict):
    query: str = QUERY


class CommonViewAnswer(Answer):
    query: str


class NamedViewBody(Strict):
    name: str = Field(min_length=1, max_length=MAX_NAME)
    query: str = QUERY
    text: str | None = Field(
        None,
        max_length=MAX_REPORT,
        description="Markdown above the charts and rows. Without it, the view keeps its text.",
    )


class NamedView(Answer):
    name: str
    query: str
    text: str


class NamedViews(Answer):
    items: list[NamedView]


class CommonView(APIView):
    @operation("results_view_read", CommonViewAnswer)
    def get(self, request: Request, code: str) -> Document:
        """The view with which an appcode's results begin"""
        user = person(request)
        return CommonViewAnswer(query=views_of(user, appcode_for(user, code)).common).json_value()

    @operation("results_view_replace", CommonViewAnswer, request=CommonViewBody)
    def put(self, request: Request, code: str) -> Document:
        """Replace the view with which an appcode's results begin

        For developers and owners. Parts that mean nothing are left out."""
        user = person(request)
        appcode = appcode_for(user, code, OPERATE)
        said = parse(CommonViewBody, request.data)
        keep_view(appcode, View.of_query(said.query), acting_user=user)
        return CommonViewAnswer(query=views_of(user, appcode).common).json_value()


class Views(APIView):
    @operation("results_views_list", NamedViews)
    def get(self, request: Request, code: str) -> Document:
        """The views of an appcode's results that have a name"""
        user = person(request)
        return _views(user, appcode_for(user, code))

    @operation("results_views_keep", NamedViews, request=NamedViewBody)
    def put(self, request: Request, code: str) -> Document:
        """Keep a view of an appcode's results under a name

        For developers and owners. An empty query deletes it."""
        user = person(request)
        appcode = appcode_for(user, code, OPERATE)
        said = parse(NamedViewBody, request.data)
        view = View.of_query(said.query) if said.query else None
        keep_view(appcode, view, name=said.name, text=said.text, acting_user=user)
        return _views(user, appcode)


def _views(user: User, appcode: Appcode) -> Document:
    found = views_of(user, appcode)
    items = [NamedView(name=name, query=query, text=found.texts[name]) for name, query in found.named.items()]
    return NamedViews(items=items).json_value()


def _notes(run: Run) -> Document:
    return NotesAnswer(tags=run.tags, note=run.note).json_value()


def _result(row: query.Row, now: dt.datetime) -> RunResult:
    run = row.run
    return RunResult(
        name=row.name, phase=run.phase, created_by=run.created_by, created=run.created_at, started=run.started_at,
        finished=run.finished_at, gpus=run.gpus, gpu_seconds=run.gpu_seconds_at(now), cost=money(run.cost_at(now)), tags=run.tags,
        note=run.note, parameters=row.parameters, metrics={name: _metric(each) for name, each in row.numbers.items()},
        metrics_as_of=run.numbers_at,
    )  # fmt: skip


def _metric(found: Summary) -> MetricResult:
    last = found.last if math.isfinite(found.last) else None
    return MetricResult(last=last, step=found.step, smallest=_extreme(found.low), largest=_extreme(found.high))


def _extreme(found: Extreme | None) -> BestValue | None:
    return None if found is None else BestValue(value=found.value, step=found.step)
