"""REST: applications (clusters that users open), with their own manifest, and the access token of programs.

Runs, tasks, logs and usage are those of the cluster of the same name.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.access import application_for, applications_for, cluster_for
from clusters.applications.actions import change_application, create_application
from clusters.applications.manifest import ApplicationManifest, application_spec
from clusters.applications.tensorboard import open_tensorboard
from clusters.catalog.specs_in_lists import page_of_specs
from clusters.cluster import actions
from clusters.cluster.api.clusters import CLUSTER_PARAMETERS, search_of
from clusters.cluster.api.documents import EndpointStatus
from clusters.frame.documents import Phase
from clusters.frameworks import FRAMEWORKS
from clusters.gateway import origins, visits
from clusters.manifest.cluster import MAX_RUNS_SHOWN
from clusters.runs.idle import UNASKED, outlook
from clusters.runs.models import Cluster, Run
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer, page_of
from portal.api.money import Money, money
from portal.api.operations import Document, created, operation
from portal.api.verbs import Kind
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
    """Since when it has been idle, and when it is stopped if that continues; null while busy or unknown."""

    since: dt.datetime | None
    stops_at: dt.datetime | None


class ConditionStatus(Answer):
    """A condition: `Working` is whether it is busy, `IdleStop` whether a stop for idleness is announced."""

    type: Literal["Working", "IdleStop"]
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    since: dt.datetime | None


class ApplicationStatus(Answer):
    """The observed state of its latest run. Seconds and cost grow while it holds a GPU."""

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
    """An application: its manifest, and the status of its latest run (null before the first)."""

    status: ApplicationStatus | None


ApplicationPage = page_of("ApplicationPage", ApplicationDocument)


class WantedRuns(Strict):
    """The runs to show together."""

    runs: tuple[str, ...] = Field(
        default=(),
        max_length=MAX_RUNS_SHOWN,
        examples=[["train/3", "train/4"]],
        description="Of this appcode, as CLUSTER/NUMBER.",
    )


class AccessDocument(Answer):
    """The token with which programs open it, sent as “Authorization: token …”; null when there is none."""

    kind: Literal["access"] = "access"
    token: str | None


class AllApplications(APIView):
    @operation("applications_list_all", ApplicationPage, parameters=CLUSTER_PARAMETERS)
    def get(self, request: Request) -> Response:
        """All applications that I may see, newest first"""
        return _page(request, applications_for(person(request)))


class AppcodeApplications(APIView):
    @operation("applications_list", ApplicationPage, parameters=CLUSTER_PARAMETERS)
    def get(self, request: Request, code: str) -> Response:
        """The applications of an appcode, newest first"""
        appcode = appcode_for(person(request), code)
        return _page(request, applications_for(person(request)).filter(appcode=appcode))

    @operation("applications_create", {201: ApplicationDocument}, request=ApplicationManifest, examples=[EXAMPLE])
    def post(self, request: Request, code: str) -> Response:
        """Create an application and deploy it

        A storage that is a size makes the volume <name>-home with it, which is not deleted with it."""
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = parse(ApplicationManifest, request.data, appcode=appcode.code)
        cluster = create_application(manifest, acting_user=person(request), appcode=appcode)
        return created(request, cluster.name, to_manifest(cluster))


class OneApplication(APIView):
    @operation("applications_read", ApplicationDocument)
    def get(self, request: Request, code: str, name: str) -> Document:
        """An application as a manifest"""
        return to_manifest(application_for(person(request), code, name))

    @operation("applications_change", ApplicationDocument, request=ApplicationManifest, examples=[EXAMPLE])
    def put(self, request: Request, code: str, name: str) -> Document:
        """Replace the definition

        A living run keeps what it was started with; the next deployment uses the new definition. A storage that is a
        size lets the volume <name>-home grow to it."""
        cluster = application_for(person(request), code, name, OPERATE)
        manifest = parse(ApplicationManifest, request.data, appcode=code, name=name)
        change_application(cluster, manifest, acting_user=person(request))
        return to_manifest(application_for(person(request), code, name))

    @operation("applications_delete", {202: ApplicationDocument})
    def delete(self, request: Request, code: str, name: str) -> Document:
        """Delete an application and end its run

        It is out of sight at once. Its files stay: datastores, a volume that was made with it among them, are deleted
        by themselves."""
        cluster = application_for(person(request), code, name, OPERATE)
        actions.delete_cluster(cluster, acting_user=person(request))
        cluster.refresh_from_db()
        return to_manifest(cluster)


class TensorBoard(APIView):
    @operation("clusters_tensorboard", {200: ApplicationDocument, 201: ApplicationDocument}, request=WantedRuns)
    def post(self, request: Request, code: str, name: str) -> Response:
        """Open TensorBoard on runs

        Answers the application that shows just these runs: one that lives (200), one that is started again (200) or a
        new one (201) with the image of the first run and the smallest flavor without GPUs. Without `runs` it is the
        cluster's latest."""
        cluster = cluster_for(person(request), code, name)
        wanted = parse(WantedRuns, request.data).runs
        made, is_new = open_tensorboard(wanted or latest(cluster), appcode=cluster.appcode, acting_user=person(request))
        made.refresh_from_db()
        address = request.build_absolute_uri(f"/api/v1/appcodes/{code}/applications/{made.name}")
        code_of = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return Response(to_manifest(made), status=code_of, headers={"Location": address})


