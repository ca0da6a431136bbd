"""REST: pipelines and their runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Literal

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.pipelines import actions
from clusters.pipelines.access import PIPELINES, pipeline_for, pipeline_run_for, stages_of, used_by
from clusters.pipelines.manifest import PipelineManifest, PipelineMetadata, PipelineSpec
from clusters.pipelines.models import Pipeline, PipelineRun, StageRun
from clusters.sweeps.totals import Sums, sums_of
from portal.access import OPERATE
from portal.api.documents import Answer, Who, page_of
from portal.api.money import Money, money
from portal.api.objects import all_view, object_views
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page, search
from portal.api.verbs import Kind, Verb
from portal.api.views import person
from portal.manifests import Strict, parse

EXAMPLE = OpenApiExample(
    "Prepare, train, and tell when it fails",
    request_only=True,
    value={
        "kind": "pipeline",
        "metadata": {"name": "nightly", "appcode": "ops-demo"},
        "spec": {
            "stages": [
                {
                    "name": "prepare",
                    "spec": {
                        "image": "tensorflow-2-21", "command": "python prepare.py", "input": "demo-input",
                        "output": "demo-output", "roles": {"master": {"flavor": "middle"}},
                    },
                },
                {
                    "name": "train",
                    "retries": 1,
                    "spec": {
                        "image": "tensorflow-2-21", "command": "python train.py", "input": {"from": "prepare"},
                        "output": "demo-output", "roles": {"master": {"flavor": "middle-1-gpu"}},
                    },
                },
                {
                    "name": "tell",
                    "after": ["train"],
                    "when": "failed",
                    "spec": {
                        "image": "tensorflow-2-21", "command": "python tell.py", "roles": {"master": {"flavor": "middle"}},
                    },
                },
            ]
        },
    },
)  # fmt: skip
Phase = Literal["Running", "Paused", "Succeeded", "Failed", "Stopped"]


class StageStatus(Answer):
    """The progress of a stage. Waiting for other stages, Running once its run exists (in whatever phase), or its result."""

    name: str
    phase: Literal["Waiting", "Running", "Succeeded", "Failed", "Stopped", "Skipped"]
    message: str = Field(description="A sentence: why it was skipped, used again, or has failed.")
    cluster: str | None = Field(
        description="The cluster that is the stage; null before it has started, and once it was deleted."
    )
    run: int | None = Field(description="Its run.")
    sweep: str | None = Field(description="The sweep that the stage is.")
    run_phase: str | None = Field(examples=["Queued"])
    reused: bool = Field(description="Nothing had changed, so that earlier run was used again, which costs nothing.")
    attempt: int = Field(description="From 1 on; grows when it is tried again.")
    started: dt.datetime | None
    finished: dt.datetime | None
    gpu_seconds: int = Field(description="Of all its attempts in this run of the pipeline.")
    cost: Money


class PipelineRunShort(Answer):
    """A run of a pipeline."""

    run: int
    phase: Phase
    message: str
    cancelled: bool
    started: dt.datetime
    started_by: Who
    finished: dt.datetime | None


class PipelineRunStatus(PipelineRunShort):
    """A run of a pipeline with its stages. Seconds and cost cover everything that it started, and grow while it is live."""

    stages: list[StageStatus]
    gpu_seconds: int
    cost: Money


PipelineRunPage = page_of("PipelineRunPage", PipelineRunShort)


class PipelineShort(Answer):
    kind: Literal["pipeline"] = "pipeline"
    metadata: PipelineMetadata
    status: PipelineRunShort | None = Field(description="Its latest run; null before there is one.")


PipelinePage = page_of("PipelinePage", PipelineShort)


class PipelineDocument(PipelineManifest):
    """A pipeline: its manifest, and the status of its latest run (null before the first)."""

    status: PipelineRunStatus | None


class RunOptions(Strict):
    """Options of the run."""

    fresh: bool = Field(default=False, description="Run all stages, also those of which nothing has changed.")
    newest: bool = Field(default=False, description="Of code in Git: from the commits that refs have by now.")


class Retry(Strict):
    stage: str = Field(examples=["train"])


class RunPipeline(APIView):
    @operation("pipelines_run", {202: PipelineRunStatus}, request=RunOptions)
    def post(self, request: Request, code: str, name: str) -> Document:
        """Start the next run

        409 while a run is alive. A stage of which nothing has changed since it last succeeded is not run again: the
        same spec, the same program, the same input, and its output still there."""
        found = pipeline_for(person(request), code, name, OPERATE)
        options = parse(RunOptions, request.data or {})
        run = actions.run_pipeline(found, acting_user=person(request), fresh=options.fresh, newest=options.newest)
        return run_status(run).json_value()


VERBS = (
    Verb(
        "pause", actions.pause_pipeline, "Start no more stages of the run",
        "Those that run go on. 409 where no run is alive.",
    ),
    Verb(
        "resume", actions.resume_pipeline, "Start stages again",
        "From now on in your name. 409 where no run is alive.",
    ),
    Verb(
        "cancel", actions.cancel_pipeline, "End the run and all its stages",
        "Outputs are stored first. Repeating it changes nothing.",
    ),
)  # fmt: skip


class RetryStage(APIView):
    @operation("pipelines_retry", {202: PipelineRunStatus}, request=Retry)
    def post(self, request: Request, code: str, name: str) -> Document:
        """Run a stage of the latest run again, and all that come after it

        As they were defined when that run began. 409 while one of them is under way."""
        found = pipeline_for(person(request), code, name, OPERATE)
        wanted = parse(Retry, request.data)
        return run_status(actions.retry_stage(found, wanted.stage, acting_user=person(request))).json_value()


class PipelineRuns(APIView):
    @operation("pipeline_runs_list", PipelineRunPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str, name: str) -> Response:
        """The runs of a pipeline, newest first"""
        rows = pipeline_for(person(request), code, name).runs.select_related("created_by").defer("spec")
        return page(request, rows, order="-number", render=lambda run: PipelineRunShort(**_facts(run)).json_value())


class OnePipelineRun(APIView):
    @operation("pipeline_runs_read", PipelineRunStatus)
    def get(self, request: Request, code: str, name: str, run: int) -> Document:
        """A run of a pipeline with its stages"""
        return run_status(pipeline_run_for(person(request), code, name, run)).json_value()


def pipeline_document(pipeline: Pipeline) -> dict[str, Any]:
    run = pipeline.current_run
    return {
        "kind": "pipeline",
        "metadata": {"name": pipeline.name, "appcode": pipeline.appcode.code},
        "spec": PipelineSpec.known(pipeline.spec),
        "status": run_status(run).json_value() if run else None,
    }


def run_status(run: PipelineRun) -> PipelineRunStatus:
    now = timezone.now()
    rows = stages_of([run])[run.pk]
    latest = {row.stage: row for row in rows}
    sums = sums_of([row.sweep.pk for row in rows if row.sweep], now)
    stages = [_stage(row, [each for each in rows if each.stage == name], sums, now) for name, row in latest.items()]
    seconds, cost = used_by(rows, sums, now)
    return PipelineRunStatus(**_facts(run), stages=stages, gpu_seconds=seconds, cost=money(cost))


def _stage(row: StageRun, attempts: Sequence[StageRun], sums: dict[int, Sums], now: dt.datetime) -> StageStatus:
    seconds, cost = used_by(attempts, sums, now)
    return StageStatus.of(
        row, name=row.stage,
        sweep=row.sweep.name if row.sweep else None,
        cluster=row.run.cluster.name if row.run and row.run.cluster.deleted_at is None else None,
        run=row.run.number if row.run else None,
        run_phase=row.run.phase if row.run else None, started=row.started_at, finished=row.finished_at,
        gpu_seconds=seconds, cost=money(cost),
    )  # fmt: skip


def _facts(run: PipelineRun) -> dict[str, Any]:
    return {
        "run": run.number, "phase": run.phase, "message": run.message, "cancelled": run.cancelled_at is not None,
        "started": run.created_at, "started_by": run.created_by,
        "finished": run.finished_at,
    }  # fmt: skip


def _short(pipeline: Pipeline) -> dict[str, Any]:
    run = pipeline.current_run
    return {
        "kind": "pipeline",
        "metadata": {"name": pipeline.name, "appcode": pipeline.appcode.code},
        "status": PipelineRunShort(**_facts(run)).json_value() if run else None,
    }


def _latest_run(pipeline: Pipeline) -> Document:
    run = pipeline.current_run
    assert run is not None
    return run_status(run).json_value()


def _page(request: Request, rows: QuerySet[Pipeline], *columns: str) -> Response:
    return page(request, search(request, rows, "name", *columns), order="-id", render=_short)


AllPipelines = all_view(PIPELINES, PipelinePage, lambda request, rows: _page(request, rows, "appcode__code"))
AppcodePipelines, OnePipeline = object_views(
    PIPELINES, PipelineManifest, PipelineDocument, PipelinePage,
    render=pipeline_document, listing=_page, example=EXAMPLE,
    create=actions.create_pipeline, change=actions.change_pipeline, delete=actions.delete_pipeline,
    texts={
        "create": "Define a pipeline\n\n"
        "Nothing runs yet; `…/run` runs it. All that can be judged before is judged now, at the field of its "
        "stage.",
        "read": "A pipeline and its latest run",
        "change": "Replace the definition\n\n"
        "A living run keeps what it was started with. Sending what is there already changes nothing.",
        "delete": "Delete a pipeline, its history and the clusters of its stages\n\n"
        "What runs ends. Data in datastores stays.",
    },
)  # fmt: skip
KIND = Kind("pipelines", pipeline_for, PipelineRunStatus, _latest_run)
