"""REST: clusters, runs, tasks and the catalogue. Thin: read, check access, act, answer with a manifest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.sums import makeup
from billing.sums.access import usage_of
from clusters import actions
from clusters.access import cluster_for, clusters_for, run_for
from clusters.api.documents import (
    ClusterDocument,
    ClusterPage,
    ClusterUsageDocument,
    InputDocument,
    PreviewDocument,
    RunDocument,
    RunPage,
    ServingRuntimePage,
    TaskPage,
    input_document,
    preview_document,
    read_manifest,
    run_document,
    serving_runtime_document,
    task_documents,
    to_manifest,
    usage_document,
)
from clusters.api.looks import looks_at
from clusters.api.verbs import Kind, carry_out
from clusters.clouds.health import silences
from clusters.manifest import ClusterManifest
from clusters.models import Cluster, Run, ServingRuntime
from clusters.run_hooks.shown import with_hooks
from clusters.runs import listed
from clusters.runs.preview import preview
from clusters.runs.status import consumer
from clusters.spec.listed import page_of_specs
from clusters.spec.search import Search
from datastores.drivers.patience import within
from datastores.files.api import told
from datastores.files.downloads import LOOK_SECONDS
from portal.access import OPERATE, appcode_for
from portal.api.pagination import MAX_SEARCH, PAGE_PARAMETERS, SEARCH_PARAMETER, everything, number, text, whole
from portal.api.views import person
from portal.errors import Invalid
from portal.limits import LOOKS

LIST_PARAMETERS = [
    *PAGE_PARAMETERS,
    SEARCH_PARAMETER,
    OpenApiParameter("phase", str, enum=list(Run.Phase.values), description="Several are divided by commas."),
    OpenApiParameter(
        "partOf", str, description="Those that a sweep or a pipeline made, “sweeps/lr”; else they are left out."
    ),
]
CLUSTER = Kind("cluster", cluster_for, to_manifest, ClusterDocument)
MAX_RUN = 2**31 - 1
EXAMPLE = OpenApiExample(
    "Parameter servers",
    request_only=True,
    value={
        "kind": "cluster",
        "metadata": {"name": "digits-ps", "appcode": "ops-demo"},
        "spec": {
            "image": "tensorflow-2-21",
            "command": "python digits_ps.py --epochs 5",
            "env": {"DATA_DIR": "/elearn/input"},
            "input": "demo-input",
            "output": "demo-output",
            "roles": {
                "master": {"flavor": "middle-1-gpu"},
                "ps": {"flavor": "middle", "count": 1},
                "worker": {"flavor": "middle-1-gpu", "count": 2},
            },
        },
    },
)


class AllClusters(APIView):
    @extend_schema(
        operation_id="clusters_list_all",
        summary="All clusters that I may see, newest first",
        parameters=LIST_PARAMETERS,
        responses=ClusterPage,
    )
    def get(self, request: Request) -> Response:
        rows = clusters_for(person(request))
        return _page(request, rows)


class AppcodeClusters(APIView):
    @extend_schema(
        operation_id="clusters_list",
        summary="The clusters of an appcode, newest first",
        parameters=LIST_PARAMETERS,
        responses=ClusterPage,
    )
    def get(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code)
        rows = clusters_for(person(request)).filter(appcode=appcode)
        return _page(request, rows)

    @extend_schema(
        operation_id="clusters_create",
        summary="Create a cluster and deploy its first run",
        request=ClusterManifest,
        responses={201: ClusterDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = read_manifest(request.data, appcode=appcode.code)
        cluster = actions.create_cluster(manifest, acting_user=person(request), appcode=appcode)
        address = request.build_absolute_uri(f"{request.path}/{cluster.name}")
        return Response(to_manifest(cluster), status=status.HTTP_201_CREATED, headers={"Location": address})


class ClusterPreview(APIView):
    @extend_schema(
        operation_id="clusters_preview",
        summary="What would happen if this were created now: does it fit, and what does it cost",
        description="Writes nothing. The manifest is judged as it is when it is created.",
        request=ClusterManifest,
        responses=PreviewDocument,
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = read_manifest(request.data, appcode=appcode.code)
        return Response(preview_document(preview(manifest, acting_user=person(request))))


class OneCluster(APIView):
    @extend_schema(operation_id="clusters_read", summary="A cluster as a manifest", responses=ClusterDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        cluster = cluster_for(person(request), code, name)
        looks = looks_at(cluster.current_run, person(request)) if cluster.current_run else None
        return Response(to_manifest(cluster, looks=looks))

    @extend_schema(
        operation_id="clusters_change",
        summary="Replace the definition",
        description="A living run keeps what it was started with; the next deployment uses the new definition. "
        "Sending what is there already changes nothing.",
        request=ClusterManifest,
        responses=ClusterDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        cluster = cluster_for(person(request), code, name, OPERATE)
        manifest = read_manifest(request.data, appcode=code, name=name)
        actions.change_cluster(cluster, manifest, acting_user=person(request))
        return Response(to_manifest(cluster_for(person(request), code, name)))

    @extend_schema(
        operation_id="clusters_delete",
        summary="Delete a cluster and end its run",
        description="It is out of sight at once; its processes end and its output is stored in the background. "
        "Data in datastores stays, logs go.",
        request=None,
        responses={202: ClusterDocument},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        return carry_out(CLUSTER, actions.delete_cluster, request, code, name)


class Runs(APIView):
    @extend_schema(
        operation_id="runs_list",
        summary="The runs of a cluster, newest first",
        parameters=PAGE_PARAMETERS,
        responses=RunPage,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        cluster = cluster_for(person(request), code, name)
        rows = cluster.runs.select_related("cluster__appcode", "created_by").prefetch_related(with_hooks())
        return page_of_specs(request, rows, "spec", order="-number", render=_with_notices(run_document))


class OneRun(APIView):
    @extend_schema(operation_id="runs_read", summary="One run", responses=RunDocument)
    def get(self, request: Request, code: str, name: str, run: int) -> Response:
        found = run_for(person(request), code, name, run)
        return Response(run_document(found, looks=looks_at(found, person(request))))


class Tasks(APIView):
    @extend_schema(
        operation_id="tasks_list",
        summary="The tasks of a run",
        description="All of them in one answer, by role and index, each with its newest attempt.",
        responses=TaskPage,
    )
    def get(self, request: Request, code: str, name: str, run: int) -> Response:
        row = run_for(person(request), code, name, run)
        latest = row.tasks.order_by("role", "index", "-attempt").distinct("role", "index")
        return everything(task_documents(row, latest))


class ClusterInput(APIView):
    @extend_schema(
        operation_id="clusters_input",
        summary="Whether the input of a cluster has changed since its last run",
        description="Lists what the definition reads, and compares names, sizes and times with what the last run noted that read "
        "the same. All is null where no run has noted it, where it is a version or the output of a cluster, and where there are "
        "too many files.",
        responses=InputDocument,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        cluster = cluster_for(user, code, name)
        with told(), LOOKS.enter(user.pk), within(LOOK_SECONDS):
            return Response(input_document(listed.input_change(cluster)))


class ClusterUsage(APIView):
    @extend_schema(
        operation_id="clusters_usage",
        summary="What a cluster has used and what it costs",
        parameters=[
            OpenApiParameter(
                "run", whole(1, MAX_RUN), description="Whose segments to show; the latest run when absent."
            )
        ],
        responses=ClusterUsageDocument,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        cluster = cluster_for(person(request), code, name)
        chosen = number(request, "run", default=0, low=1, high=MAX_RUN)
        run = run_for(person(request), code, name, chosen) if chosen else cluster.current_run
        now = timezone.now()
        segments = usage_of([consumer(run)], now) if run else []
        parts = makeup.parts(now, consumers=[consumer(run)]) if run else []
        return Response(usage_document(cluster, run, segments, parts, now))


class ServingRuntimes(APIView):
    @extend_schema(
        operation_id="serving_runtimes_list",
        summary="The programs that a service can answer with",
        responses=ServingRuntimePage,
    )
    def get(self, request: Request) -> Response:
        return everything([serving_runtime_document(row) for row in ServingRuntime.objects.filter(enabled=True)])


def search_of(request: Request) -> Search:
    """`?search=&phase=&partOf=`. Raises Invalid for a phase that does not exist, which would silently find nothing."""
    phases = text(request, "phase", longest=MAX_SEARCH)
    known = {str(phase).lower() for phase in Run.Phase.values}
    if unknown := [word for word in phases.split(",") if word.strip() and word.strip().lower() not in known]:
        raise Invalid.at("phase", message=f"“{unknown[0].strip()}” is not a phase; use {', '.join(Run.Phase.values)}.")
    return Search(
        text=text(request, "search", longest=MAX_SEARCH).strip(),
        phase=phases.strip(", "),
        part_of=text(request, "partOf", longest=MAX_SEARCH),
    )


def _page(request: Request, rows: QuerySet[Cluster]) -> Response:
    rows = search_of(request).narrow(rows).prefetch_related(with_hooks("current_run__"))
    render = _with_notices(to_manifest)
    return page_of_specs(request, rows, "spec", "current_run__spec", order="-id", render=render)


def _with_notices(render: Callable[..., dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """`render` with what is said of silent clouds, asked for once for all rows."""
    now = timezone.now()
    notices = silences(now)
    return lambda row: render(row, now, notices)
