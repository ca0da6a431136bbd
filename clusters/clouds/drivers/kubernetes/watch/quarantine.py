"""Turns unreadable objects into text for people: everything needed to see why, and nothing that may be secret. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clusters.clouds.drivers.base import Unreadable
from clusters.clouds.drivers.kubernetes.render import names

# Inputs and outputs of programs may contain keys; managedFields are long and irrelevant.
_LEFT_OUT = frozenset(
    {
        "env",
        "envFrom",
        "command",
        "args",
        "httpHeaders",
        "data",
        "stringData",
        "binaryData",
        "volumeAttributes",
        "managedFields",
    }
)
_ANNOTATIONS = (names.PREFIX, "batch.kubernetes.io")
MOST = 64 * 1024
# Errors of parsing a malformed object. Any other error is a bug of ours.
ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def unreadable(kind: str, thing: Mapping[str, Any], error: Exception) -> Unreadable:
    metadata = thing["metadata"]
    place = "/".join(part for part in (metadata.get("namespace"), metadata.get("name")) if part)
    said = f"{type(error).__name__}: {error}".replace("\n", " ")
    # Objects in a listing lack both.
    facts = {name: value for name, value in thing.items() if name not in ("apiVersion", "kind")}
    text = json.dumps({"kind": kind, **_without_secrets(facts)}, sort_keys=True)
    return Unreadable(
        raw=text if len(text) <= MOST else f"{text[:MOST]}…",
        reason=f"{kind} {place}{', which has ended,' if has_ended(thing) else ''} is not understood: {said}",
        uid=metadata["uid"],
        run_id=names.run_id_of(metadata.get("labels") or {}),
    )


def has_ended(thing: Mapping[str, Any]) -> bool:
    """Returns whether a pod has ended, without trusting its form."""
    status = thing.get("status")
    return isinstance(status, Mapping) and status.get("phase") in ("Succeeded", "Failed")


def has_gone(event: str, pod: Mapping[str, Any]) -> bool:
    """Returns whether a pod is really gone. One that lost its labels leaves the watch, too, but lives on: a finalizer prevents
    deletion."""
    metadata = pod["metadata"]
    held = isinstance(found := metadata.get("finalizers"), list) and names.METERING in found
    return event == "DELETED" and ("deletionTimestamp" in metadata or not held)


def _without_secrets(value: Any, within: str = "") -> Any:
    if isinstance(value, list):
        return [_without_secrets(each, within) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: "(left out)" if _may_be_secret(name, within) else _without_secrets(each, name)
        for name, each in value.items()
    }


def _may_be_secret(name: str, within: str) -> bool:
    if within == "annotations":
        return not name.startswith(_ANNOTATIONS)
    return name in _LEFT_OUT or (name == "message" and within in ("terminated", "waiting"))
