"""Follows the API server: merges a dozen watches into one sequence of batches.

Each watch is short (WATCH_SECONDS) and resumed where it ended, which is cheap for the server and exposes dead connections soon.
Bookmarks advance the positions while nothing happens. Nothing is listed while the watches are healthy.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusters.clouds.drivers.base import Batch, CloudError, Seen, Unreadable, WatchExpired
from clusters.clouds.drivers.kubernetes.api import client, kueue
from clusters.clouds.drivers.kubernetes.api.client import Client, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Forbidden, Missing, Unavailable
from clusters.clouds.drivers.kubernetes.render import names, queueing
from clusters.clouds.drivers.kubernetes.repair import drift
from clusters.clouds.drivers.kubernetes.settings import IMAGE_SECONDS
from clusters.clouds.drivers.kubernetes.watch import capacity, devices, job_history, pod_status
from clusters.clouds.drivers.kubernetes.watch.mirror import Mirror
from clusters.clouds.drivers.kubernetes.watch.quarantine import ERRORS, has_ended, has_gone, unreadable

log = logging.getLogger(__name__)

Object = dict[str, Any]
HEARTBEAT = 2.0
# Seconds without more news after which an empty batch follows: the moment to read free capacity.
SETTLED = 0.2
# The same while pods have ended whose logs are not open yet: the next batch lets those go whose logs are, and nothing else tells.
LETTING_GO = 0.5
LARGEST = 1000
# Writing many news costs hardly more than one. Under load they are gathered for GATHER_TIMES the duration of the last write, at
# most GATHER_SECONDS.
GATHER_TIMES, GATHER_SECONDS = 3.0, 0.2
# Seconds without any event after which a watch may be dead, and seconds of failed attempts after which the error is reported.
SILENT, PATIENCE = 13.0, 10.0
# The first watches are short: only a watch that ends properly proves that the connection works.
FIRST_SECONDS = 2
# Pods of other software, whose resources are not free. Only those that hold some.
OTHER_POD = "Pod of others"
_HOLDING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
# Excludes the most frequent warnings, which pods report themselves.
_EVENTS = "type=Warning,reason!=FailedScheduling,reason!=BackOff,reason!=Unhealthy,reason!=Failed"


@dataclass(frozen=True)
class Source:
    """A kind of object to list and watch. `metadata`: only its metadata. `others`: objects that are not ours."""

    kind: str
    query: Mapping[str, str] = field(default_factory=dict)
    metadata: bool = False
    others: bool = False
    # Of a kind whose path is known at run time only.
    at: str = ""

    @property
    def name(self) -> str:
        return OTHER_POD if self.others else self.kind

    @property
    def path(self) -> str:
        return self.at or path_of(self.kind)

    @property
    def accept(self) -> str:
        return client.METADATA if self.metadata else client.JSON

    @property
    def accept_list(self) -> str:
        return client.METADATA_LIST if self.metadata else client.JSON


def sources(portal: str) -> tuple[Source, ...]:
    """Returns the sources in dependency order: a pod's GPU model is its node's, and a run is gone after its pods."""
    ours = {"labelSelector": names.selector(portal=portal)}
    return (
        Source("Node"),
        Source("Job", ours),
        Source("Deployment", ours),
        Source("StatefulSet", ours),
        Source("Pod", ours),
        Source("ConfigMap", {"labelSelector": f"{names.selector(portal=portal)},{names.OWNER}=run"}, metadata=True),
        Source("Namespace", ours, metadata=True),
        Source("Service", ours, metadata=True),
        Source("Ingress", ours, metadata=True),
        Source("NetworkPolicy", ours, metadata=True),
        Source("LimitRange", ours, metadata=True),
        Source("PersistentVolume", ours),
        Source("ResourceQuota", metadata=True),
        Source("Pod", {"labelSelector": f"{names.PORTAL}!={portal}", "fieldSelector": _HOLDING}, others=True),
    )


class Follower:
    """Lists and watches one API server into one mirror. One listing or watch at a time."""

    def __init__(
        self,
        api: Client,
        portal: str,
        bounds: Mapping[str, drift.Fields] | None = None,
        reserved_disk: float = 0.0,
        tolerations: Sequence[str] = (),
        patience: int = IMAGE_SECONDS,
        topology: Sequence[str] = (),
    ) -> None:
        """All but `api` and `portal` are arguments of `Mirror`."""
        self._client = api
        self._new_mirror = functools.partial(Mirror, bounds, reserved_disk, tolerations, patience, topology)
        self._portal = portal
        self._sources = sources(portal)
        self.mirror: Mirror | None = None
        self._delivering = False
        # The position up to which news were delivered and the mirror is current.
        self._told = ""
        self._warnings = Warnings(api)

    def list(self) -> Batch:
        mirror = self._new_mirror()
        self._sources = (*sources(self._portal), *self._queues(), *self._devices())
        versions: dict[str, str] = {}
        items: list[Seen] = []
        unread: list[Unreadable] = []
        for source in self._sources:
            services: list[Object] = []
            for page in self._client.pages(source.path, accept=source.accept_list, **source.query):
                versions[source.name] = page["metadata"]["resourceVersion"]
                for item in page["items"] or ():  # an empty metadata list is null
                    if source.name == "Pod" and not pod_status.is_of_job(item):
                        services.append(item)
                    else:
                        heard = self._last_heard(mirror, source.name, item)
                        items += understood(mirror, source.name, "ADDED", item, unread, heard)
                if source.kind == "Job":
                    mirror.parts.jobs.hear(job_history.version_of(page))
            for item in sorted(services, key=pod_status.age):
                items += understood(mirror, source.name, "ADDED", item, unread)
        if self.mirror:
            mirror.pulls.remember(self.mirror.pulls)
        items += mirror.decided(dt.datetime.now(dt.UTC))
        mirror.parts.absent.listed(time.monotonic())
        self.mirror, self._delivering = mirror, False
        self._warnings.version = ""
        self._told = self._position(versions)
        return Batch(self._told, tuple(items), tuple(unread))

    def watch(self, since: str) -> Iterator[Batch]:
        """Raises WatchExpired before a listing, after an unconsumed batch, and after another follower was active."""
        if self.mirror is None or self._delivering or since != self._told:
            # The last batch may not be stored, and the mirror would not report it again.
            raise WatchExpired("It is not certain what has been told.")
        versions = self._versions(since)
        mirror = self.mirror
        with Streams(self._client, self._sources, versions, self._warnings) as streams:
            gather_until, patience = 0.0, HEARTBEAT
            while True:
                items: list[Seen] = []
                unread: list[Unreadable] = []
                taken = streams.take(gather_until, patience)
                self._delivering = True
                for kind, event in taken:
                    if kind in versions:
                        versions[kind] = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        heard = self._last_heard(mirror, kind, event["object"])
                        items += understood(mirror, kind, event["type"], event["object"], unread, heard)
                    if kind == "Job":
                        mirror.parts.jobs.hear(job_history.version_of(event["object"]))
                items += mirror.decided(dt.datetime.now(dt.UTC)) + mirror.parts.absent.news(time.monotonic())
                items += mirror.queue_news()
                changes = mirror.bounds.news(time.monotonic())
                if items or unread or changes or streams.are_alive():
                    told_at = time.monotonic()
                    self._told = self._position(versions)
                    yield Batch(self._told, tuple(items), tuple(unread), tuple(changes))
                    if any(each.over for each in unread):
                        raise WatchExpired("A pod has ended, and nobody understands how: a listing says what is left.")
                    took = time.monotonic() - told_at
                    gather_until = told_at + took + min(GATHER_TIMES * took, GATHER_SECONDS)
                patience = SETTLED if items else LETTING_GO if mirror.held_ends else HEARTBEAT
                self._delivering = False

    def _queues(self) -> Iterator[Source]:
        """Yields the Workloads of runs, if Kueue is there and the portal may see them."""
        version = kueue.version_of(self._client)
        if not version:
            return
        source = Source(
            queueing.KIND, {"labelSelector": names.selector(portal=self._portal)}, at=kueue.workloads(version)
        )
        try:
            self._client.get(source.path, limit=1, **source.query)
        except (Forbidden, Missing) as error:
            log.warning("runs in queues of Kueue are not followed: %s", error)
            return
        yield source

    def _devices(self) -> Sequence[Source]:
        """Where devices are known from, if Kubernetes serves it and the portal may see all of it."""
        try:
            served = self._client.get(f"/apis/{devices.GROUP}")["versions"]
            if devices.VERSION not in [each["version"] for each in served]:
                return []
            found = [
                Source(kind, at=f"/apis/{devices.GROUP}/{devices.VERSION}/{plural}")
                for kind, plural in devices.PLURALS.items()
            ]
            for source in found:
                self._client.get(source.path, limit=1)
        except (Forbidden, Missing) as error:
            log.info("devices of ResourceSlices are not counted: %s", error)
            return []
        return found

    def _last_heard(self, mirror: Mirror, kind: str, item: Object) -> dt.datetime | None:
        """Returns when a node that just fell silent was last heard, by its lease; None for anything else, or if unreadable."""
        node = item["metadata"].get("name", "")
        if kind != "Node" or not capacity.is_silent(item) or mirror.is_silent(node):
            return None
        try:
            lease = self._client.get(path_of("Lease", "kube-node-lease", node))
            return dt.datetime.fromisoformat(lease["spec"]["renewTime"])
        except (CloudError, LookupError, TypeError, ValueError) as error:
            log.info("when node %s was last heard is taken from its status: %s", node, error)
            return None

    def _position(self, versions: Mapping[str, str]) -> str:
        return ",".join(versions[source.name] for source in self._sources)

    def _versions(self, position: str) -> dict[str, str]:
        found = position.split(",")
        if len(found) != len(self._sources) or not all(found):
            raise WatchExpired("The position is not one of ours.")
        return {source.name: version for source, version in zip(self._sources, found, strict=True)}


class Warnings:
    """Events about objects, for display only: failures of this watch are harmless, and no position is stored.

    The API server does not cache Events, so they are listed once per listing of the rest; if that position expires, the watch
    continues from now.
    """

    def __init__(self, api: Client) -> None:
        self._client = api
        self.version = ""

    def events(self, stopped: threading.Event) -> Iterator[Object]:
        while not stopped.is_set():
            try:
                if not self.version:
                    yield from self._list()
                answer = self._client.watch(path_of("Event"), self.version, fieldSelector=_EVENTS)
                try:
                    for event in client.events(answer):
                        self.version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] in ("ADDED", "MODIFIED"):
                            yield event
                finally:
                    answer.close()
            except WatchExpired:
                self._skip()
            except CloudError as error:
                log.info("warnings cannot be watched now: %s", error)
                stopped.wait(max(2.0, error.after or 0.0))

    def _list(self) -> Iterator[Object]:
        for page in self._client.pages(path_of("Event"), fieldSelector=_EVENTS):
            self.version = page["metadata"]["resourceVersion"]
            yield from ({"type": "ADDED", "object": item} for item in page["items"])

    def _skip(self) -> None:
        try:
            self.version = self._client.get(path_of("Event"), limit=1)["metadata"]["resourceVersion"]
        except CloudError as error:
            log.info("warnings cannot be watched now: %s", error)


class Streams:
    """One thread per watch and one queue for all events. A watch's final error ends `take`."""

    def __init__(
        self, api: Client, wanted: tuple[Source, ...], versions: Mapping[str, str], warnings: Warnings
    ) -> None:
        self._client = api
        self._queue: queue.Queue[tuple[str, Object] | CloudError] = queue.Queue(maxsize=10 * LARGEST)
        self._ended: CloudError | None = None
        self._stopped = threading.Event()
        self._heard = {source.name: 0.0 for source in wanted}
        self._threads = [
            threading.Thread(target=self._read, args=(source, versions[source.name]), daemon=True) for source in wanted
        ]
        self._threads.append(threading.Thread(target=self._read_warnings, args=(warnings,), daemon=True))

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Threads stop at their next event or at the end of their watch; they hold only a connection.
        self._stopped.set()

    def are_alive(self) -> bool:
        """Returns whether every watch has received something lately, if only a bookmark or its end."""
        oldest = min(self._heard.values())
        return oldest > 0 and oldest > time.monotonic() - SILENT

    def take(self, until: float = 0.0, patience: float = HEARTBEAT) -> list[tuple[str, Object]]:
        """Returns the queued events and those that arrive before `until`, at most LARGEST; [] after `patience` seconds without
        any. Raises the error that ended a watch once all earlier events are taken."""
        taken: list[tuple[str, Object]] = []
        try:
            item = self._ended or self._queue.get(timeout=patience)
            while True:
                if isinstance(item, CloudError):
                    self._ended = item
                    break
                taken.append(item)
                if len(taken) == LARGEST:
                    break
                left = until - time.monotonic()
                item = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
        except queue.Empty:
            return taken
        if self._ended and not taken:
            raise self._ended
        return taken

    def _read(self, source: Source, version: str) -> None:
        """Reads one watch. Broken connections are not reported while new ones succeed."""
        try:
            since, query = time.monotonic(), {**source.query, "timeoutSeconds": str(FIRST_SECONDS)}
            while not self._stopped.is_set():
                try:
                    answer = self._client.watch(source.path, version, accept=source.accept, **query)
                    since, query = time.monotonic(), dict(source.query)
                    try:
                        for event in client.events(answer, lambda: self._hear(source.name)):
                            version = event["object"]["metadata"]["resourceVersion"]
                            if not self._put((source.name, event)):
                                return
                            since = time.monotonic()
                    finally:
                        answer.close()
                    self._hear(source.name)
                except Unavailable as error:
                    if time.monotonic() - since > PATIENCE:
                        raise
                    self._stopped.wait(error.after or 0.1)
        except CloudError as error:
            self._put(error)
        except Exception as error:
            log.exception("the watch of %s failed", source.name)
            self._put(CloudError(f"The watch of {source.name} failed: {error!r}"))

    def _hear(self, kind: str) -> None:
        self._heard[kind] = time.monotonic()

    def _read_warnings(self, warnings: Warnings) -> None:
        try:
            for event in warnings.events(self._stopped):
                if not self._put(("Event", event)):
                    return
        except Exception:
            log.exception("the watch of warnings failed; reasons may be missing on the screen")

    def _put(self, item: tuple[str, Object] | CloudError) -> bool:
        """Queues an item; waits while the queue is full. Returns False when the reader has stopped."""
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=1.0)
            except queue.Full:
                continue
            return True
        return False


