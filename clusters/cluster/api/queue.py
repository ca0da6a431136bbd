"""REST: the queue of each cloud."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.cluster.api.documents import (
    FORECAST,
    FORECAST_WHY,
    PROTECTED_UNTIL,
    RIGHT,
    ForecastStatus,
    forecast_fields,
)
from clusters.runs.models import Run
from clusters.runs.placing.rights import Right, RightName
from clusters.runs.placing.tiles import Tile
from clusters.runs.queries.queue import Queue, Waits, queues
from portal.access import roles_of
from portal.api.documents import Answer, page_of
from portal.api.operations import operation
from portal.api.pagination import everything
from portal.api.views import person


class WaitingRun(Answer):
    """A waiting run."""

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
        description="The queue of the appcode's quota, or that of the cloud, in which runs of all appcodes wait."
    )
    gpus_before: int = Field(
        description="GPUs that runs before it in the queue of the cloud ask for; 0 in other queues."
    )
    right: RightName | None = Field(
        description="By which right it would hold its GPUs. Runs inside their quota come first, then those that borrow, then "
        "spare ones. Null where the queue of the cloud does not say."
    )
    forecast: ForecastStatus | None = FORECAST
    forecast_why: str = FORECAST_WHY


class HoldingRun(Answer):
    """A run that holds GPUs."""

    appcode: str
    cluster: str
    run: int
    created_by: str
    gpus: int
    phase: str
    since: dt.datetime | None
    right: RightName | None = RIGHT
    protected_until: dt.datetime | None = PROTECTED_UNTIL


class OtherRuns(Answer):
    """Runs of appcodes that you cannot see."""

    waiting: int
    waiting_gpus: int
    holding: int
    held_gpus: int


class NodeSlices(Answer):
    """Slices of GPUs of one kind on one node. Each is in one state, as the GPUs of a node are."""

    resource: str = Field(examples=["nvidia.com/mig-1g.10gb"])
    total: int
    free: int
    mine: int
    others: int
    other_software: int
    promised: int
    kept: int
    closed: int


class NodeGpus(Answer):
    """The GPUs of one node. Each is in one state: `free`, `mine`, `others`, `otherSoftware`, `promised`, `kept` and `closed` add
    up to `gpus`."""

    name: str
    gpu_model: str
    gpus: int
    free: int = Field(description="For a run that is created now.")
    mine: int = Field(description="Held by runs of appcodes that you can see.")
    others: int = Field(description="Held by runs of other appcodes.")
    other_software: int = Field(description="Held by what the portal did not start.")
    promised: int = Field(description="For runs that are being started.")
    kept: int = Field(description="For runs that wait.")
    closed: int = Field(description="Held by nobody on a node that takes no tasks; `note` says why.")
    note: str
    kept_for: str | None = Field(
        description="The run for which the node is kept, or will be once runs there end; null if there is none that you can see.",
        examples=["ops-demo/train/3"],
    )

    slices: list[NodeSlices] = Field(description="They are no GPUs: not counted above, nor in a quota.")
    domains: dict[str, str] = Field(
        description="Where the node is, from wide to narrow, by the labels that its cloud names.",
        examples=[{"zone": "a", "rack": "r7"}],
    )


class NodesClosed(Answer):
    """A stretch of time on nodes: maintenance, or a reservation for one appcode."""

    id: int
    kind: Literal["maintenance", "reservation"]
    nodes: list[str]
    starts_at: dt.datetime
    ends_at: dt.datetime
    begun: bool
    appcode: str | None = Field(
        description="For which the nodes are reserved; null for maintenance, and for one that you cannot see."
    )
    reason: str


class QueueDocument(Answer):
    """Waiting and holding runs of one cloud, and its nodes. `more_…` count further runs of yours that are not listed."""

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
    nodes: list[NodeGpus] = Field(description="At most 2,000.")
    windows: list[NodesClosed] = Field(
        description="Now and to come, the earliest first. Before one, only runs start on its nodes that end in time."
    )


# Maximum length of `nodes`.
MOST_NODES = 2000
QueuePage = page_of("QueuePage", QueueDocument)


class QueueView(APIView):
    @operation("queue_list", QueuePage)
    def get(self, request: Request) -> Response:
        """Who waits for what, and who holds what, on each cloud

        In detail for your appcodes, as sums for all others. At most 200 runs of each kind are listed. `nodes` says where GPUs are
        free, and for whom the others are."""
        roles = roles_of(person(request))
        return everything([document(each) for each in queues(None if roles is None else list(roles))])


def document(found: Queue) -> dict[str, object]:
    return QueueDocument.of(
        found,
        waiting=[_waiting(each) for each in found.waiting],
        holding=[_holding(run, found.rights.get(run.pk)) for run in found.holding],
        others=OtherRuns.of(found.others),
        nodes=[
            NodeGpus.of(
                each,
                kept_for=_kept_for(found, each),
                slices=[NodeSlices.of(one) for one in each.slices],
                domains=dict(each.domains),
            )
            for each in found.tiles[:MOST_NODES]
        ],
        windows=[NodesClosed.of(each, appcode=each.appcode or None) for each in found.windows],
    ).json_value()


def _kept_for(found: Queue, tile: Tile) -> str | None:
    run = found.keepers.get(tile.keeper)
    return f"{run.cluster.appcode.code}/{run.cluster.name}/{run.number}" if run else None


def _waiting(each: Waits) -> WaitingRun:
    return WaitingRun.of(
        each.run,
        since=each.run.created_at,
        message=each.why,
        place=each.place or None,
        place_in=each.place_in or None,
        gpus_before=each.gpus_before,
        right=each.right,
        **forecast_fields(each.forecast),
        **_names(each.run),
    )


def _holding(run: Run, right: Right | None) -> HoldingRun:
    return HoldingRun.of(
        run,
        gpus=run.gpu_rate,
        since=run.started_at,
        right=right.name if right else None,
        protected_until=right.until if right else None,
        **_names(run),
    )


def _names(run: Run) -> dict[str, object]:
    return {
        "appcode": run.cluster.appcode.code,
        "cluster": run.cluster.name,
        "run": run.number,
        "created_by": run.created_by.username if run.created_by else "",
    }
