"""REST: the curves of a run's metrics, whatever they come from: event files, tables, MLflow's client, printed lines."""

from __future__ import annotations

import math

from drf_spectacular.utils import OpenApiParameter
from pydantic import Field
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.access import run_for
from clusters.clouds.drivers.base import CloudError
from clusters.results.values import MAX_METRICS, MAX_NAME, by_name
from clusters.scalars.reading import scalars_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from portal.api.documents import Answer
from portal.api.operations import Document, operation
from portal.api.problems import Unavailable
from portal.api.views import person
from portal.web.limits import LOOKS

READ_SECONDS = 20


class MetricCurve(Answer):
    """Points by step. Of many, evenly spaced ones, the extremes and the newest."""

    name: str = Field(description="FOLDER/TAG where a tag stands in several folders of the output.")
    steps: list[int]
    values: list[float | None] = Field(description="NaN and infinite values are null.")
    times: list[float] | None = Field(description="Unix times; null if they are not known.")


class RunCurves(Answer):
    run: int
    items: list[MetricCurve]
    is_complete: bool = Field(description="False while long files are being read: the next answer has more.")
    notes: list[str] = Field(description="What is left out, and why.")


class RunMetrics(APIView):
    @operation(
        "runs_metrics",
        RunCurves,
        parameters=[
            OpenApiParameter("name", str, many=True, description="Only these metrics; the first ones if none.")
        ],
    )
    def get(self, request: Request, code: str, name: str, run: int) -> Document:
        """The curves of a run's metrics

        Of at most 200 metrics, losses and accuracies first."""
        found = run_for(person(request), code, name, run)
        try:
            with LOOKS.enter(person(request).pk), within(READ_SECONDS):
                scalars = scalars_of(found)
        except (DriverError, CloudError) as error:
            raise Unavailable(str(error)) from error
        wanted = {text[:MAX_NAME] for text in request.query_params.getlist("name")[:MAX_METRICS]}
        items = [
            MetricCurve(
                name=name,
                steps=[point.step for point in curve.points],
                values=[point.value if math.isfinite(point.value) else None for point in curve.points],
                times=[point.wall_time for point in curve.points] if curve.is_timed else None,
            )
            for name, curve in by_name(scalars).items()
            if not wanted or name in wanted
        ]
        return RunCurves(run=run, items=items, is_complete=scalars.is_complete, notes=list(scalars.notes)).json_value()
