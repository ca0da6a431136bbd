"""REST: applications, which are clusters that people open, by a manifest of their own; and the token by which programs do.

What is not here is to be had of the cluster of the same name: runs, tasks, logs, usage.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters import actions
from clusters.access import cluster_for
from clusters.api.clusters import LIST_PARAMETERS, search_of
from clusters.api.documents import EndpointStatus, Money, Phase, money
from clusters.api.verbs import Kind, carry_out
from clusters.applications.access import application_for, applications_for
from clusters.applications.actions import change_application, create_application
from clusters.applications.manifest import ApplicationManifest, application_spec
from clusters.applications.tensorboard import open_tensorboard
from clusters.frameworks import FRAMEWORKS
from clusters.gateway import origins, visits
from clusters.manifest import MAX_RUNS_SHOWN
from clusters.models import Cluster, Run
from clusters.runs.idle import UNASKED, outlook
from clusters.spec.listed import page_of_specs
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer
from portal.api.views import person
from portal.errors import Conflict
from portal.manifests import Strict, parse

WORKING: dict[str, tuple[Literal["True", "False", "Unknown"], str]] = {
    "busy": ("True", "Works"), "idle": ("False", "Idle"),
}  # fmt: skip
ANNOUNCED = "It does nothing and will be stopped soon, unless it works again or somebody keeps it."
EXAMPLE = OpenApiExample(
    "A notebook with a volume of its own",
    request_only=True,
    value={
        "kind": "application",
        "metadata": {"name": "notes", "appcode": "ops-demo"},
        "spec": {"type": "jupyter", "image": "jupyter-4-6", "flavor": "middle-1-gpu", "storage": {"size": "20Gi"}},
    },
)


class IdleStatus(Answer):
    """Since when it has done nothing, and when it is stopped if that goes on; null while it works, or nobody knows."""

    since: dt.datetime | None
    stops_at: dt.datetime | None


class ConditionStatus(Answer):
    """One thing that is known of it: `Working` says whether it works, `IdleStop` whether its stop for idleness is announced."""

    type: Literal["Working", "IdleStop"]
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    since: dt.datetime | None


class ApplicationStatus(Answer):
    """What was seen of its latest run. Seconds and cost grow while it holds a GPU."""

    phase: Phase
    reason: str = Field(examples=["WaitingForGPUs"], description="A word for programs; empty when all is well.")
    message: str = Field(description="A sentence for people.")
    run: int
    conditions: list[ConditionStatus]
    endpoints: list[EndpointStatus]
    idle: IdleStatus
    started: dt.datetime | None
    gpu_seconds: int
    cost: Money


class ApplicationDocument(ApplicationManifest):
    """An application as it is answered: the manifest with the state of its latest run, null before there is one."""

    status: ApplicationStatus | None


class ApplicationPage(Answer):
    items: list[ApplicationDocument]
    next: str | None


class WantedRuns(Strict):
    """Which runs to see together."""

    runs: tuple[str, ...] = Field(
        default=(),
        max_length=MAX_RUNS_SHOWN,
        examples=[["train/3", "train/4"]],
        description="Of this appcode, as CLUSTER/NUMBER.",
    )


class AccessDocument(Answer):
    """The token with which programs open it, as “Authorization: token …”; null when there is none."""

    kind: Literal["access"] = "access"
    token: str | None


class AllApplications(APIView):
    @extend_schema(
        operation_id="applications_list_all",
        summary="All applications that I may see, newest first",
        parameters=LIST_PARAMETERS,
        responses=ApplicationPage,
    )
    def get(self, request: Request) -> Response:
        return _page(request, applications_for(person(request)))


class AppcodeApplications(APIView):
    @extend_schema(
        operation_id="applications_list",
        summary="The applications of an appcode, newest first",
        parameters=LIST_PARAMETERS,
        responses=ApplicationPage,
    )
    def get(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code)
        return _page(request, applications_for(person(request)).filter(appcode=appcode))

    @extend_schema(
        operation_id="applications_create",
        summary="Create an application and deploy it",
        description="A storage that is a size makes the volume <name>-home with it, which is not deleted with it.",
        request=ApplicationManifest,
        responses={201: ApplicationDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = parse(ApplicationManifest, request.data, appcode=appcode.code)
        cluster = create_application(manifest, acting_user=person(request), appcode=appcode)
        address = request.build_absolute_uri(f"{request.path}/{cluster.name}")
        return Response(to_manifest(cluster), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneApplication(APIView):
    @extend_schema(
        operation_id="applications_read", summary="An application as a manifest", responses=ApplicationDocument
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(to_manifest(application_for(person(request), code, name)))

    @extend_schema(
        operation_id="applications_change",
        summary="Replace the definition",
        description="A living run keeps what it was started with; the next deployment uses the new definition. A storage that is "
        "a size lets the volume <name>-home grow to it.",
        request=ApplicationManifest,
        responses=ApplicationDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        cluster = application_for(person(request), code, name, OPERATE)
        manifest = parse(ApplicationManifest, request.data, appcode=code, name=name)
        change_application(cluster, manifest, acting_user=person(request))
        return Response(to_manifest(application_for(person(request), code, name)))

    @extend_schema(
        operation_id="applications_delete",
        summary="Delete an application and end its run",
        description="It is out of sight at once. Its files stay: datastores, a volume that was made with it among them, are "
        "deleted by themselves.",
        request=None,
        responses={202: ApplicationDocument},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        return carry_out(APPLICATION, actions.delete_cluster, request, code, name)


class TensorBoard(APIView):
    @extend_schema(
        operation_id="clusters_tensorboard",
        summary="Open TensorBoard on runs",
        description="Answers the application that shows just these runs: one that lives (200), one that is started again (200) "
        "or a new one (201) with the image of the first run and the smallest flavor without GPUs. Without `runs` it is the "
        "cluster's latest.",
        request=WantedRuns,
        responses={200: ApplicationDocument, 201: ApplicationDocument},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        cluster = cluster_for(person(request), code, name)
        wanted = parse(WantedRuns, request.data).runs
        made, is_new = open_tensorboard(wanted or latest(cluster), appcode=cluster.appcode, acting_user=person(request))
        made.refresh_from_db()
        address = request.build_absolute_uri(f"/api/v1/appcodes/{code}/applications/{made.name}")
        code_of = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return Response(to_manifest(made), status=code_of, headers={"Location": address})


class Access(APIView):
    @extend_schema(
        operation_id="applications_access_read",
        summary="The token with which programs open it",
        description="For developers and owners of the appcode.",
        responses=AccessDocument,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        return _access(visits.token_of(application_for(person(request), code, name, OPERATE)))


class RefreshAccess(APIView):
    @extend_schema(
        operation_id="applications_access_refresh",
        summary="Make a new token in the place of the old one",
        request=None,
        responses=AccessDocument,
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        cluster = application_for(person(request), code, name, OPERATE)
        return _access(visits.new_token(cluster, acting_user=person(request)))


class StopAccess(APIView):
    @extend_schema(
        operation_id="applications_access_stop",
        summary="Let no program in by a token any more",
        description="Repeating it changes nothing.",
        request=None,
        responses=AccessDocument,
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        visits.stop_token(application_for(person(request), code, name, OPERATE), acting_user=person(request))
        return _access("")


def latest(cluster: Cluster) -> list[str]:
    """Its latest run, as the name of a run. Raises Conflict before there is one."""
    if cluster.current_run is None:
        raise Conflict(f"{cluster.name} has never been deployed.")
    return [f"{cluster.name}/{cluster.current_run.number}"]


def _page(request: Request, rows: QuerySet[Cluster]) -> Response:
    now = timezone.now()
    rows = search_of(request).narrow(rows)
    return page_of_specs(
        request, rows, "spec", "current_run__spec", order="-id", render=lambda cluster: to_manifest(cluster, now)
    )


def to_manifest(cluster: Cluster, now: dt.datetime | None = None) -> dict[str, Any]:
    """The application as a manifest. No query with `appcode` and `current_run` joined."""
    run = cluster.current_run
    return {
        "kind": "application",
        "metadata": {"name": cluster.name, "appcode": cluster.appcode.code},
        "spec": application_spec(cluster.spec),
        "status": _status(cluster, run, now or timezone.now()).json_value() if run else None,
    }


def _status(cluster: Cluster, run: Run, now: dt.datetime) -> ApplicationStatus:
    return ApplicationStatus(
        phase=run.phase,
        reason=run.reason,
        message=run.message,
        run=run.number,
        conditions=_conditions(run),
        endpoints=[EndpointStatus(**vars(each)) for each in origins.openings(cluster, run)],
        idle=_idle(run, now),
        started=run.started_at,
        gpu_seconds=run.gpu_seconds_at(now),
        cost=money(run.cost_at(now)),
    )


def _idle(run: Run, now: dt.datetime) -> IdleStatus:
    quiet = outlook(run, now)
    return IdleStatus(since=quiet.since, stops_at=quiet.stops_at)


def _conditions(run: Run) -> list[ConditionStatus]:
    if run.phase != Run.Phase.RUNNING:
        return []
    found = []
    if run.activity or FRAMEWORKS[run.spec["framework"]].idle_signal == "work":
        status, reason = WORKING.get(run.activity, ("Unknown", "CannotTell"))
        message = run.activity_why if run.activity else UNASKED
        found.append(
            ConditionStatus(type="Working", status=status, reason=reason, message=message, since=run.activity_since)
        )
    if run.idle_announced_at:
        found.append(
            ConditionStatus(
                type="IdleStop", status="True", reason="Announced", message=ANNOUNCED, since=run.idle_announced_at
            )
        )
    return found


def _access(token: str) -> Response:
    return Response(AccessDocument(token=token or None).json_value(), headers={"Cache-Control": "no-store"})


APPLICATION = Kind("application", application_for, to_manifest, ApplicationDocument)
