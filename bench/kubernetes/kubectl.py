"""Floors of a launch on Kubernetes: `kubectl` applies and deletes the same objects without a portal, or Jobs of as many
plain pods, which have only a name and an image.

The portal's manifests render the same objects from the plan of a real run. They lack only owner references, because the
owner does not exist yet. Like the portal, `delete` reads every pod's log first; then it releases each ended pod with
one call, but writes nothing to a database before. Deletion without any finalizer is measured, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from clusters.clouds.drivers.base import Plan, RolePlan, RunRef
from clusters.clouds.drivers.kubernetes.api.client import STRATEGIC, Client, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Missing
from clusters.clouds.drivers.kubernetes.render import manifests, names
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.binary import binary
from tests.kube.plane import Plane, phase

# The portal ignores objects of another installation.
FLOOR = Settings(portal="floor")
PLAIN = "plain"
# Verbs of the audit log that change something.
MUTATING = {"create", "update", "patch", "delete", "deletecollection"}


class Floor:
    """One launch by hand. `apply` and `delete` return the seconds until every pod runs, and until none is left. `held`:
    with the metering finalizers. `plain`: only as many pods, in a namespace without limits. `pod_bytes`: size of the
    largest pod as the API server returns it, once all run."""

    def __init__(self, plane: Plane, plan: Plan, number: int, *, held: bool = True, plain: bool = False) -> None:
        run = replace(plan.run, id=10**9 + number, cluster=f"floor-{number}", number=number)
        held = held and not plain
        if plain:
            run = replace(run, namespace=_plain_namespace(plane))
        self._plane = plane
        self._pods = f"/api/v1/namespaces/{run.namespace}/pods"
        self._selector = names.selector(portal=FLOOR.portal, run_id=run.id)
        self._count = sum(role.count for role in plan.roles)
        self._file = plane.folder / f"floor-{number}.json"
        owner = manifests.owner_manifest(run, FLOOR, plan)
        items = [owner, *manifests.run_manifests(replace(plan, run=run), "", FLOOR)]
        if plain:
            items = [_plain_job(plan, role, run) for role in plan.roles]
        for item in items:
            _unbind(item, held=held)
        self._namespace = run.namespace
        self._owner = path_of("ConfigMap", run.namespace, names.owner_name(run))
        self._held = held
        self._api = Client.connect(str(plane.kubeconfig))
        self._let_go: set[str] = set()
        self.pod_bytes = 0
        self._file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def apply(self) -> float:
        seconds = self._timed(["apply", "--server-side"], self._all_run)
        self.pod_bytes = pod_bytes(self._api, self._pods, self._selector)
        return seconds

    def delete(self) -> float:
        begin = time.perf_counter()
        if self._held:
            # Logs are deleted with their pods, so read them before.
            pods = self._api.get(self._pods, labelSelector=self._selector)["items"]
            self._api.all_at_once([partial(self._log_of, pod["metadata"]["name"]) for pod in pods])
        read = time.perf_counter() - begin
        return read + self._timed(["delete"], self._none_is_left)

    def _log_of(self, pod: str) -> bytes:
        with closing(self._api.open(f"{self._pods}/{pod}/log", timestamps="true")) as answer:
            return answer.read()

    def _all_run(self, pods: dict[str, Any]) -> bool:
        return sum(phase(pod) == "Running" for pod in pods.values()) == self._count

    def _none_is_left(self, pods: dict[str, Any]) -> bool:
        ended = {name for name, pod in pods.items() if self._held and phase(pod) in ("Succeeded", "Failed")}
        for name in ended - self._let_go:
            self._api.in_background(self._release, path_of("Pod", self._namespace, name), names.METERING)
        if self._held and not self._let_go:
            self._api.in_background(self._release, self._owner, names.TOLD)
            self._let_go.add(self._owner)
        self._let_go |= ended
        return not pods

    def _release(self, path: str, finalizer: str) -> None:
        try:
            self._api.patch(path, {"metadata": {"$deleteFromPrimitiveList/finalizers": [finalizer]}}, STRATEGIC)
        except Missing:
            return

    def _timed(self, verb: Sequence[str], happened: Callable[[dict[str, Any]], bool]) -> float:
        begin = time.perf_counter()
        applied = threading.Thread(target=kubectl, args=(self._plane, *verb, "-f", str(self._file)))
        applied.start()
        self._plane.until(self._pods, happened, 120, labelSelector=self._selector)
        seconds = time.perf_counter() - begin
        applied.join()
        return seconds


def kubectl(plane: Plane, *arguments: str) -> None:
    # kubectl discovers the server's API once and caches it in this folder, as in a user's home.
    env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "KUBECACHEDIR": str(plane.folder / "kubectl")}
    subprocess.run([str(binary()), "kubectl", *arguments], env=env, stdout=subprocess.DEVNULL, check=True)


def pod_bytes(api: Client, path: str, selector: str) -> int:
    """The JSON size of the largest of these pods."""
    pods = api.get(path, labelSelector=selector)["items"]
    return max(len(json.dumps(pod, separators=(",", ":"))) for pod in pods)


def _plain_namespace(plane: Plane) -> str:
    """A namespace without Pod Security, limits and policies. Created if absent."""
    if PLAIN not in {each["metadata"]["name"] for each in plane.request("GET", "/api/v1/namespaces")["items"]}:
        plane.make_namespace(PLAIN)
    return PLAIN


def _plain_job(plan: Plan, role: RolePlan, run: RunRef) -> dict[str, Any]:
    labels = names.run_selector(FLOOR.portal, run)
    container = {"name": "task", "image": plan.image.container}
    template = {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{run.cluster}-{role.role}", "namespace": run.namespace},
        "spec": {"parallelism": role.count, "completions": role.count, "template": template},
    }


def _unbind(item: dict[str, Any], *, held: bool) -> None:
    template = item.get("spec", {}).get("template", {}).get("metadata", {})
    for metadata in (item["metadata"], template):
        metadata.pop("ownerReferences", None)
        if not held:
            metadata.pop("finalizers", None)
