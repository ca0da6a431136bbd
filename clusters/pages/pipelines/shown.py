"""Pipelines: the list, one of them with its graph, and what is done with it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import conditional_page, require_POST, require_safe

from clusters.api.pipelines import StageStatus, run_status
from clusters.models import Pipeline, PipelineRun
from clusters.pages.pipelines.written import write_spec
from clusters.pipelines import actions
from clusters.pipelines.access import pipeline_for, pipelines_for
from clusters.pipelines.drawing import Box, Drawing, draw
from clusters.pipelines.graph import ENDED, RUNNING, before
from clusters.pipelines.manifest import PipelineSpec
from portal.access import OPERATE, may
from portal.errors import Conflict, Invalid
from portal.pages.appcodes import person
from portal.pages.layout import matching, page_of, selected_appcode, words

RUNS = 20


@dataclass(frozen=True)
class Stage:
    """A stage on the page: where it stands, how far it is (None before the first run) and what it has cost."""

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
        """While it runs, the phase of its run."""
        if self.status is None:
            return ""
        return self.status.run_phase or "Running" if self.status.phase == "Running" else self.status.phase

    @property
    def why(self) -> str:
        """What its state does not say."""
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
    spec = PipelineSpec.model_validate(run.spec if run else pipeline.spec)
    status = run_status(run) if run else None
    by_name = {stage.name: stage for stage in status.stages} if status else {}
    may_operate, nodes = may(user, pipeline.appcode, OPERATE), spec.nodes
    drawing = draw(nodes)
    # What has ended may run again unless something behind it is under way.
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
    user, code = person(request), selected_appcode(request)
    rows = pipelines_for(user)
    rows = matching(rows.filter(appcode__code=code) if code else rows, words(request), "name")
    found, following = page_of(request, rows, "-id")
    context = {"rows": found, "next_cursor": following, "searched": words(request)}
    return render(request, "clusters/pipelines.html", context)


@require_safe
def pipeline(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    page = shown(request, appcode, name)
    runs = page.pipeline.runs.select_related("created_by").defer("spec")[:RUNS]
    spec = PipelineSpec.model_validate(page.pipeline.spec)
    context = {"page": page, "runs": runs, "manifest": write_spec(spec, appcode)}
    return render(request, "clusters/pipeline.html", context)


@require_safe
@conditional_page
def progress(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The live part: state, cost, graph and stages."""
    return render(request, "clusters/_pipeline.html", {"page": shown(request, appcode, name)})


@require_POST
def run(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    fresh, newest = "fresh" in request.GET, "newest" in request.GET
    return _act(
        request, found, lambda: actions.run_pipeline(found, acting_user=person(request), fresh=fresh, newest=newest)
    )


@require_POST
def pause(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    return _act(request, found, lambda: actions.pause_pipeline(found, acting_user=person(request)))


@require_POST
def resume(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    return _act(request, found, lambda: actions.resume_pipeline(found, acting_user=person(request)))


@require_POST
def cancel(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    return _act(request, found, lambda: actions.cancel_pipeline(found, acting_user=person(request)))


@require_POST
def retry(request: HttpRequest, appcode: str, name: str, stage: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    return _act(request, found, lambda: actions.retry_stage(found, stage, acting_user=person(request)))


@require_POST
def delete(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    actions.delete_pipeline(found, acting_user=person(request))
    messages.success(request, f"The pipeline {name} is deleted.")
    return redirect("pipelines")


def _act(request: HttpRequest, found: Pipeline, do: Any) -> HttpResponse:
    try:
        do()
    except Conflict as conflict:
        messages.error(request, str(conflict))
    except Invalid as invalid:
        messages.error(request, " ".join(error.message for error in invalid.errors))
    return redirect("pipeline", found.appcode.code, found.name)
