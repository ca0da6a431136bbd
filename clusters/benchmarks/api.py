"""REST: benchmarks and their measurements."""

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

from clusters.benchmarks import actions
from clusters.benchmarks.access import BENCHMARKS, benchmark_for
from clusters.benchmarks.manifest import BenchmarkManifest, BenchmarkSpec
from clusters.benchmarks.models import Benchmark
from clusters.benchmarks.summary import Shown, Sums, measurements_of, sums_of
from portal.api.documents import Answer, Who, page_of
from portal.api.money import Money, money
from portal.api.objects import all_view, object_views
from portal.api.pagination import page_together, search
from portal.api.verbs import Kind, Verb

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
    """Seconds of the median step: waiting for its batch, computing the gradients, and waiting for other tasks."""

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
    created_by: Who
    finished: dt.datetime | None
    gpu_seconds: int
    cost: Money


class BenchmarkShort(BenchmarkManifest):
    status: BenchmarkStatus


BenchmarkPage = page_of("BenchmarkPage", BenchmarkShort)


class BenchmarkResults(BenchmarkStatus):
    results: list[MeasurementAnswer]


class BenchmarkDocument(BenchmarkManifest):
    """A benchmark: its manifest and its measurements."""

    status: BenchmarkResults


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


def _page(request: Request, rows: QuerySet[Benchmark]) -> Response:
    return page_together(request, search(request, rows, "name"), order="-id", render=_shorts)


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
        "spec": BenchmarkSpec.known(benchmark.spec),
        "status": found.json_value(),
    }


def _facts(benchmark: Benchmark, sums: Sums) -> dict[str, Any]:
    return {
        "phase": benchmark.phase, "message": benchmark.message,
        "measurements": len(BenchmarkSpec.stored(benchmark.spec).points), "ended": sums.ended,
        "created": benchmark.created_at, "finished": benchmark.finished_at,
        "created_by": benchmark.created_by,
        "gpu_seconds": sums.gpu_seconds, "cost": money(sums.cost),
    }  # fmt: skip


def _measurement(shown: Shown) -> MeasurementAnswer:
    row, result = shown.row, shown.result
    return MeasurementAnswer.of(
        row, phase=shown.phase, message=shown.message, cluster=shown.cluster, finished=row.finished_at,
        global_step_per_second=result.global_step_per_second if result else None,
        examples_per_second=result.examples_per_second if result else None,
        spread=result.spread if result else None,
        efficiency=shown.efficiency,
        step=StepAnswer.of(result.step) if result else None,
        workers=[WorkerAnswer.of(each) for each in (result.workers if result else ())],
        outliers=[OutlierAnswer.of(each.worker, percent=each.percent) for each in shown.outliers],
        replicas=result.replicas if result else None,
        tensorflow=result.tensorflow if result else None,
        device=result.device if result else None,
        before=shown.before,
    )  # fmt: skip


AllBenchmarks = all_view(BENCHMARKS, BenchmarkPage, _page)
AppcodeBenchmarks, OneBenchmark = object_views(
    BENCHMARKS, BenchmarkManifest, BenchmarkDocument, BenchmarkPage,
    render=_document, listing=_page, example=EXAMPLE,
    create=actions.create_benchmark, delete=actions.delete_benchmark,
    texts={
        "create": "Create a benchmark and start its first measurement",
        "read": "A benchmark, and what it has measured",
        "delete": "Delete a benchmark with its results and its clusters\n\n"
        "What runs ends. Later ones are not compared with it any more.",
    },
)  # fmt: skip
KIND = Kind("benchmarks", benchmark_for, BenchmarkDocument, _document)
