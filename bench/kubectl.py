"""The floor of a launch on Kubernetes: `kubectl` applies and deletes the very same objects, without a portal.

They are rendered by the portal's own manifests from the plan of a real run; only references to the owner, which does not exist
before, are left out. Whoever waits for the end lets go of each pod when it has ended, as somebody must: one call a pod, with
nothing written down before. What deleting takes without any finalizer is measured, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusters.clouds.base import Plan
from clusters.clouds.kubernetes import manifests, names
from clusters.clouds.kubernetes.client import STRATEGIC, Client, Missing, path_of
from clusters.clouds.kubernetes.settings import Settings
from tests.kube.binary import binary
from tests.kube.plane import Plane, phase

# The portal does not look at objects of another installation.
FLOOR = Settings(portal="floor")


class Floor:
    """One launch by hand: `apply` and `delete` return the seconds until every pod runs, and until none is left. `held`: with
    the finalizers of metering."""

    def __init__(self, plane: Plane, plan: Plan, number: int, *, held: bool = True) -> None:
        run = replace(plan.run, id=10**9 + number, cluster=f"floor-{number}", number=number)
        self._plane = plane
        self._pods = f"/api/v1/namespaces/{run.namespace}/pods"
        self._selector = names.selector(portal=FLOOR.portal, run_id=run.id)
        self._count = sum(role.count for role in plan.roles)
        self._file = plane.folder / f"floor-{number}.json"
        items = [manifests.owner_manifest(run, FLOOR), *manifests.run_manifests(replace(plan, run=run), "", FLOOR)]
        for item in items:
            _unbind(item, held=held)
        self._namespace = run.namespace
        self._owner = path_of("ConfigMap", run.namespace, names.owner_name(run))
        self._held = held
        self._api = Client.connect(str(plane.kubeconfig))
        self._let_go: set[str] = set()
        self._file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def apply(self) -> float:
        return self._timed(["apply", "--server-side"], self._all_run)

    def delete(self) -> float:
        return self._timed(["delete"], self._none_is_left)

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
        kubectl = threading.Thread(target=self._kubectl, args=([*verb, "-f", str(self._file)],))
        kubectl.start()
        self._plane.until(self._pods, happened, 120, labelSelector=self._selector)
        seconds = time.perf_counter() - begin
        kubectl.join()
        return seconds

    def _kubectl(self, arguments: Sequence[str]) -> None:
        # What the server can do is looked up once and kept in that folder, as in anybody's home.
        env = {**os.environ, "KUBECONFIG": str(self._plane.kubeconfig), "KUBECACHEDIR": str(_cache(self._plane))}
        subprocess.run([str(binary()), "kubectl", *arguments], env=env, stdout=subprocess.DEVNULL, check=True)


def _cache(plane: Plane) -> Path:
    return plane.folder / "kubectl"


def _unbind(item: dict[str, Any], *, held: bool) -> None:
    template = item.get("spec", {}).get("template", {}).get("metadata", {})
    for metadata in (item["metadata"], template):
        metadata.pop("ownerReferences", None)
        if not held:
            metadata.pop("finalizers", None)
