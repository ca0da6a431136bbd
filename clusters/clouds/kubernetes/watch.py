"""Following the API server: four watches (pods, owners of runs, nodes, namespaces) become one row of batches.

Each watch is short (WATCH_SECONDS) and begun again where it ended, which costs the server nothing and means that a dead
connection is noticed soon. Bookmarks move the positions while nothing happens. Nothing is listed while they are healthy.
"""

from __future__ import annotations

import datetime as dt
import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any, Literal, get_args

from clusters.clouds.base import Batch, CloudError, Seen, WatchExpired
from clusters.clouds.kubernetes import client, names, states
from clusters.clouds.kubernetes.client import Client, path_of
from clusters.clouds.kubernetes.mirror import Mirror

log = logging.getLogger(__name__)

Source = Literal["nodes", "pods", "owners", "namespaces"]
SOURCES: tuple[Source, ...] = get_args(Source)
Event = tuple[Source, dict[str, Any]]

HEARTBEAT = 5.0
LARGEST = 1000


class Follower:
    """Lists and watches one API server into one mirror. One listing or watch at a time."""

    def __init__(self, api: Client, portal: str) -> None:
        self._client = api
        ours = names.selector(portal=portal)
        self._queries: dict[Source, tuple[str, dict[str, str]]] = {
            # In this order: a pod's GPU model is that of its node, and a run is gone when its pods are.
            "nodes": (path_of("Node"), {}),
            "pods": (path_of("Pod"), {"labelSelector": ours}),
            "owners": (path_of("ConfigMap"), {"labelSelector": f"{ours},{names.OWNER}=run"}),
            "namespaces": (path_of("Namespace"), {"labelSelector": ours}),
        }
        self.mirror: Mirror | None = None
        self._delivering = False

    def list(self) -> Batch:
        mirror = Mirror()
        versions: dict[Source, str] = {}
        items: list[Seen] = []
        for source, (path, query) in self._queries.items():
            services: list[dict[str, Any]] = []
            for page in self._client.pages(path, **query):
                versions[source] = page["metadata"]["resourceVersion"]
                for item in page["items"]:
                    if source == "pods" and not states.is_of_job(item):
                        services.append(item)
                    else:
                        items += _note(mirror, source, "ADDED", item)
            for item in sorted(services, key=states.age):
                items += _note(mirror, source, "ADDED", item)
        self.mirror, self._delivering = mirror, False
        return Batch(_position(versions), tuple(items))

    def watch(self, since: str) -> Iterator[Batch]:
        """Raises WatchExpired in a process that has not listed yet, and when the last batch was not taken to its end."""
        if self.mirror is None or self._delivering:
            # The last batch may not have been written down, and the mirror would not tell it again.
            raise WatchExpired("It is not certain what has been told.")
        versions = _versions(since)
        mirror = self.mirror
        with Streams(self._client, self._queries, versions) as streams:
            while True:
                items: list[Seen] = []
                for source, event in streams.take():
                    versions[source] = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        items += _note(mirror, source, event["type"], event["object"])
                self._delivering = True
                yield Batch(_position(versions), tuple(items))
                self._delivering = False


class Streams:
    """One thread for each watch, one queue for all that they read. An error of any of them ends `take`."""

    def __init__(
        self, api: Client, queries: dict[Source, tuple[str, dict[str, str]]], versions: dict[Source, str]
    ) -> None:
        self._client = api
        self._queue: queue.Queue[Event | CloudError] = queue.Queue(maxsize=10 * LARGEST)
        self._ended: CloudError | None = None
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, args=(source, path, query, versions[source]), daemon=True)
            for source, (path, query) in queries.items()
        ]

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A thread notices at its next event or at the end of its watch; it holds nothing but its connection.
        self._stopped.set()

    def take(self) -> list[Event]:
        """What has come, at most LARGEST events; nothing when there was none for HEARTBEAT seconds. Raises what a watch
        ended with, once everything before it has been taken."""
        taken: list[Event] = []
        try:
            item = self._ended or self._queue.get(timeout=HEARTBEAT)
            while True:
                if isinstance(item, CloudError):
                    self._ended = item
                    break
                taken.append(item)
                if len(taken) == LARGEST:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            return taken
        if self._ended and not taken:
            raise self._ended
        return taken

    def _read(self, source: Source, path: str, query: dict[str, str], version: str) -> None:
        try:
            while not self._stopped.is_set():
                answer = self._client.watch(path, version, **query)
                try:
                    for event in client.events(answer):
                        version = event["object"]["metadata"]["resourceVersion"]
                        if not self._put((source, event)):
                            return
                finally:
                    answer.close()
        except CloudError as error:
            self._put(error)
        except Exception as error:
            log.exception("the watch of %s failed", source)
            self._put(CloudError(f"The watch of {source} failed: {error!r}"))

    def _put(self, item: Event | CloudError) -> bool:
        """Waits while the reader is busy. False when nobody reads any more."""
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=1.0)
            except queue.Full:
                continue
            return True
        return False


def _note(mirror: Mirror, source: Source, kind: str, item: dict[str, Any]) -> list[Seen]:
    if source == "nodes":
        mirror.note_node(kind, item)
        return []
    if source == "namespaces":
        mirror.note_namespace(item)
        return []
    if source == "owners":
        return mirror.note_owner(kind, item)
    return mirror.note_pod(kind, item, dt.datetime.now(dt.UTC))


def _position(versions: dict[Source, str]) -> str:
    return ",".join(f"{source}={version}" for source, version in versions.items())


def _versions(position: str) -> dict[Source, str]:
    found = dict(part.partition("=")[::2] for part in position.split(","))
    try:
        return {source: found[source] for source in SOURCES}
    except KeyError as error:
        raise WatchExpired("The position is not one of ours.") from error
