"""Applying so that an object is as it was meant, without what somebody else has added to it.

Server-side apply takes back what we say ourselves and leaves alone what only others say. So that becomes ours first, in one patch
of who owns what, and is taken away by applying once more, because we do not say it. Nothing is deleted for that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.api.client import Client, Refused, Unavailable, path_of
from clusters.clouds.drivers.kubernetes.repair import field_ownership

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
# Its controller writes down how it is just when it has been applied, and then it is to be looked at again.
TRIES = 8


def apply_whole(client: Client, manifests: Sequence[Object]) -> None:
    """All of them, side by side."""
    for manifest, found in zip(manifests, client.apply_all(manifests), strict=True):
        if manifest["kind"] in field_ownership.OURS:
            _take_away(client, manifest, found)


def _take_away(client: Client, manifest: Object, found: Object) -> None:
    """What stays all the same is what cannot be changed any more, and what the cluster's own admission adds each time."""
    kind, metadata = manifest["kind"], manifest["metadata"]
    path, fixed = path_of(kind, metadata["namespace"], metadata["name"]), field_ownership.FIXED.get(kind, set())
    for attempt in range(TRIES):
        now = found["metadata"]
        if not field_ownership.added(now).keys() - fixed:
            return
        owners = {"resourceVersion": now["resourceVersion"], "managedFields": field_ownership.taken_over(now, fixed)}
        is_ours = False
        try:
            try:
                client.patch_once(path, {"metadata": owners})
                is_ours = True
            except Unavailable:
                if attempt == TRIES - 1:
                    raise
            found = client.apply(manifest)
        except Refused as refusal:
            log.warning("%s keeps what somebody has added to it: %s", path, refusal)
            if is_ours:  # it is not to be taken for that
                with suppress(CloudError):
                    client.patch_once(path, {"metadata": {"managedFields": now["managedFields"]}})
            return
        if is_ours:
            break
    if left := field_ownership.added(found["metadata"]):
        log.info("%s was given more again: %s", path, field_ownership.in_words(left))
