"""REST: clusters, runs, tasks and the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.sums import breakdown
from billing.sums.access import usage_of
from clusters.access import cluster_for, clusters_for, run_for
from clusters.catalog.documents import ServingRuntimePage, serving_runtime_document
from clusters.catalog.models import ServingRuntime
from clusters.catalog.specs_in_lists import page_of_specs
from clusters.clouds.health import silences
from clusters.cluster import actions
from clusters.cluster.api.documents import (
    AdmissionDocument,
    ClusterDocument,
    ClusterPage,
    ClusterUsageDocument,
    InputDocument,
    PreviewDocument,
    RunDocument,
    RunPage,
    TaskPage,
    admission_document,
    decision_document,
    input_document,
    preview_document,
    read_manifest,
    run_document,
    task_documents,
    to_manifest,
    usage_document,
)
from clusters.cluster.api.summaries import looks_at
from clusters.cluster.offers import offers_of
from clusters.cluster.search import Search
from clusters.manifest.cluster import ClusterManifest
from clusters.runs import input_listing
from clusters.runs.models import Cluster, Run
from clusters.runs.placing.forecasts import forecasts_of
from clusters.runs.placing.rights import rights_of
from clusters.runs.queries.preview import preview
from clusters.runs.status.hook_status import with_hooks
from clusters.runs.status.phase_update import consumer
from datastores.drivers.patience import within
from datastores.files.api import told
from datastores.files.downloads import LOOK_SECONDS
from portal.access import OPERATE, appcode_for, roles_of
from portal.api.operations import Document, created, operation
from portal.api.pagination import LIST_PARAMETERS, MAX_SEARCH, PAGE_PARAMETERS, everything, number, page, text, whole
from portal.api.verbs import Kind
from portal.api.views import person
from portal.errors import Invalid
from portal.web.limits import LOOKS

CLUSTER_PARAMETERS = [
    *LIST_PARAMETERS,
    OpenApiParameter("phase", str, enum=list(Run.Phase.values), description="Several are divided by commas."),
    OpenApiParameter(
        "partOf", str, description="Those that a sweep or a pipeline made, “sweeps/lr”; else they are left out."
    ),
]
CLUSTER = Kind("clusters", cluster_for, ClusterDocument, to_manifest)
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
    @operation("clusters_list_all", ClusterPage, parameters=CLUSTER_PARAMETERS)
    def get(self, request: Request) -> Response:
        """All clusters that I may see, newest first"""
        rows = clusters_for(person(request))
        return _page(request, rows)


class AppcodeClusters(APIView):
    @operation("clusters_list", ClusterPage, parameters=CLUSTER_PARAMETERS)
    def get(self, request: Request, code: str) -> Response:
        """The clusters of an appcode, newest first"""
        appcode = appcode_for(person(request), code)
        rows = clusters_for(person(request)).filter(appcode=appcode)
        return _page(request, rows)

    @operation("clusters_create", {201: ClusterDocument}, request=ClusterManifest, examples=[EXAMPLE])
    def post(self, request: Request, code: str) -> Response:
        """Create a cluster and deploy its first run"""
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = read_manifest(request.data, appcode=appcode.code)
        cluster = actions.create_cluster(manifest, acting_user=person(request), appcode=appcode)
        return created(request, cluster.name, to_manifest(cluster))


class ClusterPreview(APIView):
    @operation("clusters_preview", PreviewDocument, request=ClusterManifest, examples=[EXAMPLE])
    def post(self, request: Request, code: str) -> Document:
        """What would happen if this were created now: does it fit, and what does it cost

        Writes nothing. The manifest is judged as it is when it is created. Where it does not start now for want of room or quota,
        `admission.changes` has what would start now or sooner."""
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = read_manifest(request.data, appcode=appcode.code)
        return preview_document(preview(manifest, acting_user=person(request), with_offers=True))


class OneCluster(APIView):
    @operation("clusters_read", ClusterDocument)
    def get(self, request: Request, code: str, name: str) -> Document:
        """A cluster as a manifest"""
        cluster = cluster_for(person(request), code, name)
        looks = looks_at(cluster.current_run, person(request)) if cluster.current_run else None
        return to_manifest(cluster, looks=looks)

    @operation("clusters_change", ClusterDocument, request=ClusterManifest, examples=[EXAMPLE])
    def put(self, request: Request, code: str, name: str) -> Document:
        """Replace the definition

        A living run keeps what it was started with; the next deployment uses the new definition. Sending what is there
        already changes nothing."""
        cluster = cluster_for(person(request), code, name, OPERATE)
        manifest = read_manifest(request.data, appcode=code, name=name)
        actions.change_cluster(cluster, manifest, acting_user=person(request))
        return to_manifest(cluster_for(person(request), code, name))

    @operation("clusters_delete", {202: ClusterDocument})
    def delete(self, request: Request, code: str, name: str) -> Document:
        """Delete a cluster and end its run

        It is out of sight at once; its processes end and its output is stored in the background. Data in datastores
        stays, logs go."""
        cluster = cluster_for(person(request), code, name, OPERATE)
        actions.delete_cluster(cluster, acting_user=person(request))
        cluster.refresh_from_db()
        return to_manifest(cluster)


class Runs(APIView):
    @operation("runs_list", RunPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str, name: str) -> Response:
        """The runs of a cluster, newest first"""
        cluster = cluster_for(person(request), code, name)
        rows = cluster.runs.select_related("cluster__appcode", "created_by").prefetch_related(with_hooks())
        return page_of_specs(request, rows, "spec", order="-number", render=_run_documents)


class OneRun(APIView):
    @operation("runs_read", RunDocument)
    def get(self, request: Request, code: str, name: str, run: int) -> Document:
        """One run"""
        found = run_for(person(request), code, name, run)
        return run_document(found, looks=looks_at(found, person(request)))


class RunAdmission(APIView):
    @operation("runs_admission", AdmissionDocument, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str, name: str, run: int) -> Document:
        """Whether a run has what it asked for, why it waited, and where it was placed

        The history of what was decided about it, newest first."""
        user = person(request)
        found, roles = run_for(user, code, name, run), roles_of(user)
        lines = page(request, found.decisions.all(), order="-number", render=decision_document).data
        may_change = roles is None or roles.get(found.cluster.appcode_id) in OPERATE.value
        is_latest = found.cluster.current_run_id == found.pk
        offers = offers_of(found.cluster, user) if may_change and is_latest else ()
        return admission_document(found, lines["items"], lines["next"], offers)


class Tasks(APIView):
    @operation("tasks_list", TaskPage)
    def get(self, request: Request, code: str, name: str, run: int) -> Response:
        """The tasks of a run

        All of them in one answer, by role and index, each with its newest attempt."""
        row = run_for(person(request), code, name, run)
        latest = row.tasks.order_by("role", "index", "-attempt").distinct("role", "index")
        return everything(task_documents(row, latest))


class ClusterInput(APIView):
    @operation("clusters_input", InputDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        """Whether the input of a cluster has changed since its last run

        Lists what the definition reads, and compares names, sizes and times with what the last run noted that read the
        same. All is null where no run has noted it, where it is a version or the output of a cluster, and where there
        are too many files."""
        user = person(request)
        cluster = cluster_for(user, code, name)
        with told(), LOOKS.enter(user.pk), within(LOOK_SECONDS):
            return Response(input_document(input_listing.input_change(cluster)))


class ClusterUsage(APIView):
    @operation(
        "clusters_usage",
        ClusterUsageDocument,
        parameters=[
            OpenApiParameter(
                "run", whole(1, MAX_RUN), description="Whose segments to show; the latest run when absent."
            )
        ],
    )
    def get(self, request: Request, code: str, name: str) -> Document:
        """What a cluster has used and what it costs"""
        cluster = cluster_for(person(request), code, name)
        chosen = number(request, "run", default=0, low=1, high=MAX_RUN)
        run = run_for(person(request), code, name, chosen) if chosen else cluster.current_run
        now = timezone.now()
        segments = usage_of([consumer(run)], now) if run else []
        parts = breakdown.parts(now, consumers=[consumer(run)]) if run else []
        return usage_document(cluster, run, segments, parts, now)


class ServingRuntimes(APIView):
    @operation("serving_runtimes_list", ServingRuntimePage)
    def get(self, request: Request) -> Response:
        """The programs that a service can answer with"""
        return everything([serving_runtime_document(row) for row in ServingRuntime.objects.filter(enabled=True)])


def search_of(request: Request) -> Search:
    """Parses `?search=&phase=&partOf=`. Raises Invalid for an unknown phase, which would silently match nothing."""
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
    return page_of_specs(request, rows, "spec", "current_run__spec", order="-id", render=_manifests)


def _manifests(clusters: Sequence[Cluster]) -> list[dict[str, Any]]:
    """With what is queried once for all of them: notices of unreachable clouds, rights and forecasts."""
    now, runs = timezone.now(), []
    for cluster in clusters:
        if cluster.current_run:
            cluster.current_run.cluster = cluster
            runs.append(cluster.current_run)
    notices, rights, forecasts = silences(now), rights_of(runs), forecasts_of(runs, now)
    return [to_manifest(cluster, now, notices, rights=rights, forecasts=forecasts) for cluster in clusters]


def _run_documents(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """With what is queried once for all of them."""
    now = timezone.now()
    notices, rights, forecasts = silences(now), rights_of(runs), forecasts_of(runs, now)
    return [run_document(run, now, notices, rights=rights, forecasts=forecasts) for run in runs]
