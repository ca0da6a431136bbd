"""Follows a Kubernetes cloud as the controller does, and records its news."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from clusters.clouds.drivers.base import CloudError, RunGone, RunRef, Seen, StorageSeen, TaskSeen, WatchExpired
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.plane import Plane
from tests.running import eventually

T = TypeVar("T")
PORTAL_USER = "gpu-cloud-portal"
ROLE = Path(__file__).parents[2] / "docker" / "kubernetes" / "clusterrole.yaml"
OPTIONAL = ROLE.with_name("nodes.yaml")
MEASURING = ROLE.with_name("measuring.yaml")


# The network of the servers that tests on the real node use.
NODES = ("10.209.0.0/16",)


class CountingClient(Client):
    """Counts write calls."""

    writes = 0
    _counting = threading.Lock()

    def request(self, method: str, path: str, **more: Any) -> Any:
        if method != "GET":
            with self._counting:
                self.writes += 1
        return super().request(method, path, **more)


def cloud_of(plane: Plane, portal: str) -> KubernetesCloud:
    """Returns the cloud with exactly the rights that docker/kubernetes grants the portal."""
    return KubernetesCloud(
        CountingClient.connect(str(portal_kubeconfig(plane))), Settings(portal=portal, storage_networks=NODES)
    )


def registered(plane: Plane, name: str, *, portal: str, namespace: str = "", **more: Any) -> Any:
    """Stores the plane as a Cloud row, with the portal's rights and either one namespace or those of all business lines."""
    from clusters.clouds.drivers.kubernetes.api import kubeconfig
    from clusters.clouds.models import Cloud

    hand_over(plane, portal, namespace)
    config = kubeconfig.read(portal_kubeconfig(plane).read_text())
    return Cloud.objects.create(
        kind="kubernetes",
        name=name,
        title=name.title(),
        credentials=json.dumps(config),
        settings={"portal": portal, "storage_networks": NODES},
        **more,
    )


def hand_over(plane: Plane, portal: str, namespace: str = "") -> None:
    """Transfers existing namespaces to this portal, as an administrator would. Every test is a portal of its own, but their
    business lines share names."""
    from portal.models import OrgNode

    wanted = (
        {namespace} if namespace else set(OrgNode.objects.exclude(namespace=None).values_list("namespace", flat=True))
    )
    for found in plane.request("GET", "/api/v1/namespaces")["items"]:
        if (name := found["metadata"]["name"]) in wanted and "deletionTimestamp" not in found["metadata"]:
            plane.request("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"labels": {names.PORTAL: portal}}})


def grant(plane: Plane, role: dict[str, Any]) -> None:
    """Gives the portal's user a ClusterRole."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    # A binding name of its own, because tests also apply docker/kubernetes to this plane; the role is the same.
    name = role["metadata"]["name"]
    plane.apply(f"{rbac}/clusterroles/{name}", role)
    binding = {
        "apiVersion": role["apiVersion"],
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{PORTAL_USER}-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": PORTAL_USER}],
    }
    plane.apply(f"{rbac}/clusterrolebindings/{binding['metadata']['name']}", binding)


def measuring() -> dict[str, Any]:
    """The optional ClusterRole by which the portal reads what tasks use."""
    role: dict[str, Any] = next(yaml.safe_load_all(MEASURING.read_text()))
    return role


@functools.lru_cache
def portal_kubeconfig(plane: Plane) -> Path:
    """Returns a kubeconfig with the portal's rights once they are in force."""
    for role in (yaml.safe_load(ROLE.read_text()), next(yaml.safe_load_all(OPTIONAL.read_text()))):
        grant(plane, role)
    kubeconfig = plane.kubeconfig_for(PORTAL_USER)
    client, deadline = Client.connect(str(kubeconfig)), time.monotonic() + 60
    while True:  # the authorizer learns of the rights through a watch
        try:
            client.get("/api/v1/nodes")
        except CloudError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return kubeconfig


def until_found(find: Callable[[], T | None], seconds: float = 60) -> T:
    """Polls until `find` finds something."""
    found: list[T] = []

    def look() -> bool:
        answer = find()
        found[:] = [] if answer is None else [answer]
        return answer is not None

    assert eventually(look, seconds), "not in time"
    return found[0]


class Following:
    """`told` holds all news in order, `tasks` the last state of each pod."""

    def __init__(self, cloud: KubernetesCloud, *, acknowledges: bool = True) -> None:
        self.cloud = cloud
        self._acknowledges = acknowledges
        self._acknowledging = threading.Lock()
        self._unacknowledged: list[Seen] = []
        self.told: list[Seen] = []
        self.tasks: dict[str, TaskSeen] = {}
        self.listings = 0
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Following:
        self._thread.start()
        self.until(lambda: self.listings > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True

    @property
    def acknowledges(self) -> bool:
        return self._acknowledges

    @acknowledges.setter
    def acknowledges(self, wanted: bool) -> None:
        """Turns acknowledgement on or off. After False returns, nothing more is acknowledged. After True, the watching
        thread (no other thread may) acknowledges the backlog with the next batch."""
        with self._acknowledging:
            self._acknowledges = wanted

    def until_idle(self) -> None:
        """Waits until no background work of acknowledged news is left."""
        upkeep = self.cloud._upkeep
        self.until(lambda: upkeep is None or not upkeep._busy)

    def _follow(self) -> None:
        position = ""
        while not self._stopped:
            try:
                if not position:
                    listing = self.cloud.list()
                    self._take(listing.items)
                    with self._changed:
                        self.listings += 1
                        self._changed.notify_all()
                    position = listing.position
                for batch in self.cloud.watch(position):
                    self._take(batch.items)
                    position = batch.position
                    if self._stopped:
                        return
            except WatchExpired:
                position = ""
            except CloudError as error:
                self.errors.append(str(error))
                time.sleep(0.2)

    def _take(self, items: tuple[Seen, ...]) -> None:
        with self._changed:
            self.told += items
            self.tasks |= {item.uid: item for item in items if isinstance(item, TaskSeen)}
            self._changed.notify_all()
        with self._acknowledging:
            self._unacknowledged += items
            if self._acknowledges:
                told, self._unacknowledged = tuple(self._unacknowledged), []
                self.cloud.acknowledge(told)

    def until(self, happened: Callable[[], object], seconds: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(happened, seconds), "\n".join(map(str, [*self.errors, *self.told[-10:]]))

    def of(self, run: RunRef, phase: str = "") -> list[TaskSeen]:
        """Returns the run's tasks that are in `phase` now, ordered by role, index and attempt."""
        found = (task for task in self.tasks.values() if task.run_id == run.id and phase in ("", task.phase))
        return sorted(found, key=lambda task: (task.role, task.index, task.attempt))

    def is_gone(self, run: RunRef) -> RunGone | None:
        return next((item for item in self.told if isinstance(item, RunGone) and item.run_id == run.id), None)

    def storage(self, run: RunRef) -> list[str]:
        return [item.state for item in self.told if isinstance(item, StorageSeen) and item.run_id == run.id]
