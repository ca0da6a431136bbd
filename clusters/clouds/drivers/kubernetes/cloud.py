"""`base.Cloud` over a Kubernetes API server.

A run is an owner object and the objects it owns. Launch: server-side apply of the owner, then of everything else in parallel.
End: the workloads are scaled to no pods, then the owner is deleted with foreground propagation, so that it outlives everything
it owned; once it is alone, the run is gone. Two finalizers protect what is not stored yet: one on every pod until its end is in
the database, one on the owner until RunGone is. `acknowledge` removes them.

A run outlives releases of the portal and changed settings. What was rendered when it was started stays its own until it ends: the
owner with all that tasks share, workloads, Services, Ingresses, policies, and claims and volumes of the run. `apply` takes them
from the owner (render/kept.py), so it restarts nothing, whatever release repairs the run. Rendered anew by each apply are the
Secrets of the run and the volumes of datastores. Namespaces and their limits follow the current release and settings.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import orjson
from pydantic import ValidationError

from clusters.clouds.drivers.base import (
    Access,
    Batch,
    Capacity,
    Cloud,
    CloudError,
    CloudRefused,
    Endpoint,
    Gateway,
    GivesUpNodes,
    GpuUse,
    ImageRef,
    Inspected,
    KeepsVolumes,
    LogChunk,
    Measurements,
    MeasuresGpus,
    Mount,
    Plan,
    Preflight,
    RolePlan,
    RunRef,
    RunsCommands,
    Samples,
    SamplesTasks,
    Seen,
    Session,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.drivers.kubernetes import launch, logs, prometheus, sampling
from clusters.clouds.drivers.kubernetes.api import kueue, lookup, preflight, probe
from clusters.clouds.drivers.kubernetes.api.client import METADATA_LIST, Client, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Forbidden, Missing, Refused
from clusters.clouds.drivers.kubernetes.namespaces import Namespaces
from clusters.clouds.drivers.kubernetes.render import (
    cache,
    environments,
    manifests,
    names,
    network_policy,
    pods,
    storage,
)
from clusters.clouds.drivers.kubernetes.repair import drift
from clusters.clouds.drivers.kubernetes.repair.upkeep import Upkeep
from clusters.clouds.drivers.kubernetes.settings import Settings, quantity
from clusters.clouds.drivers.kubernetes.watch import capacity as nodes
from clusters.clouds.drivers.kubernetes.watch.follower import Follower

log = logging.getLogger(__name__)


class KubernetesCloud(Cloud, KeepsVolumes, RunsCommands, MeasuresGpus, SamplesTasks, GivesUpNodes, Inspected):
    """One Kubernetes cluster. Thread-safe; only one thread lists and watches."""

    kind = "kubernetes"
    title = "Kubernetes"
    is_remote = True
    fixed_settings: ClassVar[Mapping[str, str]] = {"portal": "The old label is on"}
    software = "container"
    mounts = frozenset({"s3", "nfs", "volume"})
    streams = True
    longest_address = names.LONGEST_ADDRESS
    asks_for_addresses = False
    needs_namespace = True
    has_pools = True

    def __init__(
        self, client: Client, settings: Settings, name: str = "kubernetes", prometheus_token: str = ""
    ) -> None:
        self.name = name
        self._client = client
        self._settings = settings
        self._prometheus_token = prometheus_token
        bounds = drift.bounds(settings.quota)
        self._new_follower = functools.partial(
            Follower,
            client,
            settings.portal,
            bounds,
            settings.reserved_disk,
            settings.tolerations,
            settings.image_seconds,
            settings.topology,
        )
        self._follower = self._new_follower()
        self._pods = logs.Pods(client, settings.portal)
        self._namespaces = Namespaces(client, settings)
        self._upkeep: Upkeep | None = None
        selector = names.selector(portal=settings.portal)
        self._sampling = sampling.Sampling(client, settings, prometheus_token, selector)

    @classmethod
    def connect(cls, access: Access) -> Self:
        name = access.name
        try:
            settings = Settings.read(access.settings)
        except ValidationError as error:
            sentence = f"The settings of {name} are not understood; an administrator can save them again."
            raise CloudError(sentence) from error
        try:
            client = Client.connect(orjson.loads(access.credentials) if access.credentials else "")
        except orjson.JSONDecodeError as error:
            sentence = f"The kubeconfig of {name} cannot be decrypted: was PORTAL_SECRET_KEY changed?"
            raise CloudError(sentence) from error
        return cls(client, settings, name, access.prometheus_token)

    @classmethod
    def is_reserved(cls, namespace: str) -> bool:
        """Every Kubernetes cluster has these namespaces: the portal would close them to all traffic but its own."""
        return namespace == "default" or namespace.startswith("kube-")

    @classmethod
    def closed_networks(cls, stored: Mapping[str, Any]) -> Iterable[str]:
        """Returns the stored networks even if other settings are unreadable, else the default."""
        networks: Iterable[str] = stored.get("closed_networks", Settings().closed_networks)
        return networks

    @classmethod
    def why_closed(cls, stored: Mapping[str, Any], server: str) -> str:
        return network_policy.why_closed(server, Settings.readable(stored))

    @classmethod
    def why_no_environments(cls, stored: Mapping[str, Any]) -> str:
        return environments.why_none(Settings.readable(stored))

    @classmethod
    def why_not_cached(cls, stored: Mapping[str, Any], disk_bytes: int | None) -> str:
        return cache.why_none(Settings.readable(stored), disk_bytes)

    @classmethod
    def asked(
        cls, stored: Mapping[str, Any], mounts: Sequence[Mount], cpu_milli: int, memory_mb: int, serves: bool
    ) -> tuple[int, int]:
        """Counts the pod that would be made as the scheduler does."""
        opened = (Endpoint("web", 8080),) if serves else ()
        role = RolePlan("task", 1, ("true",), {}, cpu_milli, memory_mb, 0, "", "OnFailure", 0, opened)
        run = RunRef(0, "preview", "preview", "preview", 1)
        plan = Plan(run, ImageRef("preview", "preview", "", ""), (role,), tuple(mounts))
        pod = pods.template(plan, role, Settings.readable(stored), index="")
        _, cores, memory = nodes.asked_by(pod)
        return round(1000 * cores), math.ceil(memory / 2**20)

    @classmethod
    def gateway(cls, stored: Mapping[str, Any]) -> Gateway | None:
        settings = Settings.readable(stored)
        return Gateway(settings.apps_domain, settings.gateway_address) if settings.serves else None

    @classmethod
    def places_runs(cls, stored: Mapping[str, Any]) -> bool:
        """Kueue decides itself, and an autoscaler adds nodes only for pods that wait."""
        settings = Settings.readable(stored)
        return not (settings.kueue_queue or settings.nodes_on_demand)

    @classmethod
    def gang(cls, stored: Mapping[str, Any], proved: Mapping[str, Any]) -> str:
        """Only where the portal places runs: what Kueue and autoscalers make of such pods is not tried."""
        return str((proved.get(probe.FACT) or {}).get("api", "")) if cls.places_runs(stored) else ""

    @classmethod
    def adds_nodes(cls, stored: Mapping[str, Any]) -> bool:
        return Settings.readable(stored).nodes_on_demand

    @classmethod
    def leads_routers(cls, stored: Mapping[str, Any]) -> bool:
        settings = Settings.readable(stored)
        return bool(settings.router_namespace or settings.gateway_namespace)

    def reserve(self, run: RunRef, counts: Mapping[str, int]) -> dict[tuple[str, int], str]:
        """Derives the names from the run, so nothing has to be created."""
        return {
            (role, index): names.address(run, role, index) for role, count in counts.items() for index in range(count)
        }

    def apply(self, plan: Plan) -> None:
        try:
            launch.apply(self._client, self._settings, self._namespaces, plan)
        except Missing as error:
            # The namespace was deleted meanwhile.
            raise CloudError(str(error)) from error

    def delete(self, run: RunRef, *, over: bool = False) -> None:
        """Scales the workloads to no pods first; when all have ended `upkeep` deletes everything. Otherwise the garbage
        collector and the Job controller would each handle every pod, which takes half as long again. If the tasks have ended by
        themselves one call suffices."""
        path = path_of("ConfigMap", run.namespace, names.owner_name(run))
        try:
            if over:
                if self._settings.kueue_queue:
                    kueue.say_finished(self._client, run.namespace, names.workload_name(run))
                self._client.delete(path, propagation="Foreground")
                return
            owner: Mapping[str, Any] = self._client.patch(path, {"metadata": {"annotations": {names.ENDING: "true"}}})
        except Missing:
            # Never seen or already gone: a new owner without objects makes the watch report RunGone.
            ended = manifests.owner_manifest(run, self._settings)
            ended["metadata"].setdefault("annotations", {})[names.ENDING] = "true"
            owner = self._namespaces.apply_inside(ended)
        if "deletionTimestamp" in owner["metadata"] or not self._stop(run, owner):
            self._client.delete(path, propagation="Foreground")

    def _stop(self, run: RunRef, owner: Mapping[str, Any]) -> bool:
        """Scales the run's workloads to no pods. Returns whether its tasks will end by that."""
        makers = [each.split("/") for each in owner["metadata"]["annotations"].get(names.WORKLOADS, "").split()]
        if not makers:
            return False
        # Without a selector the Service keeps its list of addresses: programs find each other until they end, and the API server
        # is spared an update of a long list for every pod that ends.
        service = path_of("Service", run.namespace, names.base_name(run))
        calls: list[Callable[[], object]] = [
            functools.partial(self._client.patch, service, {"spec": {"selector": None}})
        ]
        for kind, name in makers:
            none = {"spec": {"suspend": True} if kind == "Job" else {"replicas": 0}}
            calls.append(functools.partial(self._client.patch, path_of(kind, run.namespace, name), none))
        try:
            self._client.all_at_once(calls)
        except CloudError as error:
            log.warning("run %s is deleted at once, because its tasks cannot be ended before: %s", run.id, error)
            return False
        return True

    def foreign(self, namespaces: Collection[str]) -> dict[str, str]:
        """Returns those namespaces that exist and belong to others, each with what to do about it."""
        pages: Iterable[Any] = ()
        if len(namespaces) == 1:
            # A page waits for this: one request, without retries.
            pages = [
                self._client.get_once(path_of("Namespace"), fieldSelector=f"metadata.name={next(iter(namespaces))}")
            ]
        elif namespaces:
            pages = self._client.pages(path_of("Namespace"), accept=METADATA_LIST)
        found = {
            item["metadata"]["name"]: manifests.foreign(item, self._settings)
            for page in pages
            for item in page["items"]
            if item["metadata"]["name"] in namespaces
        }
        return {name: sentence for name, sentence in sorted(found.items()) if sentence}

    def identity(self) -> str:
        return preflight.uid_of(self._client)

    def preflight(self, namespaces: Collection[str]) -> Preflight:
        return preflight.judge(self._client, self._settings, self._namespaces, namespaces, self.foreign)

    def misnamed(self, namespaces: Collection[str]) -> Mapping[str, str]:
        return lookup.look_up(self._client, self._settings, namespaces).wrong

    def give_up_node(self, name: str) -> None:
        found = self._client.get(path_of("Node"), fieldSelector=f"metadata.name={name}")["items"]
        if not found:
            raise CloudRefused(f"There is no node {name}.")
        node = found[0]
        if not nodes.is_silent(node):
            raise CloudRefused(f"Node {name} answers. Its tasks can be ended there, so it is not given up.")
        taints = node["spec"].get("taints") or []
        if any(each["key"] == nodes.OUT_OF_SERVICE for each in taints):
            return
        taint = {"key": nodes.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
        # Taints are a list written as a whole: the version prevents losing a concurrent change.
        as_seen = {"resourceVersion": node["metadata"]["resourceVersion"]}
        try:
            self._client.patch(path_of("Node", name=name), {"metadata": as_seen, "spec": {"taints": [*taints, taint]}})
        except Forbidden as forbidden:
            raise CloudRefused(
                f"The portal may not change nodes: apply docker/kubernetes/nodes.yaml, or run “{nodes.give_up(name)}”."
            ) from forbidden

    @classmethod
    def judge_volume(cls, stored: Mapping[str, Any], title: str, storage_class: str, size: str) -> Mapping[str, str]:
        settings = Settings.readable(stored)
        wrong = {}
        if settings.storage_classes and storage_class not in settings.storage_classes:
            wrong["storage_class"] = f"{title} offers these storage classes: {', '.join(settings.storage_classes)}."
        if quantity(size) > quantity(settings.largest_volume):
            wrong["size"] = f"A volume on {title} has at most {settings.largest_volume}."
        return wrong

    @classmethod
    def volume_there(cls, volume: VolumeRef) -> str:
        return f"claim {names.claim_name(volume)} in namespace {volume.namespace}"

    def apply_volume(self, source: VolumeSource) -> None:
        manifests.check_volume(source, self._settings)
        try:
            self._namespaces.apply_inside(storage.volume_manifest(source, self._settings))
        except Refused as refusal:
            raise storage.refusal(str(refusal)) from refusal

    def delete_volume(self, volume: VolumeRef) -> None:
        """Requests deletion. Kubernetes waits until no pod mounts it, then treats the data by its class's reclaim policy."""
        try:
            self._client.delete(path_of("PersistentVolumeClaim", volume.namespace, names.claim_name(volume)))
        except Missing:
            return

    # -- what happened ---------------------------------------------------------------------------------------------

    def list(self) -> Batch:
        return self._follower.list()

    def watch(self, since: str) -> Iterator[Batch]:
        return self._follower.watch(since)

    def capacity(self) -> Capacity:
        mirror = self._follower.mirror
        if mirror is None:
            other = self._new_follower()
            other.list()
            mirror = other.mirror
            assert mirror is not None
        return mirror.capacity()

    def gpu_use(self, since: str) -> Measurements:
        """Takes two requests for any number of pods: one to Prometheus, which knows pods by name, and one for their uids."""
        if not self._settings.prometheus:
            return Measurements("", note=prometheus.UNSET)
        minutes = prometheus.minutes_due(since, dt.datetime.now(dt.UTC))
        if not minutes:
            return Measurements(since)
        busy = prometheus.read(self._settings.prometheus, self._prometheus_token, minutes)
        position = minutes[-1].isoformat()
        if not busy:
            return Measurements(position, note=prometheus.SILENT)
        selector = names.selector(portal=self._settings.portal)
        found = self._client.pages(path_of("Pod"), accept=METADATA_LIST, labelSelector=selector)
        metadata = [pod["metadata"] for page in found for pod in page["items"]]
        uids = {(each["namespace"], each["name"]): each["uid"] for each in metadata}
        return Measurements(
            position,
            tuple(
                GpuUse(uids[place], minute, 60.0, round(part, 6))
                for (minute, place), part in sorted(busy.items())
                if place in uids
            ),
        )

    def samples(self) -> Samples:
        """Only in the process that follows the cloud: it knows which pods run where without asking."""
        mirror = self._follower.mirror
        pods = list(mirror.pods.items()) if mirror else []
        running = [
            sampling.Place(uid, pod.namespace, pod.name, pod.seen.node)
            for uid, pod in pods
            if pod.seen.phase == "Running" and not pod.over and not (mirror and mirror.is_silent(pod.seen.node))
        ]
        return self._sampling.read(running)

    def acknowledge(self, items: Sequence[Seen]) -> None:
        """Starts the follow-up work and other upkeep in the background."""
        mirror = self._follower.mirror
        if mirror is None:
            return
        if self._upkeep is None or self._upkeep.mirror is not mirror:
            self._upkeep = Upkeep(
                self._client,
                self._settings.portal,
                mirror,
                self._namespaces.set_up,
                quantity(self._settings.cache_space),
            )
            self._namespaces.unsettled = set(mirror.namespaces)
        self._upkeep.after(items)
        self._namespaces.settle()

    # -- inside a task ---------------------------------------------------------------------------------------------

    def log(
        self,
        run: RunRef,
        role: str,
        index: int,
        *,
        attempt: int,
        offset: int = 0,
        limit: int = 262_144,
        tail: int | None = None,
        cursor: str = "",
        since: int | None = None,
        line: int | None = None,
        before: str = "",
    ) -> LogChunk:
        pod = self._pods.find(run, role, index, attempt)
        if pod is None:
            return LogChunk(b"", offset, True, cursor, absent=True)
        return logs.read_log(self._client, pod, logs.Wanted(offset, limit, tail, cursor, since, line, before))

    def follow(
        self, run: RunRef, role: str, index: int, *, attempt: int, offset: int = 0, cursor: str = ""
    ) -> Iterator[LogChunk]:
        return logs.follow(
            self._client, lambda age: self._pods.find(run, role, index, attempt, age=age), offset=offset, cursor=cursor
        )

    def exec(
        self, run: RunRef, role: str, index: int, argv: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Session:
        pod = self._pods.find(run, role, index, None, age=0.0)
        if pod is None or not logs.runs(pod):
            raise CloudError(f"{role}-{index} does not run.")
        # Imports the official client (see client.py), which is only needed with a Kubernetes cluster.
        from clusters.clouds.drivers.kubernetes import exec as kubernetes_exec

        return kubernetes_exec.execute(self._client, pod, environments.as_in(pod, argv), stdin=stdin, tty=tty)
