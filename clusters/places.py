"""Where the runs of an appcode are made: on which cloud, and in which namespace there.

The nearest node of the organisation with a namespace is the business line that decides: it is placed on a cloud, or goes
where everything goes that is placed nowhere. A run keeps the answer of the moment in which it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db import connection

from clusters.models import LOCAL, KubernetesCluster, Placement
from portal.errors import Invalid
from portal.models import Appcode, OrgNode

THIS_MACHINE = "this machine"
# What runs on this machine outside of any business line; its name means nothing there.
NO_LINE = "default"


@dataclass(frozen=True)
class Place:
    """`cloud` is a name for programs, `title` for people."""

    cloud: str
    title: str
    namespace: str

    @property
    def is_local(self) -> bool:
        return self.cloud == LOCAL


def place_of(appcode: Appcode) -> Place:
    """Where a run of `appcode` would be made now. Two queries at most. Raises Invalid at metadata.appcode when nowhere."""
    line = line_of(appcode)
    placement = Placement.objects.select_related("cluster").filter(org_node=line).first() if line else None
    cluster = placement.cluster if placement else KubernetesCluster.objects.filter(is_default=True).first()
    if cluster is None:
        if not settings.LOCAL_CLOUD_SOCKET:
            raise _nowhere("There is no cloud to run on yet; ask an administrator to register a Kubernetes cluster.")
        return Place(LOCAL, THIS_MACHINE, (line and line.namespace) or NO_LINE)
    if line is None or not line.namespace:
        raise _nowhere(
            f"No node above {appcode.code} ({appcode.org_node}) has a namespace of its own to run in on {cluster.title}; ask an "
            "administrator to name one."
        )
    if is_kubernetes_own(line.namespace):
        raise _nowhere(
            f"{line} has the namespace “{line.namespace}”, which belongs to {cluster.title} itself; ask an administrator to name "
            "another one."
        )
    if not cluster.enabled:
        raise _nowhere(
            f"{line} runs on {cluster.title}, which takes no new runs; ask an administrator to place it elsewhere."
        )
    return Place(cluster.name, cluster.title, line.namespace)


def hold(place: Place) -> None:
    """Keeps the cluster from being removed until the end of this transaction, in which a run is made there. Raises Invalid when
    that has happened just now."""
    if place.is_local:
        return
    with connection.cursor() as cursor:
        # Django knows no FOR KEY SHARE, which holds up nobody but who deletes the row (`registration.remove`).
        cursor.execute(
            "SELECT given_up_at FROM clusters_kubernetescluster WHERE name = %s FOR KEY SHARE", [place.cloud]
        )
        row = cursor.fetchone()
        if row is None or row[0] is not None:
            raise _nowhere(f"An administrator has just {'given up' if row else 'removed'} {place.title}; try again.")


def line_of(appcode: Appcode) -> OrgNode | None:
    """The business line of an appcode: the nearest node on its path that has a namespace."""
    nodes = OrgNode.objects.filter(path__in=appcode.org_node.ancestors_and_self, namespace__isnull=False)
    return max(nodes, key=lambda node: len(node.path), default=None)


def is_kubernetes_own(namespace: str) -> bool:
    """Whether every Kubernetes cluster has it: the portal would close it to all traffic but its own."""
    return namespace == "default" or namespace.startswith("kube-")


def title_of(cloud: str) -> str:
    """What people call a cloud; its name when it is not there any more."""
    if cloud == LOCAL:
        return THIS_MACHINE
    return KubernetesCluster.objects.filter(name=cloud).values_list("title", flat=True).first() or cloud


def titles() -> dict[str, str]:
    """All clouds, by name. One query."""
    return {LOCAL: THIS_MACHINE, **dict(KubernetesCluster.objects.values_list("name", "title"))}


def _nowhere(sentence: str) -> Invalid:
    return Invalid.at("metadata", "appcode", message=sentence)
