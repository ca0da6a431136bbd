"""The namespaces of business lines: sets each up once per process before something is put into it, and applies changed settings
to those that exist. Never writes to a namespace of somebody else.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from clusters.clouds.drivers.base import CloudError, NotOurs
from clusters.clouds.drivers.kubernetes.api.client import Client, path_of, patiently
from clusters.clouds.drivers.kubernetes.api.errors import Missing, Taken, Unavailable
from clusters.clouds.drivers.kubernetes.render import manifests, names
from clusters.clouds.drivers.kubernetes.settings import Settings

log = logging.getLogger(__name__)

# Maximum number of existing namespaces that changed settings are applied to at once.
AT_ONCE = 4
# Seconds for which a check of a namespace stays valid.
LOOK_SECONDS = 2.0


class Namespaces:
    """The namespaces of one cluster. Thread-safe, except that only the watching thread calls `settle`."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings
        # For each namespace set up by this process: its uid, and when it was last checked.
        self._known: dict[str, tuple[str, float]] = {}
        # Namespaces older than the watch that still need their limits applied, and those in progress.
        self.unsettled: set[str] = set()
        self.settling: set[str] = set()

    def apply_inside(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.put_inside(manifest, self._client.apply)

    def put_inside(
        self, manifest: Mapping[str, Any], put: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Writes an object by `put`; creates its namespace if it is missing."""
        namespace = manifest["metadata"]["namespace"]
        known = self.prepare(namespace)
        try:
            return put(manifest)
        except Missing:
            if not known:
                raise
            self.set_up(namespace)
            return put(manifest)

    def prepare(self, namespace: str) -> bool:
        """Sets a namespace up unless it is known. Returns whether it was."""
        known = self._is_known(namespace)
        if not known:
            self.set_up(namespace)
        return known

    def _is_known(self, namespace: str) -> bool:
        """Returns whether this process set the namespace up and it is still ours. Others may have recreated it."""
        uid, looked_at = self._known.get(namespace, ("", 0.0))
        now = time.monotonic()
        if not uid or now - looked_at < LOOK_SECONDS:
            return bool(uid)
        for found in self._client.get(path_of("Namespace"), fieldSelector=f"metadata.name={namespace}")["items"]:
            if found["metadata"]["uid"] == uid and not manifests.foreign(found, self._settings):
                self._known[namespace] = uid, now
                return True
        return False

    def set_up(self, namespace: str) -> None:
        """Sets up a namespace, once per process; the watch repairs later changes. Raises NotOurs."""
        first, *inside_it = manifests.namespace_manifests(namespace, self._settings)
        uid, was_there = patiently(self._claim, first)
        if was_there:
            self._drop_quota(namespace)
        self._client.apply_all(inside_it)
        self._known[namespace] = uid, time.monotonic()

    def _claim(self, manifest: Mapping[str, Any]) -> tuple[str, bool]:
        """Claims a namespace; returns its uid and whether it existed. Raises NotOurs, because our policies would close another
        owner's namespace to all traffic but that of runs.

        Writes only the version that was checked, else raises Unavailable: an administrator may hand the namespace over at any
        time."""
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
        """Deletes our ResourceQuota if the settings have none any more."""
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

    def settle(self) -> None:
        """Applies changed settings to existing namespaces where nothing new starts, a few at a time."""
        while self.unsettled and len(self.settling) < AT_ONCE:
            namespace = self.unsettled.pop()
            if namespace not in self._known:
                self.settling.add(namespace)
                self._client.in_background(self._settle, namespace)

    def _settle(self, namespace: str) -> None:
        try:
            self.set_up(namespace)
        except CloudError as error:
            # The next start of a run there retries, and so does the next controller.
            log.warning("the limits of namespace %s are not as wanted: %s", namespace, error)
        finally:
            self.settling.discard(namespace)
