"""`base.Cloud` over a Kubernetes API server.

A run is one owner and what it owns. Launching is server-side apply of the owner and then of everything else side by side;
ending is telling whoever makes the pods to have none, and then one DELETE of the owner with foreground propagation, after
which the owner outlives all that it owned: that it is left alone is the moment at which the run is gone. Two finalizers keep
what has not been written down yet: one on every pod until its end is in the database, one on the owner until RunGone is.
`acknowledge` takes them off.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import logging
import math
import time
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
    NotOurs,
    Plan,
    Preflight,
    RolePlan,
    RunRef,
    RunsCommands,
    Seen,
    Session,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.drivers.kubernetes import logs, prometheus
from clusters.clouds.drivers.kubernetes.api import lookup, preflight
from clusters.clouds.drivers.kubernetes.api.client import (
    METADATA_LIST,
    Client,
    Forbidden,
    Missing,
    Refused,
    Taken,
    Unavailable,
    path_of,
    patiently,
)
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
from clusters.clouds.drivers.kubernetes.repair.upkeep import Upkeep, remove_claims
from clusters.clouds.drivers.kubernetes.settings import Settings, quantity
from clusters.clouds.drivers.kubernetes.watch import capacity as nodes
from clusters.clouds.drivers.kubernetes.watch.follower import Follower

log = logging.getLogger(__name__)

NAMESPACES_AT_ONCE = 4
# A namespace that was looked at so lately is still the one it was.
LOOK_SECONDS = 2.0


class KubernetesCloud(Cloud, KeepsVolumes, RunsCommands, MeasuresGpus, GivesUpNodes, Inspected):
    """One Kubernetes cluster. Safe in many threads; only one of them lists and watches."""

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
        )
        self._follower = self._new_follower()
        self._pods = logs.Pods(client, settings.portal)
        # The uid of each namespace that was bounded by this process, and when it was looked at last.
        self._namespaces: dict[str, tuple[str, float]] = {}
        self._upkeep: Upkeep | None = None
        # Namespaces that were there before this began to follow, and those that are being looked at.
        self._unsettled: set[str] = set()
        self._settling: set[str] = set()

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
        """Every Kubernetes cluster has it: the portal would close it to all traffic but its own."""
        return namespace == "default" or namespace.startswith("kube-")

    @classmethod
    def closed_networks(cls, stored: Mapping[str, Any]) -> Iterable[str]:
        """Of settings that can no longer be read these still are, or the usual ones."""
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
        """As the scheduler counts the pod that would be made."""
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
    def leads_fronts(cls, stored: Mapping[str, Any]) -> bool:
        settings = Settings.readable(stored)
        return bool(settings.front_namespace or settings.gateway_namespace)

    def reserve(self, run: RunRef, counts: Mapping[str, int]) -> dict[tuple[str, int], str]:
        """Names follow from the run, so nothing has to be made for them."""
        return {
            (role, index): names.address(run, role, index) for role, count in counts.items() for index in range(count)
        }

    def apply(self, plan: Plan) -> None:
        try:
            self._apply(plan)
        except Missing as error:
            # The namespace went while this was being done.
            raise CloudError(str(error)) from error

    def _apply(self, plan: Plan) -> None:
        before = self._owner_of(plan.run)
        if before and _is_ending(before["metadata"]):
            return
        settings = self._settings_of(plan.run, before) if before else None
        is_new, settings = settings is None, settings or self._settings
        plan = cache.settled(plan, settings)
        if is_new:
            manifests.check(plan, settings)
        # To the second: a claim that is used anew is not as it was seen by who is about to remove it.
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        claim = cache.claim_manifest(plan, settings, now)
        if claim and (why := self._why_no_room(claim)):
            if not (is_new and cache.may_be_copied(plan)):
                raise CloudError(why)
            settings = cache.without(settings)
            plan = cache.settled(plan, settings)
        # Without them, what Kueue has let go and would let go again is deleted at once.
        stops = [] if settings.kueue_queue else manifests.workloads(plan)
        makers = " ".join("/".join(each) for each in stops)
        notes = {names.WORKLOADS: makers, names.SETTINGS: settings.whole()}
        owner = self._apply_owner(manifests.owner_manifest(plan.run, settings, plan), notes)
        if _is_ending(owner["metadata"]):
            return
        sources = [mount.source for mount in plan.mounts if isinstance(mount.source, VolumeSource)]
        volumes = {source.volume.id: source for source in sources}
        made = [storage.volume_manifest(source, settings) for source in volumes.values()]
        shared = (environments.claim_manifest(plan, settings, now), cache.claim_manifest(plan, settings, now))
        for claim in self._client.apply_all(list(filter(None, shared))):
            # A pod that names it would wait for ever.
            if "deletionTimestamp" in claim["metadata"]:
                raise CloudError("What its tasks share with other runs is being removed, and then made again.")
        made += manifests.run_manifests(plan, owner["metadata"]["uid"], settings)
        # Should the run be deleted meanwhile, the garbage collector finds what it owned without an owner and removes it.
        self._client.apply_all([each for each in made if not manifests.is_queued(each)])
        for queued in filter(manifests.is_queued, made):
            self._hand_to_kueue(queued)

    def _why_no_room(self, claim: Mapping[str, Any]) -> str:
        """Makes room for a cached input that is not there yet: nobody pays for it, so nobody may have as much as they like. Says
        why there is none while runs read all others. Of two at once both may find the last room."""
        metadata = claim["metadata"]
        by_name = {"fieldSelector": f"metadata.name={metadata['name']}"}
        if self._client.get(path_of("PersistentVolumeClaim", metadata["namespace"]), **by_name)["items"]:
            return ""
        space = quantity(self._settings.cache_space)
        left = space - float(metadata["annotations"][names.BYTES])
        if remove_claims(self._client, self._settings.portal, names.CACHE, left) <= left:
            return ""
        return (
            f"Cached inputs have {self._settings.cache_space} together, and those that other runs read leave no room for "
            "this one. It starts when one of them is over; copied or streamed it starts at once."
        )

    def _owner_of(self, run: RunRef) -> Mapping[str, Any] | None:
        by_name = {"fieldSelector": f"metadata.name={names.owner_name(run)}"}
        found: Mapping[str, Any] | None = next(
            iter(self._client.get(path_of("ConfigMap", run.namespace), **by_name)["items"]), None
        )
        return found

    def _settings_of(self, run: RunRef, owner: Mapping[str, Any]) -> Settings | None:
        """Those with which it was started, None when it was not: what administrators change later is for others. A pod that
        runs takes no other settings, and its Job none at all."""
        if kept := (owner["metadata"].get("annotations") or {}).get(names.SETTINGS):
            try:
                return dataclasses.replace(Settings.read(orjson.loads(kept)), portal=self._settings.portal)
            except ValueError as error:
                log.warning("the settings with which run %s was started cannot be read: %s", run.id, error)
        return None

    def _hand_to_kueue(self, job: Mapping[str, Any]) -> None:
        """Not by force: what Kueue has begun to manage is not suspended again."""
        try:
            self._client.apply(job, force="false")
        except Taken:
            log.info("job %s is Kueue's by now", job["metadata"]["name"])

    def delete(self, run: RunRef, *, over: bool = False) -> None:
        """First whoever makes its pods is told to have none, and when all have ended `upkeep` deletes everything: the garbage
        collector would take each pod by itself, and the Job controller let go of each, which together takes half as long
        again. Where they have ended by themselves one call is all."""
        path = path_of("ConfigMap", run.namespace, names.owner_name(run))
        try:
            if over:
                self._client.delete(path, propagation="Foreground")
                return
            owner: Mapping[str, Any] = self._client.patch(path, {"metadata": {"annotations": {names.ENDING: "true"}}})
        except Missing:
            # Never seen, or gone before anybody knew: an owner of nothing brings the news by the watch.
            owner = self._apply_owner(manifests.owner_manifest(run, self._settings), {names.ENDING: "true"})
        if "deletionTimestamp" in owner["metadata"] or not self._stop(run, owner):
            self._client.delete(path, propagation="Foreground")

    def _stop(self, run: RunRef, owner: Mapping[str, Any]) -> bool:
        """Whether its tasks will end by that."""
        makers = [each.split("/") for each in owner["metadata"]["annotations"].get(names.WORKLOADS, "").split()]
        if not makers:
            return False
        # Otherwise every pod that ends is another update of a long list of addresses. Without a selector the list stays as it
        # is, so that programs find each other as long as they take to end.
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

    def _apply_owner(self, owner: Mapping[str, Any], annotations: Mapping[str, str]) -> Mapping[str, Any]:
        return self._apply_inside({**owner, "metadata": {**owner["metadata"], "annotations": dict(annotations)}})

    def _apply_inside(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Makes its namespace, too, when it is not there."""
        namespace = manifest["metadata"]["namespace"]
        known = self._is_known(namespace)
        if not known:
            self._apply_namespace(namespace)
        try:
            return self._client.apply(manifest)
        except Missing:
            if not known:
                raise
            self._apply_namespace(namespace)
            return self._client.apply(manifest)

    def _is_known(self, namespace: str) -> bool:
        """Whether it is the one that this process has bounded, and ours: somebody may have deleted it and made another."""
        uid, looked_at = self._namespaces.get(namespace, ("", 0.0))
        now = time.monotonic()
        if not uid or now - looked_at < LOOK_SECONDS:
            return bool(uid)
        for found in self._client.get(path_of("Namespace"), fieldSelector=f"metadata.name={namespace}")["items"]:
            if found["metadata"]["uid"] == uid and not manifests.foreign(found, self._settings):
                self._namespaces[namespace] = uid, now
                return True
        return False

    def _apply_namespace(self, namespace: str) -> None:
        """Once in a process: whoever watches puts back what somebody changes in it. Raises NotOurs."""
        first, *inside_it = manifests.namespace_manifests(namespace, self._settings)
        uid, was_there = patiently(self._claim, first)
        if was_there:
            self._drop_quota(namespace)
        self._client.apply_all(inside_it)
        self._namespaces[namespace] = uid, time.monotonic()

    def _claim(self, manifest: Mapping[str, Any]) -> tuple[str, bool]:
        """The namespace's uid, and whether it was there before. Raises NotOurs: whose it is would be closed to all traffic but
        that of runs.

        What is written is what was looked at, or Unavailable is raised: an administrator may hand it over at any time."""
        metadata = manifest["metadata"]
        by_name = {"fieldSelector": f"metadata.name={metadata['name']}"}
        for found in self._client.get_once(path_of("Namespace"), **by_name)["items"]:
            if sentence := manifests.foreign(found, self._settings):
                raise NotOurs(sentence)
            version = found["metadata"]["resourceVersion"]
            self._client.apply_once({**manifest, "metadata": {**metadata, "resourceVersion": version}})
            return found["metadata"]["uid"], True
        try:
            return self._client.create(manifest)["metadata"]["uid"], False
        except Taken as error:
            raise Unavailable("Somebody was quicker.") from error

    def _drop_quota(self, namespace: str) -> None:
        """Where an administrator wants none any more."""
        if self._settings.quota:
            return
        ours = {
            "fieldSelector": f"metadata.name={manifests.LIMITS}",
            "labelSelector": names.selector(portal=self._settings.portal),
        }
        if self._client.get(path_of("ResourceQuota", namespace), **ours)["items"]:
            self._client.all_at_once(
                [functools.partial(self._client.delete, path_of("ResourceQuota", namespace, manifests.LIMITS))]
            )

    def _settle_namespaces(self) -> None:
        """What was changed in the settings holds also where nothing new is started: a few namespaces at a time."""
        while self._unsettled and len(self._settling) < NAMESPACES_AT_ONCE:
            namespace = self._unsettled.pop()
            if namespace not in self._namespaces:
                self._settling.add(namespace)
                self._client.in_background(self._settle, namespace)

    def _settle(self, namespace: str) -> None:
        try:
            self._apply_namespace(namespace)
        except CloudError as error:
            # Whoever starts something there tries again, and so does the next controller.
            log.warning("the limits of namespace %s are not as wanted: %s", namespace, error)
        finally:
            self._settling.discard(namespace)

    def foreign(self, namespaces: Collection[str]) -> dict[str, str]:
        """Those of them that exist and are not this portal's, with what to do about each."""
        pages: Iterable[Any] = ()
        if len(namespaces) == 1:
            # For somebody who waits for a page: asked once.
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
        return preflight.judge(self._client, self._settings, namespaces, lambda: self.foreign(namespaces))

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
        # Taints are a list that is written as a whole: with its version, so that nobody else's is lost.
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
            self._apply_inside(storage.volume_manifest(source, self._settings))
        except Refused as refusal:
            raise storage.refusal(str(refusal)) from refusal

    def delete_volume(self, volume: VolumeRef) -> None:
        """Kubernetes keeps it as long as a pod mounts it, and deletes the data as its class says."""
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
        """Two questions whatever the number of pods: one for Prometheus, which knows pods by name, and one for their uids."""
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

    def acknowledge(self, items: Sequence[Seen]) -> None:
        """What is to be done for them, and whatever else there is to do, happens in the background."""
        mirror = self._follower.mirror
        if mirror is None:
            return
        if self._upkeep is None or self._upkeep.mirror is not mirror:
            self._upkeep = Upkeep(
                self._client,
                self._settings.portal,
                mirror,
                self._apply_namespace,
                quantity(self._settings.cache_space),
            )
            self._unsettled = set(mirror.namespaces)
        self._upkeep.after(items)
        self._settle_namespaces()

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
            self._client, lambda: self._pods.find(run, role, index, attempt), offset=offset, cursor=cursor
        )

    def exec(
        self, run: RunRef, role: str, index: int, argv: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Session:
        pod = self._pods.find(run, role, index, None, age=0.0)
        if pod is None or not logs.runs(pod):
            raise CloudError(f"{role}-{index} does not run.")
        # It loads the official client (see client.py), which a portal without a Kubernetes cluster has no use for.
        from clusters.clouds.drivers.kubernetes import exec as kubernetes_exec

        return kubernetes_exec.execute(self._client, pod, environments.as_in(pod, argv), stdin=stdin, tty=tty)


def _is_ending(owner: Mapping[str, Any]) -> bool:
    """From its metadata: whether somebody has asked for the end of its run."""
    return "deletionTimestamp" in owner or names.ENDING in (owner.get("annotations") or {})
