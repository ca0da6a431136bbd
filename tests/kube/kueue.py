"""A stand-in for Kueue, by its documented contract with controllers that make their own Workloads.

`installed` serves the kinds that the portal reads and writes. `Kueue` is the controller, for one LocalQueue and ResourceFlavor:

- It reserves quota for whole Workloads, those of higher priority first and then the oldest, and never for a part of one. Pods
  that were said to be reclaimable count no more. A Workload that does not fit says what it lacks and holds nothing; later ones
  may start before it (BestEffortFIFO).
- It admits with the quota (there are no admission checks), and names the flavor for each resource of each set of pods.
- `evict` sets the condition Evicted. The quota stays reserved until the Workload's controller clears `status.admission`, and the
  condition stays until quota is reserved anew. It waits again at once only where Requeued is not false.
- `spec.active: false` evicts with the reason Deactivated. `Finished`, or deletion, gives the quota back.

It checks nothing that Kueue's webhooks check, and its kinds accept any pod template. There are no cohorts, preemption,
back-off, topology, or several flavors; the visibility API is missing.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clusters.clouds.drivers.kubernetes.settings import quantity
from tests.kube.plane import APPLY, Object, Plane, Refused
from tests.running import eventually

GROUP, VERSION = "kueue.x-k8s.io", "v1beta1"
FLAVOR = "on-linux"
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ANY: Any = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _listed(key: str) -> Object:
    """Returns the schema of a list of which each manager may own items."""
    item = {**_ANY, "properties": {key: {"type": "string"}}, "required": [key]}
    return {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


_WORKLOAD: Object = {
    "type": "object",
    "properties": {
        "spec": {
            **_ANY,
            "properties": {
                "podSets": _listed("name"),
                "queueName": {"type": "string"},
                "priority": {"type": "integer"},
            },
        },
        "status": {
            **_ANY,
            "properties": {"conditions": _listed("type"), "reclaimablePods": _listed("name")},
        },
    },
}
_KINDS: Mapping[str, tuple[str, str, Object]] = {
    "localqueues": ("LocalQueue", "Namespaced", _ANY),
    "workloads": ("Workload", "Namespaced", _WORKLOAD),
    "resourceflavors": ("ResourceFlavor", "Cluster", _ANY),
}


@contextmanager
def installed(plane: Plane, version: str = VERSION) -> Iterator[None]:
    for plural, (kind, scope, schema) in _KINDS.items():
        names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        served["subresources"] = {"status": {}} if plural == "workloads" else {}
        body = {
            "metadata": {"name": f"{plural}.{GROUP}"},
            "spec": {"group": GROUP, "names": names, "scope": scope, "versions": [served]},
        }
        plane.request("POST", _PATH, body)
    try:
        # The API server publishes and withdraws API groups with a delay.
        assert eventually(lambda: all(_is_served(plane, version, each) for each in _KINDS), 60)
        yield
    finally:
        for plural in _KINDS:
            plane.request("DELETE", f"{_PATH}/{plural}.{GROUP}")
        assert eventually(lambda: not any(_is_served(plane, version, each) for each in _KINDS), 60)


@contextmanager
def place_asked(plane: Plane) -> Iterator[None]:
    """Serves the API of places in queues, but none of them: it answers 404."""
    group = f"visibility.{GROUP}"
    served = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": _ANY}}
    names = {"plural": "localqueues", "singular": "localqueue", "kind": "LocalQueue", "listKind": "LocalQueueList"}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [served]}
    plane.request("POST", _PATH, {"metadata": {"name": f"localqueues.{group}"}, "spec": spec})
    try:
        assert eventually(lambda: _answers(plane, f"/apis/{group}"), 60)
        yield
    finally:
        plane.request("DELETE", f"{_PATH}/localqueues.{group}")


def make_queue(plane: Plane, namespace: str, name: str, version: str = VERSION) -> None:
    body = {"apiVersion": f"{GROUP}/{version}", "kind": "LocalQueue", "metadata": {"name": name}, "spec": {}}
    plane.request("POST", f"/apis/{GROUP}/{version}/namespaces/{namespace}/localqueues", body)


def _is_served(plane: Plane, version: str, plural: str) -> bool:
    return _answers(plane, f"/apis/{GROUP}") and _answers(plane, f"/apis/{GROUP}/{version}/{plural}")


def _answers(plane: Plane, path: str) -> bool:
    try:
        plane.request("GET", path)
    except Refused as refusal:
        # 429: its storage is being created.
        if refusal.status not in (404, 429):
            raise
        return False
    except ValueError:
        # For a group that it does not serve, the API server answers in plain text.
        return False
    return True


class Kueue:
    """The controller of one namespace. `quota`: how much of each resource its Workloads may hold together."""

    def __init__(self, plane: Plane, namespace: str, quota: Mapping[str, int], version: str = VERSION) -> None:
        self._plane, self._version = plane, version
        self._path = f"/apis/{GROUP}/{version}/namespaces/{namespace}/workloads"
        self.quota = dict(quota)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        # What broke the contract, or went wrong here.
        self.faults: list[str] = []

    def __enter__(self) -> Kueue:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        assert not self.faults, self.faults

    # -- what a test asks --------------------------------------------------------------------------------------------

    def workload(self, name: str) -> Object:
        return self._plane.request("GET", f"{self._path}/{name}")

    def until(self, name: str, kind: str, status: str = "True") -> Object:
        """Waits until the Workload has this condition."""
        found = self._plane.until(self._path, lambda known: name in known and status_of(known[name], kind) == status)
        return found[name]

    def evict(self, name: str, reason: str = "Preempted", message: str = "Preempted to accommodate a workload") -> None:
        self._say(self.workload(name), [condition("Evicted", "True", reason, message)])

    def finish(self, name: str) -> None:
        self._say(self.workload(name), [condition("Finished", "True", "Succeeded", "Somebody says so")])

    # -- the controller ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Looks at everything a few times a second: it is small, and a test takes seconds."""
        while not self._stopped.wait(0.1):
            try:
                self._reconcile()
            except Refused as refusal:
                if refusal.status not in (404, 409):
                    self.faults.append(str(refusal))
            except Exception as error:  # noqa: BLE001 - shown by the test, which would wait in vain
                self.faults.append(repr(error))
                return

    def _reconcile(self) -> None:
        found = self._plane.request("GET", self._path)["items"]
        alive = [each for each in found if status_of(each, "Finished") != "True"]
        for each in alive:
            is_off = each["spec"].get("active") is False
            if is_off and status_of(each, "QuotaReserved") == "True" and status_of(each, "Evicted") != "True":
                self._say(each, [condition("Evicted", "True", "Deactivated", "The workload is deactivated")])
        used = Counter[str]()
        for each in alive:
            if status_of(each, "QuotaReserved") == "True":
                used += asked_by(each)
        waiting = [each for each in alive if status_of(each, "QuotaReserved") != "True" and _may_start(each)]
        for each in sorted(waiting, key=_order):
            asked = asked_by(each)
            lacks = [(what, asked[what] + used[what] - most) for what, most in self.quota.items()]
            short = [(what, amount) for what, amount in lacks if amount > 0]
            if short:
                self._refuse(each, short)
            else:
                self._admit(each)
                used += asked

    def _admit(self, workload: Object) -> None:
        sets = [
            {"name": each["name"], "count": each["count"], "flavors": dict.fromkeys(_asked_each(each), FLAVOR)}
            for each in workload["spec"]["podSets"]
        ]
        now = [
            condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue main"),
            condition("Admitted", "True", "Admitted", "The workload is admitted"),
        ]
        now += [
            condition(kind, "False", "QuotaReserved", "Previously")
            for kind in ("Evicted",)
            if status_of(workload, kind) == "True"
        ]
        self._say(workload, now, {"admission": {"clusterQueue": "main", "podSetAssignments": sets}})

    def _refuse(self, workload: Object, short: list[tuple[str, float]]) -> None:
        parts = ", ".join(
            f"insufficient unused quota for {what} in flavor {FLAVOR}, {amount:g} more needed" for what, amount in short
        )
        message = f"couldn't assign flavors to pod set {workload['spec']['podSets'][0]['name']}: {parts}"
        known = next((each for each in _conditions(workload) if each["type"] == "QuotaReserved"), {})
        if known.get("message") != message:
            self._say(workload, [condition("QuotaReserved", "False", "Pending", message)])

    def _say(self, workload: Object, changed: list[Object], more: Object | None = None) -> None:
        """Applies conditions and, with them, everything else that it owns, as Kueue does."""
        types = {each["type"] for each in changed}
        kept = [each for each in _conditions(workload) if each["type"] not in types and each["type"] != "PodsReady"]
        admission = (workload.get("status") or {}).get("admission")
        status = {"conditions": [*kept, *changed], **({"admission": admission} if admission else {}), **(more or {})}
        body = {
            "apiVersion": f"{GROUP}/{self._version}",
            "kind": "Workload",
            "metadata": {key: workload["metadata"][key] for key in ("name", "uid", "resourceVersion")},
            "status": status,
        }
        path = f"{self._path}/{workload['metadata']['name']}/status"
        self._plane.request("PATCH", path, body, content_type=APPLY, fieldManager="kueue-admission", force="true")


