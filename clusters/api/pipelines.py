"""REST: pipelines and their runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.api.documents import MILLIONTH, Money
from clusters.models import Pipeline, PipelineRun, StageRun
from clusters.pipelines import actions
from clusters.pipelines.access import pipeline_for, pipeline_run_for, pipelines_for, stages_of
from clusters.pipelines.manifest import PipelineManifest, PipelineMetadata, PipelineSpec
from clusters.sweeps.sums import Sums, sums_of
from portal.access import OPERATE, VIEW, Capability, appcode_for
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, page, search
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
    """How far a stage is. Waiting for others, Running as soon as its run is made (whatever phase that has), or how it ended."""

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
    started_by: str | None
    finished: dt.datetime | None


class PipelineRunStatus(PipelineRunShort):
    """A run of a pipeline with its stages. Seconds and cost are those of all that it started, and grow while it goes on."""

    stages: list[StageStatus]
    gpu_seconds: int
    cost: Money


class PipelineRunPage(Answer):
    items: list[PipelineRunShort]
    next: str | None


class PipelineShort(Answer):
    kind: Literal["pipeline"] = "pipeline"
    metadata: PipelineMetadata
    status: PipelineRunShort | None = Field(description="Its latest run; null before there is one.")


class PipelinePage(Answer):
    items: list[PipelineShort]
    next: str | None


class PipelineDocument(PipelineManifest):
    """A pipeline as it is answered: the manifest with the state of its latest run, null before there is one."""

    status: PipelineRunStatus | None


class RunOptions(Strict):
    """How it is run."""

    fresh: bool = Field(default=False, description="Run all stages, also those of which nothing has changed.")
    newest: bool = Field(default=False, description="Of code in Git: from the commits that refs have by now.")


class Retry(Strict):
    stage: str = Field(examples=["train"])


class AllPipelines(APIView):
    @extend_schema(
        operation_id="pipelines_list_all",
        summary="All pipelines that I may see, newest first",
        parameters=[*PAGE_PARAMETERS, SEARCH_PARAMETER],
        responses=PipelinePage,
    )
    def get(self, request: Request) -> Response:
        rows = search(request, pipelines_for(person(request)), "name", "appcode__code")
        return page(request, rows, order="-id", render=_short)


class AppcodePipelines(APIView):
    @extend_schema(
        operation_id="pipelines_list",
        summary="The pipelines of an appcode, newest first",
        parameters=[*PAGE_PARAMETERS, SEARCH_PARAMETER],
        responses=PipelinePage,
    )
    def get(self, request: Request, code: str) -> Response:
        rows = pipelines_for(person(request)).filter(appcode=appcode_for(person(request), code))
        return page(request, search(request, rows, "name"), order="-id", render=_short)

    @extend_schema(
        operation_id="pipelines_create",
        summary="Define a pipeline",
        description="Nothing runs yet; `…/run` runs it. All that can be judged before is judged now, at the field of its stage.",
        request=PipelineManifest,
        responses={201: PipelineDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = parse(PipelineManifest, request.data, appcode=code)
        made = actions.create_pipeline(manifest, appcode, acting_user=person(request))
        address = request.build_absolute_uri(f"{request.path}/{made.name}")
        return Response(pipeline_document(made), status=status.HTTP_201_CREATED, headers={"Location": address})


class OnePipeline(APIView):
    @extend_schema(operation_id="pipelines_read", summary="A pipeline and its latest run", responses=PipelineDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(pipeline_document(_find(request, code, name)))

    @extend_schema(
        operation_id="pipelines_change",
        summary="Replace the definition",
        description="A living run keeps what it was started with. Sending what is there already changes nothing.",
        request=PipelineManifest,
        responses=PipelineDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name, OPERATE)
        manifest = parse(PipelineManifest, request.data, appcode=code, name=name)
        return Response(pipeline_document(actions.change_pipeline(found, manifest, acting_user=person(request))))

    @extend_schema(
        operation_id="pipelines_delete",
        summary="Delete a pipeline, its history and the clusters of its stages",
        description="What runs ends. Data in datastores stays.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        actions.delete_pipeline(_find(request, code, name, OPERATE), acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class RunPipeline(APIView):
    @extend_schema(
        operation_id="pipelines_run",
        summary="Start the next run",
        description="409 while a run is alive. A stage of which nothing has changed since it last succeeded is not run again: "
        "the same spec, the same program, the same input, and its output still there.",
        request=RunOptions,
        responses={202: PipelineRunStatus},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name, OPERATE)
        options = parse(RunOptions, request.data or {})
        run = actions.run_pipeline(found, acting_user=person(request), fresh=options.fresh, newest=options.newest)
        return _accepted(run)


class PausePipeline(APIView):
    @extend_schema(
        operation_id="pipelines_pause",
        summary="Start no more stages of the run",
        description="Those that run go on. 409 where no run is alive.",
        request=None,
        responses={202: PipelineRunStatus},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        return _accepted(actions.pause_pipeline(_find(request, code, name, OPERATE), acting_user=person(request)))


class ResumePipeline(APIView):
    @extend_schema(
        operation_id="pipelines_resume",
        summary="Start stages again",
        description="From now on in your name. 409 where no run is alive.",
        request=None,
        responses={202: PipelineRunStatus},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        return _accepted(actions.resume_pipeline(_find(request, code, name, OPERATE), acting_user=person(request)))


class CancelPipeline(APIView):
    @extend_schema(
        operation_id="pipelines_cancel",
        summary="End the run and all its stages",
        description="Outputs are stored first. Repeating it changes nothing.",
        request=None,
        responses={202: PipelineRunStatus},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        return _accepted(actions.cancel_pipeline(_find(request, code, name, OPERATE), acting_user=person(request)))


class RetryStage(APIView):
    @extend_schema(
        operation_id="pipelines_retry",
        summary="Run a stage of the latest run again, and all that come after it",
        description="As they were defined when that run began. 409 while one of them is under way.",
        request=Retry,
        responses={202: PipelineRunStatus},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name, OPERATE)
        wanted = parse(Retry, request.data)
        return _accepted(actions.retry_stage(found, wanted.stage, acting_user=person(request)))


class PipelineRuns(APIView):
    @extend_schema(
        operation_id="pipeline_runs_list",
        summary="The runs of a pipeline, newest first",
        parameters=PAGE_PARAMETERS,
        responses=PipelineRunPage,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        rows = _find(request, code, name).runs.select_related("created_by").defer("spec")
        return page(request, rows, order="-number", render=lambda run: PipelineRunShort(**_facts(run)).json_value())


class OnePipelineRun(APIView):
    @extend_schema(
        operation_id="pipeline_runs_read", summary="A run of a pipeline with its stages", responses=PipelineRunStatus
    )
    def get(self, request: Request, code: str, name: str, run: int) -> Response:
        return Response(run_status(pipeline_run_for(person(request), code, name, run)).json_value())


def pipeline_document(pipeline: Pipeline) -> dict[str, Any]:
    run = pipeline.current_run
    return {
        "kind": "pipeline",
        "metadata": {"name": pipeline.name, "appcode": pipeline.appcode.code},
        "spec": PipelineSpec.model_validate(pipeline.spec).model_dump(mode="json", by_alias=True),
        "status": run_status(run).json_value() if run else None,
    }


def run_status(run: PipelineRun) -> PipelineRunStatus:
    now = timezone.now()
    rows = stages_of([run])[run.pk]
    latest = {row.stage: row for row in rows}
    sums = sums_of([row.sweep.pk for row in rows if row.sweep], now)
    stages = [_stage(row, [each for each in rows if each.stage == name], sums, now) for name, row in latest.items()]
    seconds, cost = _used(rows, sums, now)
    return PipelineRunStatus(**_facts(run), stages=stages, gpu_seconds=seconds, cost=cost)


def _stage(row: StageRun, attempts: Sequence[StageRun], sums: dict[int, Sums], now: dt.datetime) -> StageStatus:
    seconds, cost = _used(attempts, sums, now)
    return StageStatus(
        name=row.stage, phase=row.phase, message=row.message,
        sweep=row.sweep.name if row.sweep else None,
        cluster=row.run.cluster.name if row.run and row.run.cluster.deleted_at is None else None,
        run=row.run.number if row.run else None,
        run_phase=row.run.phase if row.run else None, reused=row.reused, attempt=row.attempt, started=row.started_at,
        finished=row.finished_at, gpu_seconds=seconds, cost=cost,
    )  # fmt: skip


def _used(rows: Sequence[StageRun], sums: dict[int, Sums], now: dt.datetime) -> tuple[int, Money]:
    """GPU-seconds and cost of what these have started themselves."""
    runs = [row.run for row in rows if row.run and not row.reused]
    searched = [sums[row.sweep.pk] for row in rows if row.sweep]
    cost = sum((run.cost_at(now) for run in runs), Decimal(0)) + sum((each.cost for each in searched), Decimal(0))
    money = Money(amount=f"{cost.quantize(MILLIONTH):f}", currency=settings.CURRENCY)
    return sum(run.gpu_seconds_at(now) for run in runs) + sum(each.gpu_seconds for each in searched), money


def _facts(run: PipelineRun) -> dict[str, Any]:
    return {
        "run": run.number, "phase": run.phase, "message": run.message, "cancelled": run.cancelled_at is not None,
        "started": run.created_at, "started_by": run.created_by.username if run.created_by else None,
        "finished": run.finished_at,
    }  # fmt: skip


def _short(pipeline: Pipeline) -> dict[str, Any]:
    run = pipeline.current_run
    return {
        "kind": "pipeline",
        "metadata": {"name": pipeline.name, "appcode": pipeline.appcode.code},
        "status": PipelineRunShort(**_facts(run)).json_value() if run else None,
    }


def _find(request: Request, code: str, name: str, capability: Capability = VIEW) -> Pipeline:
    return pipeline_for(person(request), code, name, capability)


def _accepted(run: PipelineRun) -> Response:
    return Response(run_status(run).json_value(), status=status.HTTP_202_ACCEPTED)
