"""REST: benchmarks and what they have measured."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.api.documents import Money, money
from clusters.benchmarks import actions
from clusters.benchmarks.access import benchmark_for, benchmarks_for, benchmarks_in
from clusters.benchmarks.manifest import BenchmarkManifest, BenchmarkSpec
from clusters.benchmarks.shown import Shown, Sums, measurements_of, sums_of
from clusters.models import Benchmark
from portal.access import OPERATE, VIEW, Capability, appcode_for
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, page, search
from portal.api.views import person
from portal.manifests import parse

EXAMPLE = OpenApiExample(
    "One, two and four tasks",
    request_only=True,
    value={
        "kind": "benchmark",
        "metadata": {"name": "night", "appcode": "ops-demo"},
        "spec": {
            "image": "tensorflow-2-21", "flavor": "middle-1-gpu", "serverFlavor": "middle",
            "strategies": ["all-reduce", "parameter-server"], "data": ["synthetic"], "counts": [1, 2, 4],
        },
    },
)  # fmt: skip


class StepAnswer(Answer):
    """Seconds of the median step: until its batch was there, then until the gradients were, and what it waited for others."""

    input: float
    compute: float
    communication: float


class WorkerAnswer(StepAnswer):
    role: str
    index: int
    node: str


class OutlierAnswer(Answer):
    role: str
    index: int
    node: str
    percent: float = Field(
        description="How far its own rate, without the others, is above (+) or below (-) the median."
    )


class MeasurementAnswer(Answer):
    number: int = Field(description="From 1 on, in the order in which they are made.")
    strategy: str
    data: str
    count: int = Field(description="Tasks that compute.")
    phase: Literal["Queued", "Starting", "Running", "Succeeded", "Failed", "Stopped"]
    message: str
    cluster: str = Field(description="The cluster that it is, with its logs, metrics and cost.")
    cloud: str
    finished: dt.datetime | None
    global_step_per_second: float | None
    examples_per_second: float | None
    spread: float | None = Field(
        description="Of the ten windows: the fastest less the slowest, as a part of their median."
    )
    efficiency: float | None = Field(
        description="Examples a second of one task, as a part of those of one task at the least count; 1 is linear."
    )
    step: StepAnswer | None = Field(description="The median of its workers.")
    workers: list[WorkerAnswer]
    outliers: list[OutlierAnswer] = Field(description="Workers further than a tenth from the median.")
    replicas: int | None
    tensorflow: str | None
    device: str | None
    before: str = Field(
        examples=["7 % slower than on 3 May 2026 with tensorflow-2-20."],
        description="The last one like it, in a sentence.",
    )


class BenchmarkStatus(Answer):
    phase: Literal["Running", "Paused", "Succeeded", "Failed", "Stopped"]
    message: str
    measurements: int = Field(description="How many there are to be.")
    ended: int
    created: dt.datetime
    created_by: str | None
    finished: dt.datetime | None
    gpu_seconds: int
    cost: Money


class BenchmarkShort(BenchmarkManifest):
    status: BenchmarkStatus


class BenchmarkPage(Answer):
    items: list[BenchmarkShort]
    next: str | None


class BenchmarkResults(BenchmarkStatus):
    results: list[MeasurementAnswer]


class BenchmarkDocument(BenchmarkManifest):
    """A benchmark as it is answered: the manifest, and what was measured."""

    status: BenchmarkResults


class AllBenchmarks(APIView):
    @extend_schema(
        operation_id="benchmarks_list_all",
        summary="All benchmarks that I may see, newest first",
        parameters=[*PAGE_PARAMETERS, SEARCH_PARAMETER],
        responses=BenchmarkPage,
    )
    def get(self, request: Request) -> Response:
        return _page(request, benchmarks_for(person(request)))


class AppcodeBenchmarks(APIView):
    @extend_schema(
        operation_id="benchmarks_list",
        summary="The benchmarks of an appcode, newest first",
        parameters=[*PAGE_PARAMETERS, SEARCH_PARAMETER],
        responses=BenchmarkPage,
    )
    def get(self, request: Request, code: str) -> Response:
        return _page(request, benchmarks_in(person(request), code))

    @extend_schema(
        operation_id="benchmarks_create",
        summary="Create a benchmark and start its first measurement",
        request=BenchmarkManifest,
        responses={201: BenchmarkDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = parse(BenchmarkManifest, request.data, appcode=code)
        made = actions.create_benchmark(manifest, acting_user=person(request), appcode=appcode)
        address = request.build_absolute_uri(f"{request.path}/{made.name}")
        return Response(_document(made), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneBenchmark(APIView):
    @extend_schema(
        operation_id="benchmarks_read", summary="A benchmark, and what it has measured", responses=BenchmarkDocument
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(_document(_find(request, code, name)))

    @extend_schema(
        operation_id="benchmarks_delete",
        summary="Delete a benchmark with its results and its clusters",
        description="What runs ends. Later ones are not compared with it any more.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        actions.delete_benchmark(_find(request, code, name, OPERATE), acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


@dataclass(frozen=True)
class Verb:
    name: str
    do: Callable[..., Benchmark]
    summary: str
    description: str


VERBS = (
    Verb(
        "pause",
        actions.pause_benchmark,
        "Start no more measurements",
        "The one that is being made goes on. 409 for a benchmark that is over.",
    ),
    Verb(
        "resume",
        actions.resume_benchmark,
        "Go on with a paused benchmark",
        "From now on in your name. 409 for one that is over.",
    ),
    Verb(
        "cancel",
        actions.cancel_benchmark,
        "End a benchmark and the measurement that is being made",
        "Those before stay. Repeating it changes nothing.",
    ),
)


def verb_view(verb: Verb) -> type[APIView]:
    class Act(APIView):
        @extend_schema(
            operation_id=f"benchmarks_{verb.name}",
            summary=verb.summary,
            description=verb.description,
            request=None,
            responses={202: BenchmarkDocument},
        )
        def post(self, request: Request, code: str, name: str) -> Response:
            found = verb.do(_find(request, code, name, OPERATE), acting_user=person(request))
            return Response(_document(found), status=status.HTTP_202_ACCEPTED)

    return Act


def _find(request: Request, code: str, name: str, capability: Capability = VIEW) -> Benchmark:
    return benchmark_for(person(request), code, name, capability)


def _page(request: Request, rows: QuerySet[Benchmark]) -> Response:
    answer = page(request, search(request, rows, "name"), order="-id", render=lambda row: row)
    answer.data["items"] = _shorts(answer.data["items"])
    return answer


def _shorts(rows: Sequence[Benchmark]) -> list[dict[str, Any]]:
    sums = sums_of([row.pk for row in rows], timezone.now())
    return [_said(row, BenchmarkStatus(**_facts(row, sums[row.pk]))) for row in rows]


def _document(benchmark: Benchmark) -> dict[str, Any]:
    sums = sums_of([benchmark.pk], timezone.now())[benchmark.pk]
    results = [_measurement(each) for each in measurements_of(benchmark)]
    return _said(benchmark, BenchmarkResults(**_facts(benchmark, sums), results=results))


def _said(benchmark: Benchmark, found: BenchmarkStatus) -> dict[str, Any]:
    return {
        "kind": "benchmark",
        "metadata": {"name": benchmark.name, "appcode": benchmark.appcode.code},
        "spec": BenchmarkSpec.model_validate(benchmark.spec).model_dump(mode="json", by_alias=True),
        "status": found.json_value(),
    }


def _facts(benchmark: Benchmark, sums: Sums) -> dict[str, Any]:
    return {
        "phase": benchmark.phase, "message": benchmark.message,
        "measurements": len(BenchmarkSpec.model_validate(benchmark.spec).points), "ended": sums.ended,
        "created": benchmark.created_at, "finished": benchmark.finished_at,
        "created_by": benchmark.created_by.username if benchmark.created_by else None,
        "gpu_seconds": sums.gpu_seconds, "cost": money(sums.cost),
    }  # fmt: skip


def _measurement(shown: Shown) -> MeasurementAnswer:
    row, result = shown.row, shown.result
    return MeasurementAnswer(
        number=row.number, strategy=row.strategy, data=row.data, count=row.count, phase=shown.phase, message=shown.message,
        cluster=shown.cluster, cloud=row.cloud, finished=row.finished_at,
        global_step_per_second=result.global_step_per_second if result else None,
        examples_per_second=result.examples_per_second if result else None,
        spread=result.spread if result else None,
        efficiency=shown.efficiency,
        step=StepAnswer(**result.step.model_dump(include=set(StepAnswer.model_fields))) if result else None,
        workers=[WorkerAnswer(**each.model_dump()) for each in (result.workers if result else ())],
        outliers=[
            OutlierAnswer(role=each.worker.role, index=each.worker.index, node=each.worker.node, percent=each.percent)
            for each in shown.outliers
        ],
        replicas=result.replicas if result else None,
        tensorflow=result.tensorflow if result else None,
        device=result.device if result else None,
        before=shown.before,
    )  # fmt: skip