def understood(
    mirror: Mirror,
    kind: str,
    event: str,
    item: Object,
    unread: list[Unreadable],
    heard: dt.datetime | None = None,
) -> list[Seen]:
    """Returns the news in an event. Appends what cannot be parsed to `unread` and continues. `heard`: see `Mirror.note_node`."""
    before = mirror.pods.get(item["metadata"].get("uid", "")) if kind == "Pod" else None
    try:
        return note(mirror, kind, event, item, heard)
    except ERRORS as error:
        told = unreadable(kind, item, error)
        if kind in ("Event", OTHER_POD, *devices.PLURALS):
            # Only for display and previews: not worth an administrator's time.
            log.warning("%s", told.reason)
            return []
        is_news, news = mirror.note_unreadable(kind, event, item, before, told.reason)
        if is_news:
            log.exception("%s", told.reason)
        gone = kind == "Pod" and has_gone(event, item)
        over = gone or (kind == "Pod" and has_ended(item) and item["metadata"]["uid"] not in mirror.pods)
        if is_news or gone:
            unread.append(replace(told, over=over))
        return list(news)


def note(mirror: Mirror, kind: str, event: str, item: Object, heard: dt.datetime | None = None) -> list[Seen]:
    """Passes an event to the mirror; returns the news in it."""
    now = dt.datetime.now(dt.UTC)
    if kind == "Pod":
        return mirror.note_pod(event, item, now)
    if kind == OTHER_POD:
        return mirror.note_other_pod(event, item)
    if kind == "ConfigMap":
        return mirror.note_owner(event, item)
    if kind == "Node":
        return mirror.note_node(event, item, heard)
    if kind == "Event":
        return mirror.troubles.note_event(item, now)
    if kind == queueing.KIND:
        return mirror.note_admission(event, item)
    if kind in ("Job", "Deployment", "StatefulSet"):
        return mirror.parts.note_workload(event, kind, item)
    if kind in ("Service", "Ingress", "NetworkPolicy", "LimitRange", "ResourceQuota"):
        return mirror.note_part(event, kind, item)
    silently: dict[str, Callable[[], None]] = {
        "Namespace": lambda: mirror.note_namespace(event, item),
        "PersistentVolume": lambda: mirror.parts.note_volume(event, item),
        **dict.fromkeys(devices.PLURALS, lambda: mirror.devices.note(kind, event, item)),
    }
    silently[kind]()
    return []
