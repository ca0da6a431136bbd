"""Calls to Kueue's API: the Workload of a run, its status, the flavors that it gets, and its place in the queue.

Kueue serves several versions of its API, and drops old ones. The served one is looked up at each launch and listing, so a run
outlives an upgrade of Kueue.

A controller that makes its own Workloads has duties: it starts pods only while the Workload is admitted; when it is evicted it
ends them, and clears the reservation once none is left; it says when all pods run and which are done, and when all is over.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.api.client import APPLY, Client
from clusters.clouds.drivers.kubernetes.api.errors import Forbidden, Missing
from clusters.clouds.drivers.kubernetes.render.names import MANAGER
from clusters.clouds.drivers.kubernetes.render.queueing import GROUP as GROUP
from clusters.clouds.drivers.kubernetes.render.queueing import condition

Object = Mapping[str, Any]

VISIBILITY = f"visibility.{GROUP}"
# The versions whose fields the portal knows, best first.
_KNOWN = ("v1beta2", "v1beta1")
# Managers of single parts of a Workload's status, as Kueue's own integrations have one each.
_READY, _RECLAIMS, _FINISHES = (f"{MANAGER}-{part}" for part in ("pods-ready", "reclaimable", "finished"))
GONE = (
    "Kueue is not installed in this cluster any more; an administrator installs it again, or the run is started anew."
)


def version_of(client: Client, group: str = GROUP) -> str:
    """Returns the version of the group's API to use, "" if the cluster has none."""
    try:
        found = client.get(f"/apis/{group}")
    except (Missing, Forbidden):
        return ""
    served = [each["version"] for each in found["versions"]]
    return next((each for each in _KNOWN if each in served), str(found["preferredVersion"]["version"]))


def workloads(version: str, namespace: str = "", name: str = "") -> str:
    """Returns the path of a Workload, of those in one namespace, or of all."""
    inside = f"namespaces/{namespace}/" if namespace else ""
    return f"/apis/{GROUP}/{version}/{inside}workloads" + (f"/{name}" if name else "")


def apply(client: Client, manifest: Object) -> Object:
    """Applies a Workload; returns it with its status."""
    path = _path_of(manifest)
    query = {"fieldManager": MANAGER, "force": "true"}
    return cast("Object", client.request("PATCH", path, body=manifest, content_type=APPLY, query=query))


def delete(client: Client, workload: Object) -> None:
    try:
        client.delete(_path_of(workload))
    except Missing:
        return


def flavors(client: Client, version: str, names: Collection[str]) -> dict[str, Object]:
    """Returns the ResourceFlavors of these names. Raises CloudError if one is gone."""
    try:
        return {name: client.get(f"/apis/{GROUP}/{version}/resourceflavors/{name}") for name in sorted(set(names))}
    except Missing as error:
        raise CloudError(f"Kueue has let the run go onto nodes that it does not describe any more: {error}") from error


def places(client: Client, namespace: str, queue: str) -> dict[str, int]:
    """Returns how many Workloads are before each one in its queue, by name; {} where Kueue does not tell."""
    version = version_of(client, VISIBILITY)
    if not version:
        return {}
    try:
        path = f"/apis/{VISIBILITY}/{version}/namespaces/{namespace}/localqueues/{queue}/pendingworkloads"
        found = client.get(path)["items"]
    except (Missing, Forbidden):
        return {}
    return {each["metadata"]["name"]: int(each.get("positionInClusterQueue", 0)) for each in found}


# -- what the portal says of a Workload ----------------------------------------------------------------------------


def clear_reservation(client: Client, workload: Object, conditions: Sequence[Object]) -> None:
    """Gives back what an evicted Workload has reserved. Raises Unavailable if it has changed since."""
    metadata = {"resourceVersion": workload["metadata"]["resourceVersion"]}
    client.patch_once(
        f"{_path_of(workload)}/status",
        {"metadata": metadata, "status": {"admission": None, "conditions": list(conditions)}},
    )


def say_ready(client: Client, workload: Object) -> None:
    """Says that all pods run: Kueue may evict what does not get there in time."""
    ready = condition("PodsReady", "True", "Started", "All tasks of the run are running.", _now())
    _apply_status(client, workload, {"conditions": [ready]}, _READY)


def say_reclaimable(client: Client, workload: Object, counts: Mapping[str, int]) -> None:
    """Says how many pods of each set are done for good: others may have what they held."""
    done = [{"name": name, "count": count} for name, count in sorted(counts.items())]
    _apply_status(client, workload, {"reclaimablePods": done}, _RECLAIMS)


def say_finished(client: Client, namespace: str, name: str) -> None:
    """Says that the run is over. Does nothing where there is no such Workload."""
    version = version_of(client)
    if not version:
        return
    over = condition("Finished", "True", "Ended", "The run has ended.", _now())
    workload = {"apiVersion": f"{GROUP}/{version}", "metadata": {"namespace": namespace, "name": name}}
    try:
        _apply_status(client, workload, {"conditions": [over]}, _FINISHES)
    except Missing:
        return


def _apply_status(client: Client, workload: Object, status: Object, manager: str) -> None:
    metadata = workload["metadata"]
    body = {
        "apiVersion": workload["apiVersion"],
        "kind": "Workload",
        "metadata": {name: metadata[name] for name in ("namespace", "name", "uid") if name in metadata},
        "status": status,
    }
    query = {"fieldManager": manager, "force": "true"}
    client.request("PATCH", f"{_path_of(workload)}/status", body=body, content_type=APPLY, query=query)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _path_of(workload: Object) -> str:
    metadata = workload["metadata"]
    return workloads(str(workload["apiVersion"]).rpartition("/")[2], metadata["namespace"], metadata["name"])
