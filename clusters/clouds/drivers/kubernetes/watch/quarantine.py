"""What could not be understood, as text for people: all that is needed to see why, and nothing that may be secret. Pure."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from clusters.clouds.drivers.base import TaskSeen, Unreadable
from clusters.clouds.drivers.kubernetes.build import names

# What programs are given and what they say may hold keys; what managers note of fields is long and says nothing here.
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
# What a look at an object fails with when it is not as it should be. Anything else is a mistake of ours.
ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def unreadable(kind: str, thing: Mapping[str, Any], error: Exception) -> Unreadable:
    metadata = thing["metadata"]
    place = "/".join(part for part in (metadata.get("namespace"), metadata.get("name")) if part)
    said = f"{type(error).__name__}: {error}".replace("\n", " ")
    # Of an object in a listing neither is told.
    facts = {name: value for name, value in thing.items() if name not in ("apiVersion", "kind")}
    text = json.dumps({"kind": kind, **_without_secrets(facts)}, sort_keys=True)
    return Unreadable(
        raw=text if len(text) <= MOST else f"{text[:MOST]}…",
        reason=f"{kind} {place}{', which has ended,' if has_ended(thing) else ''} is not understood: {said}",
        uid=metadata["uid"],
        run_id=names.run_id_of(metadata.get("labels") or {}),
    )


def has_ended(thing: Mapping[str, Any]) -> bool:
    """Of a pod of which nothing is certain."""
    status = thing.get("status")
    return isinstance(status, Mapping) and status.get("phase") in ("Succeeded", "Failed")


def finished_at(pod: Mapping[str, Any]) -> dt.datetime | None:
    """When the last of its containers ended, as far as anything of that can be read."""
    return max((at for at in map(_time, _ends(pod)) if at), default=None)


def _ends(pod: Mapping[str, Any]) -> Iterator[Any]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        found = _within(pod, "status", kind)
        for each in found if isinstance(found, list) else ():
            yield _within(each, "state", "terminated", "finishedAt")


def _within(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _time(text: Any) -> dt.datetime | None:
    try:
        at = dt.datetime.fromisoformat(text)
    except ERRORS:
        return None
    return at if at.tzinfo else None


def has_gone(event: str, pod: Mapping[str, Any]) -> bool:
    """One that lost its labels is not watched any more either, but lives on: nothing goes while it has a finalizer."""
    metadata = pod["metadata"]
    held = isinstance(found := metadata.get("finalizers"), list) and names.METERING in found
    return event == "DELETED" and ("deletionTimestamp" in metadata or not held)


def unread_end(pod: Mapping[str, Any], seen: TaskSeen, now: dt.datetime) -> TaskSeen:
    """The end of a pod, last understood as `seen`, of which nobody understands more than that it has come."""
    has_succeeded = has_ended(pod) and pod["status"]["phase"] == "Succeeded"
    known = [at for at in (seen.scheduled_at, seen.began_at, seen.started_at) if at]
    return replace(
        seen,
        phase="Succeeded" if has_succeeded else "Failed",
        reason="" if has_succeeded else "Lost",
        message="" if has_succeeded else "It has ended; what was told of its end is not understood.",
        finished_at=max([*known, min(finished_at(pod) or now, now)]) if seen.scheduled_at else None,
        disrupted=not has_succeeded,
        estimated=True,
    )


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
