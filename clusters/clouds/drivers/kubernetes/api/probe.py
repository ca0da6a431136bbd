"""Finds out whether a cluster binds all pods of a run or none: by a gang of two pods of which one fits on no node.

Discovery tells whether the API server has PodGroups, and nothing but a trial whether its scheduler heeds them. One that does
keeps the other pod waiting, too, and says so in the group's status; one that does not binds it. Neither pod asks for anything.

What is made goes by itself, whatever becomes of this process: the pods are those of Jobs that end and are removed after a minute,
and the ConfigMap that owns everything is removed here, or by the next test.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from clusters.clouds.drivers.base import CloudError, NotOurs
from clusters.clouds.drivers.kubernetes.api.client import METADATA_LIST, Client, events, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Missing
from clusters.clouds.drivers.kubernetes.namespaces import Namespaces
from clusters.clouds.drivers.kubernetes.render import gangs, names, storage
from clusters.clouds.drivers.kubernetes.settings import Settings

log = logging.getLogger(__name__)

Object = dict[str, Any]

# Key of the proof in the facts of a connection test.
FACT = "all_or_none"
# Seconds for the scheduler to say what it does, and for everything to be gone again; after which the Jobs end themselves.
SECONDS, GONE_SECONDS, LIFE = 6, 10, 60
# After this time what another test made is left over.
LEFT_OVER = dt.timedelta(minutes=5)
# What the scheduler says of a pod that fits nowhere.
_NO_NODE = re.compile(r"\d+/\d+ nodes are available|no nodes")

ENFORCED = "All tasks of a run are bound to nodes together, or none."
ONE_BY_ONE = "Its scheduler binds the tasks of a run one by one"
UNSERVED = f"{ONE_BY_ONE}: the cluster serves no PodGroups (Kubernetes 1.36, feature gates GenericWorkload and GangScheduling)."
STORED = f"{ONE_BY_ONE}: the cluster stores PodGroups, but its scheduler does not enforce them."
UNKNOWN = "Whether its scheduler binds all tasks of a run or none is not known:"
HOMELESS = f"{UNKNOWN} no business line with a namespace is placed there yet. Test the connection again when one is."
AGAIN = "Apply docker/kubernetes/clusterrole.yaml again."


@dataclass(frozen=True)
class Proof:
    """`api`: the group and version of the PodGroups that the scheduler enforces; "" if it was not proved."""

    api: str
    message: str


def prove(
    client: Client, settings: Settings, keeper: Namespaces, namespaces: Collection[str], lacks: Sequence[str]
) -> Proof:
    """`namespaces`: where runs go; one is made if it is not there, as a run would. `lacks`: rights to PodGroups that the portal
    does not have."""
    api = _served(client)
    if not api:
        return Proof("", UNSERVED)
    if lacks:
        return Proof("", f"{UNKNOWN} the portal may not {', '.join(lacks)}. {AGAIN}")
    if not namespaces:
        return Proof("", HOMELESS)
    try:
        _remove_left_over(client, settings.portal)
        owner = _owner(settings.portal, keeper, client, namespaces)
        return Trial(client, settings, owner, api).judge() if owner else Proof("", HOMELESS)
    except CloudError as error:
        log.info("whether gangs are enforced is not known: %s", error)
        return Proof("", f"{UNKNOWN} {str(error).rstrip('.')}.")


def _served(client: Client) -> str:
    """Returns the newest API with PodGroups that the portal knows, "" for none."""
    with suppress(Missing):
        group = client.get_once(f"/apis/{gangs.GROUP}")
        versions = {each["version"] for each in group["versions"]}
        for version in (each for each in gangs.VERSIONS if each in versions):
            found = client.get_once(f"/apis/{gangs.GROUP}/{version}")
            if any(each["name"] == gangs.PLURAL for each in found["resources"]):
                return f"{gangs.GROUP}/{version}"
    return ""


def _owner(portal: str, keeper: Namespaces, client: Client, namespaces: Collection[str]) -> Object | None:
    """Makes the owner of a trial in the first namespace that is ours. Returns None if none is."""
    for namespace in sorted(namespaces):
        metadata = {
            "name": f"gpu-cloud-probe-{secrets.token_hex(4)}",
            "namespace": namespace,
            "labels": {names.PROBE: portal},
        }
        with suppress(NotOurs):
            made = keeper.put_inside({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, client.create)
            return dict(made)
    return None


def _remove_left_over(client: Client, portal: str) -> None:
    """Removes what a test left behind whose process died."""
    last = dt.datetime.now(dt.UTC) - LEFT_OVER
    ours = f"{names.PROBE}={portal}"
    for page in client.pages(path_of("ConfigMap"), accept=METADATA_LIST, labelSelector=ours):
        for metadata in (each["metadata"] for each in page["items"] or ()):
            if dt.datetime.fromisoformat(metadata["creationTimestamp"]) < last:
                with suppress(Missing):
                    client.delete(path_of("ConfigMap", metadata["namespace"], metadata["name"]))


class Trial:
    """One trial; everything of it has the name of its owner."""

    def __init__(self, client: Client, settings: Settings, owner: Object, api: str) -> None:
        self._client, self._settings, self._api = client, settings, api
        self._owner = owner["metadata"]
        self._name, self._namespace = self._owner["name"], self._owner["namespace"]

    def judge(self) -> Proof:
        try:
            version = self._make()
            told = self._told_of_pod()
            if told is None:
                return Proof("", f"{UNKNOWN} within {SECONDS} s its scheduler said nothing of two pods for a trial.")
            if told == "bound":
                return Proof("", STORED)
            if _NO_NODE.search(told):
                return Proof("", f"{UNKNOWN} no node took a pod for a trial.")
            if not self._is_held(version):
                return Proof("", f"{UNKNOWN} its scheduler said nothing of a group for a trial.")
        finally:
            with suppress(Missing):
                self._client.delete(path_of("ConfigMap", self._namespace, self._name))
        if not self._is_removed(version):
            # The end of every run would wait for its group.
            return Proof("", f"{UNKNOWN} a group for a trial was not removed within {GONE_SECONDS} s.")
        return Proof(self._api, f"{ENFORCED} ({self._api})")

    def _make(self) -> str:
        """Makes the group and its pods. Returns the version of the group."""
        body = {
            "apiVersion": self._api,
            "kind": gangs.KIND,
            "metadata": self._metadata(self._name),
            "spec": gangs.policy(2),
        }
        group = self._client.request("POST", gangs.path(self._api, self._namespace), body=body)
        for name, nowhere in ((self._name, False), (f"{self._name}-nowhere", True)):
            self._client.create(self._job(name, nowhere=nowhere))
        return str(group["metadata"]["resourceVersion"])

    def _metadata(self, name: str) -> Object:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": self._name, "uid": self._owner["uid"]}
        return {
            "name": name,
            "namespace": self._namespace,
            "labels": self._owner["labels"],
            "ownerReferences": [owner],
        }

    def _job(self, name: str, *, nowhere: bool) -> Object:
        settings = self._settings
        pod = {
            "schedulingGroup": {"podGroupName": self._name},
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            # Taints say nothing about the scheduler.
            "tolerations": [{"operator": "Exists"}],
            **({"nodeSelector": {names.PROBE: "nowhere"}} if nowhere else {}),
            "containers": [
                {
                    "name": "probe",
                    "image": settings.storage_image,
                    "imagePullPolicy": settings.image_pull_policy,
                    "command": ["true"],
                    "securityContext": storage.CONFINED,
                    # All that the LimitRange and a quota of the namespace can ask for.
                    "resources": {
                        "requests": {"cpu": "0", "memory": "0", "ephemeral-storage": "0"},
                        "limits": {"cpu": "100m", "memory": "32Mi", "ephemeral-storage": "16Mi"},
                    },
                }
            ],
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self._metadata(name),
            "spec": {
                "activeDeadlineSeconds": LIFE,
                "ttlSecondsAfterFinished": 0,
                "backoffLimit": 0,
                "template": {"metadata": {"labels": self._owner["labels"]}, "spec": pod},
            },
        }

    def _told_of_pod(self) -> str | None:
        """Returns what the scheduler says of the pod that fits on any node: "bound", or why it waits; None if nothing in time."""
        wanted = {"labelSelector": f"batch.kubernetes.io/job-name={self._name}"}
        path = path_of("Pod", self._namespace)
        found = self._client.get(path, **wanted)
        news = self._watched(path, found["metadata"]["resourceVersion"], SECONDS, **wanted)
        for pod in chain(found["items"], news):
            if pod["spec"].get("nodeName") or "schedulingGroup" not in pod["spec"]:
                return "bound"
            for each in pod["status"].get("conditions") or ():
                if each["type"] == "PodScheduled" and each["status"] == "False":
                    return str(each.get("message") or "it waits")
        return None

    def _is_held(self, version: str) -> bool:
        """Returns whether the scheduler says of the group that it cannot be scheduled, as it does only if it enforces groups."""
        for group in self._watched(gangs.path(self._api, self._namespace), version, SECONDS, **self._this):
            for each in (group.get("status") or {}).get("conditions") or ():
                # PodGroupScheduled, since 1.37 PodGroupInitiallyScheduled
                if each["type"].endswith("Scheduled"):
                    return (each["status"], each["reason"]) == ("False", "Unschedulable")
        return False

    def _is_removed(self, version: str) -> bool:
        path = gangs.path(self._api, self._namespace)
        return any(kind == "DELETED" for kind, _ in self._events(path, version, GONE_SECONDS, **self._this))

    @property
    def _this(self) -> dict[str, str]:
        return {"fieldSelector": f"metadata.name={self._name}"}

    def _watched(self, path: str, version: str, seconds: int, **query: str) -> Iterator[Object]:
        return (each for kind, each in self._events(path, version, seconds, **query) if kind in ("ADDED", "MODIFIED"))

    def _events(self, path: str, version: str, seconds: int, **query: str) -> Iterator[tuple[str, Object]]:
        answer = self._client.watch(path, version, **query, timeoutSeconds=seconds)
        try:
            for event in events(answer):
                yield event["type"], event["object"]
        finally:
            answer.close()
