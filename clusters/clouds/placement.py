"""Chooses the cloud and namespace for an appcode's runs.

The nearest node of the organisation with a namespace is the business line that decides. It is placed on a cloud, or uses the
default cloud. A run keeps the place chosen when it was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from django.db import connection
from django.db.models import Q

from clusters.clouds.drivers.base import Cloud as Driver
from clusters.clouds.kinds import DRIVERS, OWN
from clusters.clouds.models import Cloud
from clusters.clouds.registry import own_kinds, places_runs, rows
from portal.errors import Invalid
from portal.models import Appcode

# The namespace of runs outside of any business line, on clouds that allow them.
NO_LINE = "default"


@dataclass(frozen=True)
class Place:
    """`cloud`: the name for programs. `title`: the name for people."""

    cloud: str
    title: str
    namespace: str
    driver: type[Driver]

    @property
    def is_local(self) -> bool:
        """True on the portal's own machine."""
        return not self.driver.is_remote


def place_of(appcode: Appcode) -> Place:
    """Returns where a run of `appcode` would be made now. One query. Raises Invalid at metadata.appcode if there is no place."""
    return choose(appcode, rows_by_kind(PLACES, places(appcode)))


# The rows that `choose` needs: the business lines among the nodes %(nodes)s with their placements, and the default cloud, which
# is one of the kinds %(own)s if none was chosen. Selects no secrets. One statement, because it is part of a larger query
# whenever something is created.
PLACES = """
SELECT 'line' AS kind, jsonb_build_object(
    'path', node.path, 'namespace', node.namespace, 'placed', placement.id IS NOT NULL,
    'name', cloud.name, 'kind', cloud.kind, 'title', cloud.title, 'enabled', cloud.enabled
)
FROM portal_orgnode node
LEFT JOIN clusters_placement placement ON placement.org_node_id = node.id
LEFT JOIN clusters_cloud cloud ON cloud.id = placement.cloud_id
WHERE node.path = ANY(%(nodes)s) AND node.namespace IS NOT NULL
UNION ALL
SELECT 'default', jsonb_build_object(
    'name', name, 'kind', kind, 'title', title, 'enabled', enabled, 'chosen', is_default
)
FROM clusters_cloud WHERE is_default OR kind = ANY(%(own)s)
"""
Found = Mapping[str, list[dict[str, Any]]]


def places(appcode: Appcode) -> dict[str, Any]:
    """Returns the parameters of PLACES."""
    return {"nodes": appcode.org_node.ancestors_and_self, "own": own_kinds()}


def rows_by_kind(statement: str, values: Mapping[str, Any]) -> Found:
    """Runs a statement like PLACES; returns its JSON rows by kind. One query."""
    found = defaultdict[str, list[dict[str, Any]]](list)
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        for kind, facts in cursor.fetchall():
            found[kind].append(orjson.loads(facts))
    return found


def choose(appcode: Appcode, found: Found) -> Place:
    """Chooses from rows of PLACES, as `place_of`."""
    line = max(found["line"], key=lambda node: len(node["path"]), default=None)
    default = max(found["default"], key=lambda row: row["chosen"], default=None)
    row = line if line and line["placed"] else default
    namespace = line["namespace"] if line else ""
    if row is None or row["kind"] in OWN - set(own_kinds()):
        raise _nowhere("There is no cloud to run on yet; ask an administrator to register a Kubernetes cluster.")
    place = Place(row["name"], row["title"], namespace or NO_LINE, DRIVERS[row["kind"]])
    where = line["path"] if line else appcode.org_node
    if place.driver.needs_namespace and not namespace:
        raise _nowhere(
            f"No node above {appcode.code} ({appcode.org_node}) has a namespace of its own to run in on {place.title}; ask an "
            "administrator to name one."
        )
    if place.driver.is_reserved(place.namespace):
        raise _nowhere(
            f"{where} has the namespace “{namespace}”, which belongs to {place.title} itself; ask an administrator to name "
            "another one."
        )
    if not row["enabled"]:
        raise _nowhere(
            f"{where} runs on {place.title}, which takes no new runs; ask an administrator to place it elsewhere."
        )
    return place


def hold(place: Place) -> None:
    """Prevents removal of the cloud until this transaction ends. Raises Invalid if it was just removed or given up."""
    if place.is_local:
        return
    with connection.cursor() as cursor:
        # Django lacks FOR KEY SHARE, which blocks only deletion of the row (`actions.remove`).
        cursor.execute("SELECT given_up_at FROM clusters_cloud WHERE name = %s FOR KEY SHARE", [place.cloud])
        row = cursor.fetchone()
        if row is None or row[0] is not None:
            raise _nowhere(f"An administrator has just {'given up' if row else 'removed'} {place.title}; try again.")


def default_name() -> str | None:
    """Returns the default cloud, or None. One query."""
    found = rows().filter(Q(is_default=True) | Q(kind__in=OWN)).order_by("-is_default")
    return found.values_list("name", flat=True).first()


def title_of(cloud: str) -> str:
    """Returns a cloud's title, or its name if it was removed."""
    return Cloud.objects.filter(name=cloud).values_list("title", flat=True).first() or cloud


def titles() -> dict[str, str]:
    """Returns the titles of all clouds by name. One query."""
    return dict(Cloud.objects.values_list("name", "title"))


def _nowhere(sentence: str) -> Invalid:
    return Invalid.at("metadata", "appcode", message=sentence)


def gpu_limit(appcode: Appcode, cloud: str) -> int:
    """GPUs that runs of an appcode may hold at one time for one more to start on that cloud: where the portal does not place
    runs, it cannot take any back, and nothing is borrowed. At most one query."""
    return appcode.gpu_limit if appcode.gpu_borrow and places_runs(cloud) else appcode.gpu_quota
