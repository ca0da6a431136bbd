"""Where the runs of an appcode are made: on which cloud, and in which namespace there.

The nearest node of the organisation with a namespace is the business line that decides: it is placed on a cloud, or goes
where everything goes that is placed nowhere. A run keeps the answer of the moment in which it was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from django.conf import settings
from django.db import connection

from clusters.models import LOCAL, KubernetesCluster
from portal.errors import Invalid
from portal.models import Appcode

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
    """Where a run of `appcode` would be made now. One query. Raises Invalid at metadata.appcode when nowhere."""
    return choose(appcode, rows_by_kind(PLACES, {"nodes": appcode.org_node.ancestors_and_self}))


# What `choose` has to know: the lines of the nodes %(nodes)s with what they are placed on, and the default; of clusters what
# is told, and no secret. One statement, because it is asked whenever something is created, together with other things.
PLACES = """
SELECT 'line' AS kind, jsonb_build_object(
    'path', node.path, 'namespace', node.namespace, 'placed', placement.id IS NOT NULL,
    'name', cluster.name, 'title', cluster.title, 'enabled', cluster.enabled
)
FROM portal_orgnode node
LEFT JOIN clusters_placement placement ON placement.org_node_id = node.id
LEFT JOIN clusters_kubernetescluster cluster ON cluster.id = placement.cluster_id
WHERE node.path = ANY(%(nodes)s) AND node.namespace IS NOT NULL
UNION ALL
SELECT 'default', jsonb_build_object('name', name, 'title', title, 'enabled', enabled)
FROM clusters_kubernetescluster WHERE is_default
"""
Found = Mapping[str, list[dict[str, Any]]]


def rows_by_kind(statement: str, values: Mapping[str, Any]) -> Found:
    """The rows of a statement like PLACES: of each its kind, and the rest as JSON. One query."""
    found = defaultdict[str, list[dict[str, Any]]](list)
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        for kind, facts in cursor.fetchall():
            found[kind].append(orjson.loads(facts))
    return found


def choose(appcode: Appcode, found: Found) -> Place:
    """As `place_of`, by what was found. The business line is the nearest node on its path that has a namespace."""
    line = max(found["line"], key=lambda node: len(node["path"]), default=None)
    cluster = line if line and line["placed"] else next(iter(found["default"]), None)
    namespace = line["namespace"] if line else ""
    if cluster is None or cluster["name"] is None:
        if not settings.LOCAL_CLOUD_SOCKET:
            raise _nowhere("There is no cloud to run on yet; ask an administrator to register a Kubernetes cluster.")
        return Place(LOCAL, THIS_MACHINE, namespace or NO_LINE)
    title = cluster["title"]
    if line is None or not namespace:
        raise _nowhere(
            f"No node above {appcode.code} ({appcode.org_node}) has a namespace of its own to run in on {title}; ask an "
            "administrator to name one."
        )
    if is_kubernetes_own(namespace):
        raise _nowhere(
            f"{line['path']} has the namespace “{namespace}”, which belongs to {title} itself; ask an administrator to name "
            "another one."
        )
    if not cluster["enabled"]:
        raise _nowhere(
            f"{line['path']} runs on {title}, which takes no new runs; ask an administrator to place it elsewhere."
        )
    return Place(cluster["name"], title, namespace)


def hold(place: Place) -> None:
    """Keeps the cluster from being removed until the end of this transaction, in which a run is made there. Raises Invalid when
    that has happened just now."""
    if place.is_local:
        return
    with connection.cursor() as cursor:
        # Django knows no FOR KEY SHARE, which holds up nobody but who deletes the row (`actions.remove`).
        cursor.execute(
            "SELECT given_up_at FROM clusters_kubernetescluster WHERE name = %s FOR KEY SHARE", [place.cloud]
        )
        row = cursor.fetchone()
        if row is None or row[0] is not None:
            raise _nowhere(f"An administrator has just {'given up' if row else 'removed'} {place.title}; try again.")


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
