"""Pipelines: the list, one pipeline with its graph, and its actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import conditional_page, require_POST, require_safe

from clusters.pipelines import actions
from clusters.pipelines.access import pipeline_for, pipelines_for
from clusters.pipelines.api import StageStatus, run_status
from clusters.pipelines.graph import ENDED, RUNNING, before
from clusters.pipelines.layout import Box, Drawing, draw
from clusters.pipelines.manifest import PipelineSpec
from clusters.pipelines.models import Pipeline, PipelineRun
from clusters.pipelines.pages.text import write_spec
from portal.access import OPERATE, may
from portal.pages.appcodes import attempt, person
from portal.pages.layout import listed, page_of, words

RUNS = 20


@dataclass(frozen=True)
class Stage:
    """A stage on the page: its place, its state (None before the first run) and cost."""

    box: Box
    waits_for: tuple[str, ...]
    when: str
    status: StageStatus | None
    can_retry: bool

    @property
    def name(self) -> str:
        return self.box.name

    @property
    def state(self) -> str:
        """The phase; while it runs, that of its run."""
        if self.status is None:
            return ""
        return self.status.run_phase or "Running" if self.status.phase == "Running" else self.status.phase

    @property
    def why(self) -> str:
        """The message, where it adds to the state."""
        plain = self.status is None or (self.status.phase == "Succeeded" and not self.status.reused)
        return "" if plain or self.status is None else self.status.message

    @property
    def cost(self) -> Decimal:
        return Decimal(self.status.cost.amount) if self.status else Decimal(0)


@dataclass(frozen=True)
class Page:
    pipeline: Pipeline
    run: PipelineRun | None
    drawing: Drawing
    stages: list[Stage]
    cost: Decimal
    gpu_seconds: int
    may_operate: bool

    @property
    def url(self) -> str:
        return reverse("pipeline", args=[self.pipeline.appcode.code, self.pipeline.name])

    @property
    def is_latest(self) -> bool:
        return self.run is None or self.run.pk == self.pipeline.current_run_id

    @property
    def query(self) -> str:
        return "" if self.is_latest or self.run is None else f"?run={self.run.number}"

    @property
    def lives(self) -> bool:
        return self.run is not None and self.run.finished_at is None


def shown(request: HttpRequest, appcode: str, name: str) -> Page:
    user = person(request)
    pipeline = pipeline_for(user, appcode, name)
    run, number = pipeline.current_run, words(request, "run")
    if number.isdecimal() and len(number) < 9:
        run = pipeline.runs.select_related("created_by").filter(number=int(number)).first() or run
    spec = PipelineSpec.stored(run.spec if run else pipeline.spec)
    status = run_status(run) if run else None
    by_name = {stage.name: stage for stage in status.stages} if status else {}
    may_operate, nodes = may(user, pipeline.appcode, OPERATE), spec.nodes
    drawing = draw(nodes)
    # An ended stage can be retried unless a later one is running.
    busy = {name for each in by_name.values() if each.phase == RUNNING for name in before(each.name, nodes)}
    latest = run is not None and run.pk == pipeline.current_run_id and not (run.cancelled_at and not run.finished_at)
    latest = latest and run is not None and run.phase != PipelineRun.Phase.PAUSED
    stages = [
        Stage(
            box, node.waits_for, node.when, found := by_name.get(box.name),
            can_retry=bool(found and may_operate and latest and found.phase in ENDED and box.name not in busy),
        )
        for box, node in zip(drawing.boxes, nodes, strict=True)
    ]  # fmt: skip
    cost = Decimal(status.cost.amount) if status else Decimal(0)
    return Page(pipeline, run, drawing, stages, cost, status.gpu_seconds if status else 0, may_operate)


@require_safe
def pipelines(request: HttpRequest) -> HttpResponse:
    found, following = page_of(request, listed(request, pipelines_for(person(request)), "name"), "-id")
    context = {"rows": found, "next_cursor": following, "searched": words(request)}
    return render(request, "clusters/pipelines/pipelines.html", context)


@require_safe
def pipeline(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    page = shown(request, appcode, name)
    runs = page.pipeline.runs.select_related("created_by").defer("spec")[:RUNS]
    spec = PipelineSpec.stored(page.pipeline.spec)
    context = {"page": page, "runs": runs, "manifest": write_spec(spec, appcode)}
    return render(request, "clusters/pipelines/pipeline.html", context)


@require_safe
@conditional_page
def progress(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    return render(request, "clusters/pipelines/_pipeline.html", {"page": shown(request, appcode, name)})


def _verb(do: Callable[..., Any]) -> Callable[..., HttpResponse]:
    """The view of a button that calls `do(pipeline, acting_user=…)`, with what else its address names."""

    @require_POST
    def act(request: HttpRequest, appcode: str, name: str, **said: str) -> HttpResponse:
        found = pipeline_for(person(request), appcode, name, OPERATE)
        attempt(request, lambda: do(found, acting_user=person(request), **said))
        return redirect("pipeline", appcode, name)

    return act


def run(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    do = partial(actions.run_pipeline, fresh="fresh" in request.GET, newest="newest" in request.GET)
    return _verb(do)(request, appcode, name)


pause, resume = _verb(actions.pause_pipeline), _verb(actions.resume_pipeline)
cancel, retry = _verb(actions.cancel_pipeline), _verb(actions.retry_stage)


@require_POST
def delete(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    actions.delete_pipeline(found, acting_user=person(request))
    messages.success(request, f"The pipeline {name} is deleted.")
    return redirect("pipelines")
