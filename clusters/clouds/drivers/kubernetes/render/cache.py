"""Cached inputs: read-only copies shared by all runs of an appcode that read the same. Pure.

Each version of an input is a claim of a storage class whose volumes several pods can mount. The first pod that needs it copies
the input under a lock, others wait, and later ones find it (docker/rclone/fetch):

    lock      held by the pod that copies
    partial   the incomplete copy; if its pod is killed, the next one continues
    files     the complete copy: renamed to this only when nothing is missing, and the only folder that tasks mount

The key consists of the source, the access keys by which it is listed, and the digest of that listing, as on the local cloud
(../../local/data/cache.py). There the process that lists chooses the folder; here the claim is named before any pod can list, so
a cached input must be a version.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

from clusters.clouds.drivers.base import CloudRefused, Mount, Plan, S3Source
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings, quantity

Manifest = dict[str, Any]

FILES = "files"
_GIB = 2**30


def settled(plan: Plan, settings: Settings) -> Plan:
    """Decides for each input that may be cached or copied, and returns the resulting plan."""

    def of(mount: Mount) -> Mount:
        may_copy = mount.cached and mount.or_copied
        known = mount.disk_bytes if mount.digest else None
        return dataclasses.replace(mount, cached=False) if may_copy and why_none(settings, known) else mount

    return dataclasses.replace(plan, mounts=tuple(map(of, plan.mounts)))


def may_be_copied(plan: Plan) -> bool:
    return any(mount.cached and mount.or_copied for mount in plan.mounts)


def without(settings: Settings) -> Settings:
    """Returns settings without a cache for a run that found no room, so that it copies."""
    return dataclasses.replace(settings, cache_class="")


def check(plan: Plan, settings: Settings) -> None:
    """Raises CloudRefused."""
    if mount := _cached(plan):
        known = mount.disk_bytes if mount.digest else None
        if why := why_none(settings, known):
            raise CloudRefused(f"Its input cannot be cached here: {why}")


def why_none(settings: Settings, disk_bytes: int | None) -> str:
    """Returns why an input of `disk_bytes` (None: it is not a version) cannot be cached, or ""."""
    if not settings.cache_class:
        return (
            "An administrator has to name a storage class of cached inputs in its settings first, one whose volumes several pods "
            "mount. Copy or stream it."
        )
    if disk_bytes is None:
        return (
            "What pods share has to be known before they start. Make a version of the datastore's folder and read that, or "
            "copy or stream it."
        )
    if _size(disk_bytes) * _GIB > quantity(settings.largest_volume):
        return (
            f"It needs a volume of {_size(disk_bytes)}Gi, and a volume may have at most {settings.largest_volume}. Stream it, or "
            "give each task its part."
        )
    if _size(disk_bytes) * _GIB > quantity(settings.cache_space):
        return (
            f"It needs a volume of {_size(disk_bytes)}Gi, and cached inputs have {settings.cache_space} together. "
            "Copy or stream it."
        )
    return ""


def key(plan: Plan, settings: Settings) -> str:
    """Returns the key of the run's cached input, or ""."""
    mount = _cached(plan)
    if mount is None:
        return ""
    source = mount.source
    assert isinstance(source, S3Source)
    where = (source.endpoint, source.region, source.bucket, source.prefix, source.access_key)
    parts = (plan.run.appcode, *where, mount.digest, settings.cache_class)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def claim_name(plan: Plan, settings: Settings) -> str:
    return names.cache_claim(plan.run.appcode, key(plan, settings))


def claim_manifest(plan: Plan, settings: Settings, now: str) -> Manifest | None:
    """Returns the claim for the cached input, or None. No run owns it: it is deleted when unused for long, or to make room."""
    mount = _cached(plan)
    if mount is None:
        return None
    size = _size(mount.disk_bytes)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(plan, settings),
            "namespace": plan.run.namespace,
            "labels": {
                **names.common_labels("cached-input", claim_name(plan, settings), plan.run.appcode),
                names.PORTAL: settings.portal,
                names.APPCODE: plan.run.appcode,
                names.CACHE: key(plan, settings),
            },
            "annotations": {names.USED: now, names.BYTES: str(size * _GIB)},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": settings.cache_class,
            "resources": {"requests": {"storage": f"{size}Gi"}},
        },
    }


def _cached(plan: Plan) -> Mount | None:
    """Returns the cached mount; only the input can be one."""
    return next((mount for mount in plan.mounts if mount.cached), None)


def _size(disk_bytes: int) -> int:
    """Returns the size in GiB, with 5 % for the file system, plus one."""
    return math.ceil(disk_bytes * 1.05 / _GIB) + 1
