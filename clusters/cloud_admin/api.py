"""REST: Kubernetes clusters and the placement of business lines. For administrators; others get 404."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.efficiency import measured
from clusters.cloud_admin import actions, decommission
from clusters.cloud_admin.manifest import KubernetesManifest, KubernetesMetadata, read_manifest
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.kubernetes.watch.capacity import give_up
from clusters.clouds.health import silence
from clusters.clouds.models import Cloud, CloudState
from clusters.clouds.placement import default_name
from clusters.runs.models import Run
from portal.api.documents import Answer, page_of
from portal.api.operations import Document, created, operation
from portal.api.pagination import everything
from portal.api.views import administrator
from portal.errors import Invalid
from portal.manifests import Strict, parse
from portal.models import OrgNode

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: main
clusters: [{name: training, cluster: {server: "https://203.0.113.7:6443"}}]
users: [{name: portal, user: {token: eyJhbGciOiJSUzI1NiJ9.EXAMPLE}}]
contexts: [{name: main, context: {cluster: training, user: portal}}]
"""
EXAMPLE = OpenApiExample(
    "By a service account's token",
    request_only=True,
    value={
        "kind": "kubernetes-cluster",
        "metadata": {"name": "training"},
        "spec": {
            "title": "Training",
            "kubeconfig": KUBECONFIG,
            "default": True,
        },
    },
)


class KubernetesShown(Answer):
    """The registration of a cluster. Of the kubeconfig, only the server's address is shown."""

    title: str
    in_cluster: bool
    server: str
    enabled: bool
    default: bool
    settings: Settings


class AllOrNone(Answer):
    """Whether the scheduler binds all tasks of a run to nodes or none: tried with two pods. `api`: of the PodGroups by
    which it does, "" if it does not."""

    enforced: bool
    api: str = Field(examples=["scheduling.k8s.io/v1alpha2"])
    message: str


class TestStatus(Answer):
    """The result of the last connection test; null for what it could not determine."""

    tested: dt.datetime
    ok: bool
    message: str
    version: str | None = None
    nodes: int | None = None
    ready: int | None = None
    gpus: int | None = None
    missing: list[str] = Field(
        default=[], examples=[["create jobs.batch"]], description="Rights that the portal lacks."
    )
    missing_optional: list[str] = Field(
        default=[], examples=[["patch nodes"]], description="Rights that it lacks and can do without."
    )
    misnamed: dict[str, str] = Field(
        default={},
        examples=[{"runtime_class": "This cluster has no RuntimeClass “nvidia”."}],
        description="What the settings name and the cluster does not have, by the name of the setting.",
    )
    all_or_none: AllOrNone | None = Field(
        default=None, description="Null where the portal does not choose nodes, and if the test did not come that far."
    )


class SilentNode(Answer):
    """A node that does not answer and was not given up."""

    name: str
    heard: dt.datetime | None = Field(description="When it was last heard; null where nobody knows.")
    gpus: int
    command: str = Field(
        examples=["kubectl taint node gpu-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"],
        description="What an administrator of the cluster types when the machine is off and stays off, if the portal may not do "
        "it (kubernetes_give_up_node).",
    )


class KubernetesStatus(Answer):
    heard: dt.datetime | None = Field(description="When the controller last heard anything of it.")
    message: str = Field(description="A sentence for people while it is out of reach, else empty.")
    given_up: dt.datetime | None = Field(description="Since when it counts as lost; null when it does not.")
    nodes: int
    gpus: int
    gpus_free: int
    runs: int = Field(description="Runs that live there.")
    business_lines: list[str]
    gpu_use: str = Field(
        description="Why it is not known how busy its GPUs are; empty when it is, or nobody has asked yet."
    )
    silent_nodes: list[SilentNode]
    test: TestStatus | None


class KubernetesDocument(Answer):
    kind: Literal["kubernetes-cluster"] = "kubernetes-cluster"
    metadata: KubernetesMetadata
    spec: KubernetesShown
    status: KubernetesStatus


KubernetesPage = page_of("KubernetesPage", KubernetesDocument)


class GiveUpSpec(Strict):
    """The name of the cluster, as confirmation."""

    name: str


class PlacementSpec(Strict):
    """The cloud of a business line: a cloud's name, "local" for the portal's own machine, null for the default."""

    cloud: str | None


class PlacementDocument(Answer):
    business_line: str
    namespace: str
    cloud: str | None = Field(description="As it was said; null for the default.")
    runs_on: str | None = Field(description="Where new runs are made now; null when nowhere.")


PlacementPage = page_of("PlacementPage", PlacementDocument)


class Clusters(APIView):
    @operation("kubernetes_list", KubernetesPage)
    def get(self, request: Request) -> Response:
        """The registered Kubernetes clusters, by name"""
        administrator(request)
        return everything([_document(row) for row in _clusters().prefetch_related("placements__org_node")])

    @operation("kubernetes_register", {201: KubernetesDocument}, request=KubernetesManifest, examples=[EXAMPLE])
    def post(self, request: Request) -> Response:
        """Register a Kubernetes cluster

        The kubeconfig goes in and never comes out again. It must not name programs (exec) or files. The connection is
        tried, and its state answered, but a cluster that does not answer is registered all the same. One that answers
        must have what the settings name: runtime, priority and ingress classes, and the LocalQueue of Kueue (422)."""
        user = administrator(request)
        row = actions.register(read_manifest(request.data), acting_user=user)
        actions.try_connection(row)
        return created(request, row.name, _document(row))


