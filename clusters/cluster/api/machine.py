"""REST: what the tasks of a run do with their machines, now and over time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from pydantic import Field
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.access import run_for
from clusters.machine.rates import QUANTITIES
from clusters.machine.reading import MOST_LINES, POINTS, Curve, MachineUse, Usage, curves, use_of
from clusters.manifest.cluster import RoleName
from portal.api.documents import Answer
from portal.api.operations import Document, operation
from portal.api.pagination import moment, number, text, whole
from portal.api.views import person
from portal.errors import Invalid

MOST_POINTS, LONGEST = 2000, 1000
MOST_NAMES = 20
# The keys of MachineValues, by quantity.
FIELDS = dict(
    zip(
        QUANTITIES,
        ("gpu_percent", "gpu_memory_bytes", "cpu_cores", "memory_bytes", "received_per_second", "sent_per_second",
         "read_per_second", "written_per_second"),
        strict=True,
    )
)  # fmt: skip


class MachineValues(Answer):
    """What a task does; null where that is not measured."""

    gpu_percent: float | None = Field(description="How busy its GPUs are, 0 to 100, on average over them.")
    gpu_memory_bytes: float | None = Field(description="Of all its GPUs together.")
    cpu_cores: float | None = Field(description="CPU time per time: 1.5 is one and a half cores.")
    memory_bytes: float | None = Field(description="Without files that the kernel can drop.")
    received_per_second: float | None = Field(description="Bytes from the network.")
    sent_per_second: float | None = Field(description="Bytes to the network.")
    read_per_second: float | None = Field(description="Bytes from disks.")
    written_per_second: float | None = Field(description="Bytes to disks.")


class GpuUseDocument(Answer):
    id: str
    percent: float | None = Field(description="How busy it is, 0 to 100; null if it does not say.")
    memory_bytes: int | None
    idle_since: dt.datetime | None = Field(description="Since when it is less than 5 % busy; null while it works.")


class MachineTask(Answer):
    """One task, by its newest attempt."""

    role: RoleName
    index: int
    attempt: int
    at: dt.datetime = Field(description="Of its last sample.")
    is_now: bool = Field(description="Whether that sample is recent: false once the task has ended.")
    now: MachineValues = Field(description="At the last sample.")
    mean: MachineValues = Field(description="On average since its first sample.")
    peak: MachineValues = Field(description="The largest since its first sample.")
    gpus: list[GpuUseDocument]


class MachineLists(Answer):
    """One list for each value, as long as `times`; null where it was not measured."""

    gpu_percent: list[float | None]
    gpu_memory_bytes: list[float | None]
    cpu_cores: list[float | None]
    memory_bytes: list[float | None]
    received_per_second: list[float | None]
    sent_per_second: list[float | None]
    read_per_second: list[float | None]
    written_per_second: list[float | None]


class MachineCurve(Answer):
    """What one task did over time, in all its attempts. Of all tasks together, `mean`, `low` and `high` are over the tasks, too.
    A point without values stands for a gap: time without samples."""

    task: str | None = Field(examples=["worker-0"], description="Null for all tasks of the run together.")
    times: list[dt.datetime] = Field(description="Each is the end of the time that its point stands for.")
    mean: MachineLists
    low: MachineLists
    high: MachineLists


class MachineDocument(Answer):
    run: int
    since: dt.datetime
    until: dt.datetime
    seconds_per_point: int = Field(
        description="Samples are 10 s apart, those of a day ago a minute, of a month ago ten."
    )
    tasks: list[MachineTask]
    curves: list[MachineCurve]
    notes: list[str] = Field(
        description="What is not measured where the run is, and what an administrator can do about it."
    )


PARAMETERS = [
    OpenApiParameter(
        "tasks",
        str,
        description=f"Whose curves to show: names such as worker-0, divided by commas, at most {MOST_NAMES}; “all” is all tasks "
        f"together, “none” no curve. By default all together and the {MOST_LINES} busiest.",
    ),
    OpenApiParameter("since", str, description="A time of ISO 8601 where curves begin; the first sample when absent."),
    OpenApiParameter("until", str, description="A time of ISO 8601 where they end; the last sample when absent."),
    OpenApiParameter("points", whole(1, MOST_POINTS), description=f"At most so many in a curve; {POINTS} when absent."),
]


class RunMachine(APIView):
    @operation("runs_machine", MachineDocument, parameters=PARAMETERS)
    def get(self, request: Request, code: str, name: str, run: int) -> Document:
        """What the tasks of a run do with their machines

        GPU, GPU memory, CPU, memory, network and disk: now, on average, at most, and over time."""
        found = run_for(person(request), code, name, run)
        now = timezone.now()
        use = use_of(found, now)
        since, until = moment(request, "since") or use.since, moment(request, "until") or use.until
        if since > until:
            raise Invalid.at("until", message="Give a time after “since”.")
        since, until = max(since, use.since), min(until, use.until)
        names = _names(text(request, "tasks", longest=LONGEST), use)
        width, drawn = curves(
            use, names, since, until, number(request, "points", default=POINTS, low=1, high=MOST_POINTS)
        )
        return MachineDocument(
            run=found.number,
            since=since,
            until=until,
            seconds_per_point=width,
            tasks=[_task(each) for each in use.tasks],
            curves=[_curve(each) for each in drawn],
            notes=use.notes,
        ).json_value()


def _names(said: str, use: MachineUse) -> list[str]:
    if said == "none":
        return []
    if said:
        return ["" if each == "all" else each for each in said.split(",")[:MOST_NAMES]]
    return ["", *(each.name for each in use.busiest)]


def _task(each: Usage) -> MachineTask:
    numbers = {name: MachineValues(**_by_field(getattr(each, name))) for name in ("now", "mean", "peak")}
    return MachineTask.of(each, **numbers, gpus=[GpuUseDocument.of(gpu) for gpu in each.gpus])


def _curve(each: Curve) -> MachineCurve:
    parts = {name: MachineLists(**_by_field(getattr(each, name))) for name in ("mean", "low", "high")}
    times = [dt.datetime.fromtimestamp(at, dt.UTC) for at in each.times]
    return MachineCurve(task=each.name or None, times=times, **parts)


def _by_field(values: Mapping[str, Any]) -> dict[str, Any]:
    return {FIELDS[name]: value for name, value in values.items()}
