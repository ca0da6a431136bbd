"""REST: runs side by side."""

from __future__ import annotations

import datetime as dt
import math

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from pydantic import Field
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.comparison.runs import name_of, numbers_of, runs_to_compare, what_differs
from clusters.comparison.values import MOST, by_tag
from clusters.frame.documents import Phase
from clusters.scalars.events import Scalars
from datastores.drivers.patience import within
from portal.access import appcode_for
from portal.api.documents import Answer
from portal.api.money import Money, money
from portal.api.operations import Document, operation
from portal.api.pagination import text
from portal.api.views import person
from portal.errors import Invalid
from portal.web.limits import LOOKS

READ_SECONDS = 20


class ComparedMetric(Answer):
    """The values of one metric in one run. NaN and infinite values are null."""

    tag: str
    folder: str = Field(description="Where its event files lie in the datastore; empty for what was printed.")
    step: int = Field(description="That of the last value.")
    last: float | None
    smallest: float | None
    largest: float | None


class ComparedRun(Answer):
    name: str = Field(examples=["train/3"])
    phase: Phase
    started: dt.datetime | None
    finished: dt.datetime | None
    gpu_seconds: int
    cost: Money
    metrics: list[ComparedMetric]


class DifferenceAnswer(Answer):
    path: str = Field(examples=["env.LR"])
    values: list[str | None] = Field(description="Of each run in their order; null where it is not said.")


class ComparisonDocument(Answer):
    items: list[ComparedRun]
    differences: list[DifferenceAnswer] = Field(
        description="Of what they were started with, the digests of code and input (`read.digest`) included."
    )
    notes: list[str] = Field(description="What could not be read now.")


class Comparison(APIView):
    @operation(
        "runs_compare",
        ComparisonDocument,
        parameters=[
            OpenApiParameter(
                "runs", str, required=True, description=f"Up to {MOST}, divided by commas: `train/3,train/4`."
            )
        ],
    )
    def get(self, request: Request, code: str) -> Document:
        """Runs of an appcode side by side"""
        appcode = appcode_for(person(request), code)
        names = [name for name in text(request, "runs", longest=2000).split(",") if name]
        if not names:
            raise Invalid.at("runs", message="Name the runs, divided by commas, like train/3,train/4.")
        runs = runs_to_compare(names, appcode)
        with LOOKS.enter(person(request).pk), within(READ_SECONDS):
            found, notes = numbers_of(runs, READ_SECONDS)
        now = timezone.now()
        items = [
            ComparedRun(
                name=name_of(run), phase=run.phase, started=run.started_at, finished=run.finished_at,
                gpu_seconds=run.gpu_seconds_at(now), cost=money(run.cost_at(now)), metrics=_metrics(scalars),
            )
            for run, scalars in zip(runs, found, strict=True)
        ]  # fmt: skip
        changes = [DifferenceAnswer(path=each.path, values=list(each.values)) for each in what_differs(runs)]
        return ComparisonDocument(items=items, differences=changes, notes=notes).json_value()


def _metrics(scalars: Scalars) -> list[ComparedMetric]:
    return [
        ComparedMetric(
            tag=tag, folder=each.folder, step=each.step, last=each.last if math.isfinite(each.last) else None,
            smallest=each.smallest, largest=each.largest,
        )
        for tag, lines in by_tag(scalars).items()
        for each in lines
    ]  # fmt: skip
