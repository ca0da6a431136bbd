"""Tests the connection to a Kubernetes cluster: its identity, its resources, and the portal's rights.

Each verb and resource in docker/kubernetes/clusterrole.yaml is checked with the API server's own authorizer, for all namespaces,
so that missing rights can be named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clusters.clouds.drivers.base import CloudError, Preflight
from clusters.clouds.drivers.kubernetes.api import kueue, lookup, probe
from clusters.clouds.drivers.kubernetes.api.client import AT_ONCE, Client, path_of
from clusters.clouds.drivers.kubernetes.namespaces import Namespaces
from clusters.clouds.drivers.kubernetes.render import gangs
from clusters.clouds.drivers.kubernetes.settings import GPU, Settings
from clusters.clouds.drivers.kubernetes.watch.capacity import DISK, DISK_ADVICE, allocatable_of, gib

# The rights that the portal needs, in the form that administrators apply.
ROLE = Path(__file__).parents[5] / "docker" / "kubernetes" / "clusterrole.yaml"
# Optional rights; without them administrators act themselves.
OPTIONAL = ROLE.with_name("nodes.yaml")
# Resources of the role that the portal works without.
SPARED = lookup.ONLY_LOOKED_UP | {gangs.PLURAL}
ADVICE = "Apply docker/kubernetes/clusterrole.yaml and bind it to the portal's user."
STRANGER = "What answers at this address is not the API server of a Kubernetes cluster."
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, order=True)
class Right:
    """A verb on a resource, which may be a subresource: pods/exec."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        """kubectl's notation: "create jobs.batch"."""
        resource, _, part = self.resource.partition("/")
        full = f"{resource}.{self.group}" if self.group else resource
        return f"{self.verb} {full}/{part}" if part else f"{self.verb} {full}"


# Beside those of Kueue's own groups: jobs that are let go onto other nodes than before.
_FOR_QUEUES = frozenset({Right("batch", "jobs/status", "patch")})


@dataclass(frozen=True)
class Found:
    """`uid`: the cluster's identity, "" if unreadable. Counts are None if nodes cannot be listed. `diskless`: number of nodes
    that offer less disk than a task reserves. `without`: missing optional rights."""

    version: str
    uid: str
    nodes: int | None
    ready: int | None
    gpus: int | None
    diskless: int | None
    missing: tuple[Right, ...]
    without: tuple[Right, ...] = ()