class Access(APIView):
    @operation("applications_access_read", AccessDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        """The token with which programs open it

        For developers and owners of the appcode."""
        return _access(visits.token_of(application_for(person(request), code, name, OPERATE)))


class RefreshAccess(APIView):
    @operation("applications_access_refresh", AccessDocument)
    def post(self, request: Request, code: str, name: str) -> Response:
        """Make a new token in the place of the old one"""
        cluster = application_for(person(request), code, name, OPERATE)
        return _access(visits.new_token(cluster, acting_user=person(request)))


class StopAccess(APIView):
    @operation("applications_access_stop", AccessDocument)
    def post(self, request: Request, code: str, name: str) -> Response:
        """Let no program in by a token any more

        Repeating it changes nothing."""
        visits.stop_token(application_for(person(request), code, name, OPERATE), acting_user=person(request))
        return _access("")


def latest(cluster: Cluster) -> list[str]:
    """Its latest run, as CLUSTER/NUMBER. Raises Conflict before there is one."""
    if cluster.current_run is None:
        raise Conflict(f"{cluster.name} has never been deployed.")
    return [f"{cluster.name}/{cluster.current_run.number}"]


def _page(request: Request, rows: QuerySet[Cluster]) -> Response:
    now = timezone.now()
    rows = search_of(request).narrow(rows)
    return page_of_specs(
        request, rows, "spec", "current_run__spec", order="-id",
        render=lambda found: [to_manifest(cluster, now) for cluster in found],
    )  # fmt: skip


def to_manifest(cluster: Cluster, now: dt.datetime | None = None) -> dict[str, Any]:
    """The application as a manifest. No query if `appcode` and `current_run` are joined."""
    run = cluster.current_run
    return {
        "kind": "application",
        "metadata": {"name": cluster.name, "appcode": cluster.appcode.code},
        "spec": application_spec(cluster.spec),
        "status": _status(cluster, run, now or timezone.now()).json_value() if run else None,
    }


def _status(cluster: Cluster, run: Run, now: dt.datetime) -> ApplicationStatus:
    return ApplicationStatus.of(
        run,
        run=run.number,
        conditions=_conditions(run),
        endpoints=[EndpointStatus.of(each) for each in origins.openings(cluster, run)],
        idle=IdleStatus.of(outlook(run)),
        started=run.started_at,
        gpu_seconds=run.gpu_seconds_at(now),
        cost=money(run.cost_at(now)),
    )


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


APPLICATION = Kind("applications", application_for, ApplicationDocument, to_manifest)