def make_flavor(plane: Plane, labels: Mapping[str, str], taint: str = "", version: str = VERSION) -> None:
    tolerations = [{"key": taint, "operator": "Exists"}] if taint else []
    body = {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "ResourceFlavor",
        "metadata": {"name": FLAVOR},
        "spec": {"nodeLabels": dict(labels), "tolerations": tolerations},
    }
    plane.apply(f"/apis/{GROUP}/{version}/resourceflavors/{FLAVOR}", body, force="true")


def status_of(workload: Object, kind: str) -> str:
    return next((str(each["status"]) for each in _conditions(workload) if each["type"] == kind), "")


def condition(kind: str, status: str, reason: str, message: str) -> Object:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}


def asked_by(workload: Object) -> Counter[str]:
    """Returns what its pods request together, without those that are done for good."""
    done = {each["name"]: each["count"] for each in (workload.get("status") or {}).get("reclaimablePods") or []}
    total = Counter[str]()
    for each in workload["spec"]["podSets"]:
        for what, amount in _asked_each(each).items():
            total[what] += amount * (each["count"] - done.get(each["name"], 0))
    return total


def _asked_each(pods: Object) -> dict[str, int]:
    found = Counter[str]()
    for container in pods["template"]["spec"]["containers"]:
        for what, amount in container["resources"]["requests"].items():
            found[what] += round(quantity(amount))
    return dict(found)


def _may_start(workload: Object) -> bool:
    return workload["spec"].get("active") is not False and status_of(workload, "Requeued") != "False"


def _order(workload: Object) -> tuple[int, str, str]:
    metadata = workload["metadata"]
    return -int(workload["spec"].get("priority", 0)), metadata["creationTimestamp"], metadata["uid"]


def _conditions(workload: Object) -> list[Any]:
    return list((workload.get("status") or {}).get("conditions") or [])