def rights_of(role: Mapping[str, Any]) -> tuple[Right, ...]:
    """Returns every verb on every resource that a ClusterRole allows."""
    return tuple(
        Right(group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def judge(
    client: Client,
    settings: Settings,
    keeper: Namespaces,
    namespaces: Collection[str],
    foreign: Callable[[Collection[str]], Mapping[str, str]],
) -> Preflight:
    """Summarizes `inspect`, the settings' lookup, the namespaces' ownership and whether runs are bound whole in a sentence.
    Raises CloudError."""
    reserved_disk = settings.reserved_disk
    queued = bool(settings.kueue_queue)
    found = inspect(client, _wanted(queued), reserved_disk, _optional(queued))
    named = lookup.look_up(client, settings, namespaces)
    facts: dict[str, Any] = {name: getattr(found, name) for name in ("version", "nodes", "ready", "gpus")}
    facts["missing"] = [str(right) for right in found.missing]
    facts["missing_optional"] = [str(right) for right in found.without]
    facts["misnamed"] = dict(named.wrong)
    ok, message = _verdict(found, reserved_disk, lambda: foreign(namespaces))
    if ok:
        overlooked = lookup.overlooked_autoscaler(client, settings)
        message = " ".join(filter(None, [message, *dict.fromkeys(named.wrong.values()), *named.unchecked, overlooked]))
        if not (settings.kueue_queue or settings.nodes_on_demand):
            lacks = [str(each) for each in found.without if each.resource == gangs.PLURAL]
            proof = probe.prove(client, settings, keeper, namespaces, lacks)
            facts[probe.FACT] = {"enforced": bool(proof.api), "api": proof.api, "message": proof.message}
            message = f"{message} {proof.message}"
    return Preflight(ok and not named.wrong, message, found.uid, facts)


def _verdict(found: Found, reserved_disk: float, foreign: Callable[[], Mapping[str, str]]) -> tuple[bool, str]:
    if found.nodes is None:
        has = f"Kubernetes {found.version}"
    else:
        ready = "all of them ready" if found.ready == found.nodes else f"{found.ready} of them ready"
        has = f"Kubernetes {found.version} with {found.nodes} nodes, {ready}, and {found.gpus} GPUs"
    if found.missing:
        return False, f"{has}. The portal may not {', '.join(map(str, found.missing))}. {ADVICE}"
    try:
        sentence = " ".join(foreign().values())
    except CloudError:
        sentence = ""  # Checked again when something is to run there.
    if sentence:
        return False, f"{has}. {sentence}"
    if not found.diskless:
        return True, f"{has}. The portal may do all that it needs."
    which = "No node takes a task: all offer" if found.diskless == found.nodes else f"{found.diskless} nodes offer"
    sentence = f"{which} less {DISK} than the {gib(reserved_disk)} that a task reserves. {DISK_ADVICE}"
    return found.diskless != found.nodes, f"{has}. The portal may do all that it needs. {sentence}"


def _of_role() -> tuple[Right, ...]:
    return rights_of(yaml.safe_load(ROLE.read_text()))


def _is_needed(right: Right, queued: bool) -> bool:
    """Returns whether the portal cannot work without it. `queued`: runs go through a Kueue queue."""
    if right.resource in SPARED or right.group == kueue.VISIBILITY:
        return False
    return queued or (right.group != kueue.GROUP and right not in _FOR_QUEUES)


@functools.cache
def _wanted(queued: bool) -> tuple[Right, ...]:
    try:
        return tuple(each for each in _of_role() if _is_needed(each, queued))
    except OSError as error:
        raise CloudError(f"The list of rights that the portal needs is not there: {error}") from error


@functools.cache
def _optional(queued: bool) -> tuple[Right, ...]:
    try:
        beside = [each for each in _of_role() if not _is_needed(each, queued)]
        return (*rights_of(next(yaml.safe_load_all(OPTIONAL.read_text()))), *beside)
    except OSError as error:
        raise CloudError(f"The list of rights that the portal can do without is not there: {error}") from error


def inspect(
    client: Client, wanted: Sequence[Right], reserved_disk: float = 0.0, optional: Sequence[Right] = ()
) -> Found:
    """Reads version, nodes and rights. `reserved_disk`: bytes of a node's disk that a task reserves.

    Raises CloudError if the server is unreachable, rejects our credentials, or is not Kubernetes."""
    try:
        # A person waits and may try again: no retries.
        version = str(client.get_once("/version")["gitVersion"])
    except (ValueError, LookupError, TypeError) as error:
        raise CloudError(STRANGER) from error
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rights") as threads:
        asked = (*wanted, *optional)
        had = threads.map(lambda right: _has(client, right), asked)
        lacked = {right for right, has in zip(asked, had, strict=True) if not has}
    missing = [right for right in wanted if right in lacked]
    nodes = _nodes(client) if not _lists("nodes", missing) else None
    return Found(
        version=version,
        uid=uid_of(client) if not _lists("namespaces", missing) else "",
        nodes=len(nodes) if nodes is not None else None,
        ready=sum(ready for ready, _, _ in nodes) if nodes is not None else None,
        gpus=sum(gpus for _, gpus, _ in nodes) if nodes is not None else None,
        diskless=sum(disk < reserved_disk for _, _, disk in nodes) if nodes is not None else None,
        missing=tuple(missing),
        without=tuple(right for right in optional if right in lacked),
    )


def _lists(resource: str, missing: list[Right]) -> bool:
    return Right("", resource, "list") in missing


def _has(client: Client, right: Right) -> bool:
    resource, _, part = right.resource.partition("/")
    asked = {"group": right.group, "resource": resource, "subresource": part, "verb": right.verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    return bool(client.request("POST", _REVIEWS, body=review)["status"].get("allowed"))


def uid_of(client: Client) -> str:
    """Returns the cluster's identity: the uid of its namespace kube-system, which lives as long. Raises CloudError."""
    try:
        found = client.get(path_of("Namespace"), fieldSelector="metadata.name=kube-system")["items"]
        if not found:
            raise CloudError("This is not a whole Kubernetes cluster: it has no namespace kube-system.")
        return str(found[0]["metadata"]["uid"])
    except (ValueError, LookupError, TypeError) as error:
        raise CloudError(STRANGER) from error


def _nodes(client: Client) -> list[tuple[bool, int, float]]:
    """Returns for every node whether it is ready, its GPUs, and the bytes of its disk that pods may reserve."""
    found = []
    for page in client.pages(path_of("Node")):
        for node in page["items"]:
            conditions = node["status"].get("conditions") or []
            ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            allocatable = allocatable_of(node)
            found.append((ready, int(allocatable(GPU)), allocatable(DISK)))
    return found
