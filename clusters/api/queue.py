"""REST: the queue, as the page has it."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.models import Run
from clusters.runs.queue import Queue, Waits, queues
from portal.access import roles_of
from portal.api.documents import Answer
from portal.api.pagination import everything
from portal.api.views import person


class WaitingRun(Answer):
    """A run that waits."""

    appcode: str
    cluster: str
    run: int
    created_by: str
    gpus: int
    since: dt.datetime
    reason: str
    message: str
    place: int | None = Field(description="From 1; null where there is no order.")
    place_in: Literal["quota", "cloud"] | None = Field(
        description="The queue of the appcode's quota, or that of the cloud."
    )


class HoldingRun(Answer):
    """A run that holds GPUs."""

    appcode: str
    cluster: str
    run: int
    created_by: str
    gpus: int
    phase: str
    since: dt.datetime | None


class OtherRuns(Answer):
    """Runs of appcodes that you do not see."""

    waiting: int
    waiting_gpus: int
    holding: int
    held_gpus: int


class QueueDocument(Answer):
    """What waits and what is held on one cloud. `more_…` are yours, too, and not listed."""

    cloud: str
    title: str
    notice: str
    gpus: int
    gpus_free: int
    waiting: list[WaitingRun]
    holding: list[HoldingRun]
    others: OtherRuns
    more_waiting: int
    more_holding: int


class QueuePage(Answer):
    items: list[QueueDocument]
    next: str | None


class QueueView(APIView):
    @extend_schema(
        operation_id="queue_list",
        summary="Who waits for what, and who holds what, on each cloud",
        description="In detail for your appcodes, as sums for all others. At most 200 runs of each kind are listed.",
        responses=QueuePage,
    )
    def get(self, request: Request) -> Response:
        roles = roles_of(person(request))
        return everything([document(each) for each in queues(None if roles is None else list(roles))])


def document(found: Queue) -> dict[str, object]:
    others = found.others
    return QueueDocument(
        cloud=found.cloud,
        title=found.title,
        notice=found.notice,
        gpus=found.gpus,
        gpus_free=found.gpus_free,
        waiting=[_waiting(each) for each in found.waiting],
        holding=[_holding(run) for run in found.holding],
        others=OtherRuns(
            waiting=others.waiting,
            waiting_gpus=others.waiting_gpus,
            holding=others.holding,
            held_gpus=others.held_gpus,
        ),
        more_waiting=found.more_waiting,
        more_holding=found.more_holding,
    ).json_value()


def _waiting(each: Waits) -> WaitingRun:
    run = each.run
    return WaitingRun(
        appcode=run.cluster.appcode.code,
        cluster=run.cluster.name,
        run=run.number,
        created_by=run.created_by.username if run.created_by else "",
        gpus=run.gpus,
        since=run.created_at,
        reason=run.reason,
        message=each.why,
        place=each.place or None,
        place_in=each.place_in or None,
    )


def _holding(run: Run) -> HoldingRun:
    return HoldingRun(
        appcode=run.cluster.appcode.code,
        cluster=run.cluster.name,
        run=run.number,
        created_by=run.created_by.username if run.created_by else "",
        gpus=run.gpu_rate,
        phase=run.phase,
        since=run.started_at,
    )