class OneCluster(APIView):
    @operation("kubernetes_read", KubernetesDocument)
    def get(self, request: Request, name: str) -> Document:
        """A Kubernetes cluster"""
        administrator(request)
        return _document(_cluster(name))

    @operation("kubernetes_change", KubernetesDocument, request=KubernetesManifest, examples=[EXAMPLE])
    def put(self, request: Request, name: str) -> Document:
        """Change a Kubernetes cluster

        Without credentials those that are stored are kept. While runs live there, new ones must be for the same
        cluster. Running processes use a change at once. Sending what is there already changes nothing."""
        user = administrator(request)
        row = actions.change(_cluster(name), read_manifest(request.data, name=name), acting_user=user)
        return _document(row)

    @operation("kubernetes_remove", {204: None})
    def delete(self, request: Request, name: str) -> None:
        """Forget a Kubernetes cluster

        Nothing is changed there. 409 while runs or volumes live there or a business line is placed on it."""
        user = administrator(request)
        actions.remove(_cluster(name), acting_user=user)


class Test(APIView):
    @operation("kubernetes_test", KubernetesDocument)
    def post(self, request: Request, name: str) -> Document:
        """Try the connection

        Says the version, the nodes and GPUs, every right that the portal lacks, and what the settings name and the
        cluster does not have."""
        administrator(request)
        row = _cluster(name)
        actions.try_connection(row)
        return _document(row)


class GiveUp(APIView):
    @operation("kubernetes_give_up", KubernetesDocument, request=GiveUpSpec)
    def post(self, request: Request, name: str) -> Document:
        """Give up a Kubernetes cluster that is lost

        Only for one that is lost for good: 409 while it answers, be it that it does not accept the portal's
        credentials, or was heard in the last minutes. Its runs end as failed (Lost) and its volumes as deleted, and
        what they cost ends when it was last heard; it takes no new runs. Should it come back, what is left of runs
        there is ended. Repeating it ends what has come since."""
        user = administrator(request)
        row = _cluster(name)
        said = parse(GiveUpSpec, request.data)
        if said.name != row.name:
            raise Invalid.at("name", message=f"Say “{row.name}” here, too: this cannot be taken back.")
        decommission.give_up(row, acting_user=user)
        return _document(_cluster(name))


class GiveUpNode(APIView):
    @operation("kubernetes_give_up_node", KubernetesDocument)
    def post(self, request: Request, name: str, node: str) -> Document:
        """Give up a node that does not answer

        Only for a machine that is off and stays off: Kubernetes then deletes the node's pods at once, and its tasks
        start elsewhere. It is the taint node.kubernetes.io/out-of-service, which somebody takes off when the node is
        back. 409 for a node that answers, and where the portal lacks the right (docker/kubernetes/nodes.yaml), with the
        command that does the same."""
        user = administrator(request)
        row = _cluster(name)
        actions.give_up_node(row, node, acting_user=user)
        return _document(row)


class Placements(APIView):
    @operation("placements_list", PlacementPage)
    def get(self, request: Request) -> Response:
        """Where the business lines run"""
        administrator(request)
        default = default_name()
        lines = OrgNode.objects.filter(namespace__isnull=False).select_related("placement__cloud")
        return everything([_placement(line, default) for line in lines])


class OnePlacement(APIView):
    @operation("placements_change", PlacementDocument, request=PlacementSpec)
    def put(self, request: Request, path: str) -> Document:
        """Place a business line on a cloud

        New runs are made there; those that there are stay where they are."""
        user = administrator(request)
        line = OrgNode.objects.filter(path=path).first()
        if line is None:
            raise Http404(f"There is no business line “{path}”.")
        wanted = parse(PlacementSpec, request.data)
        actions.place(line, wanted.cloud, acting_user=user)
        return _placement(OrgNode.objects.select_related("placement__cloud").get(pk=line.pk), default_name())


def _clusters() -> QuerySet[Cloud]:
    return Cloud.objects.filter(kind=KubernetesCloud.kind)


def _cluster(name: str) -> Cloud:
    row = _clusters().filter(name=name).first()
    if row is None:
        raise Http404(f"There is no Kubernetes cluster “{name}”.")
    return row


def _placement(line: OrgNode, default: str | None) -> dict[str, Any]:
    placement = getattr(line, "placement", None)
    said = placement.cloud.name if placement else None
    return PlacementDocument(
        business_line=line.path, namespace=line.namespace or "", cloud=said, runs_on=said or default
    ).json_value()


def _document(row: Cloud) -> dict[str, Any]:
    """A cluster's document. Four queries; an installation has few clusters."""
    state = CloudState.objects.filter(name=row.name).first()
    nodes = state.capacity.get("nodes", []) if state else []
    test = row.test if row.tested_at else None
    return KubernetesDocument(
        metadata=KubernetesMetadata(name=row.name),
        spec=KubernetesShown.of(
            row,
            in_cluster=row.credentials is None,
            default=row.is_default,
            settings=Settings.readable(row.settings),
        ),
        status=KubernetesStatus(
            heard=state.heard_at if state else None,
            message=silence(state, row.title, timezone.now()),
            given_up=row.given_up_at,
            nodes=len(nodes),
            gpus=sum(node["gpus"] for node in nodes),
            gpus_free=sum(node["gpus_free"] for node in nodes),
            runs=Run.objects.filter(cloud=row.name, gone=False).count(),
            business_lines=sorted(each.org_node.path for each in row.placements.all()),
            gpu_use=measured.why_not(row.name),
            silent_nodes=[
                SilentNode(
                    name=node["name"],
                    heard=None if since == "?" else dt.datetime.fromisoformat(since),
                    gpus=node["gpus"],
                    command=give_up(node["name"]),
                )
                for node in nodes
                if (since := node.get("silent_since"))
            ],
            test=TestStatus(tested=row.tested_at, **test) if test and row.tested_at else None,
        ),
    ).json_value()
