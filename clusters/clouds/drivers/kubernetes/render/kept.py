"""A run's objects as they were rendered when it was started, kept in the owner of the run. Pure.

A later release renders other pods: applied to a living run they would restart the tasks of a Deployment, and a Job refuses them.
So a run is rendered once, and every later apply, by whatever release, takes its objects from here. They fit the other data of the
owner, which are immutable too. Secrets are not kept: what they hold changes, and a ConfigMap is no place for it.

The portal applies what it finds here with its own rights, so a seal shows that the portal wrote it: an HMAC-SHA256 with the proof
of the cluster, which is in the database.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from clusters.clouds.drivers.base import CloudRefused

Manifest = dict[str, Any]

# Keys of the owner. No variable has such names. Every release of 1.x reads what every other wrote.
OBJECTS, SEAL = "objects.json.gz", "objects.hmac"
# Bytes that a ConfigMap may hold.
_LARGEST = 2**20


def with_objects(owner: Manifest, objects: Sequence[Manifest], proof: str) -> Manifest:
    """Returns the owner with `objects`. Raises CloudRefused if it becomes too large."""
    packed = gzip.compress(orjson.dumps(objects), mtime=0)
    added = {OBJECTS: packed, SEAL: _seal(owner, packed, proof)}
    binary = {**owner.get("binaryData", {}), **{key: base64.b64encode(each).decode() for key, each in added.items()}}
    size = sum(len(base64.b64decode(each)) for each in binary.values())
    if size + sum(len(each.encode()) for each in owner.get("data", {}).values()) > _LARGEST:
        raise CloudRefused(
            "Its variables, the files of its code and its environment are more than the 1 MiB that a Kubernetes cluster keeps of "
            "a run; put them into an image."
        )
    return {**owner, "binaryData": binary}


def objects(owner: Mapping[str, Any], proof: str) -> list[Manifest]:
    """Returns the kept objects, owned by `owner`. Raises CloudRefused if they are missing or not the portal's."""
    try:
        packed, seal = (base64.b64decode(owner["binaryData"][key]) for key in (OBJECTS, SEAL))
        if not hmac.compare_digest(seal, _seal(owner, packed, proof)):
            raise ValueError("the seal is another")
        found: list[Manifest] = orjson.loads(gzip.decompress(packed))
    except (LookupError, ValueError, OSError, EOFError, zlib.error) as error:
        raise CloudRefused(
            "What it was started with cannot be read from its ConfigMap, so nothing is applied but its passwords. Start it anew."
        ) from error
    for each in found:
        for reference in each["metadata"].get("ownerReferences", ()):
            reference["uid"] = owner["metadata"]["uid"]
    return found


def _seal(owner: Mapping[str, Any], packed: bytes, proof: str) -> bytes:
    place = f"{owner['metadata']['namespace']}/{owner['metadata']['name']}\n".encode()
    return hmac.new(proof.encode(), place + packed, hashlib.sha256).digest()
