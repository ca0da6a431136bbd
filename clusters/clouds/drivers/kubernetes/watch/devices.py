"""Devices of nodes that Kubernetes knows from ResourceSlices (dynamic resource allocation) and hands out as an extended resource.

A DeviceClass with `extendedResourceName` says which devices pods get that ask for the resource as before; kube-scheduler makes
and allocates their claims (KEP-5004). So all that is left to do here is to count such devices of each node, and those that claims
of others hold. A class selects devices by an expression in CEL, of which the usual kind is understood: comparisons of the driver
and of attributes with strings, joined by &&. Devices of other classes are not counted, so none is promised that is not there.
Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusters.admission.demand import counted, is_whole
from clusters.clouds.drivers.base import Node, Slices
from clusters.clouds.drivers.kubernetes.settings import AMD_MODEL, GPU
from clusters.clouds.drivers.kubernetes.watch.capacity import NOTHING, Held

GROUP, VERSION = "resource.k8s.io", "v1"
PLURALS: Mapping[str, str] = {
    "ResourceSlice": "resourceslices",
    "DeviceClass": "deviceclasses",
    "ResourceClaim": "resourceclaims",
}
# Of a claim that the scheduler made for a pod that asked for an extended resource, which counts as what the pod asked for.
MADE_FOR_POD = "resource.kubernetes.io/extended-resource-claim"
_TEXT = r"""(?:"([^"\\]*)"|'([^'\\]*)')"""
_DRIVER = re.compile(rf"device\.driver\s*==\s*{_TEXT}")
_ATTRIBUTE = re.compile(rf"device\.attributes\[{_TEXT}\]\.([A-Za-z0-9_]+)\s*==\s*{_TEXT}")


@dataclass(frozen=True)
class Device:
    """`facts`: its driver under "", and its attributes by name."""

    node: str
    facts: Mapping[str, str]


class Devices:
    """Devices by their names, and which of them are handed out as what."""

    def __init__(self) -> None:
        self.changed = False
        # By the names of the objects: driver, pool and generation with devices; resource with what is demanded of a device's
        # facts, None if that is not understood; devices.
        self._slices: dict[str, tuple[str, str, int, list[tuple[str, Device]]]] = {}
        self._classes: dict[str, tuple[str, list[dict[str, str]] | None]] = {}
        self._claims: dict[str, list[tuple[str, str, str]]] = {}

    def note(self, kind: str, event: str, item: Mapping[str, Any]) -> None:
        metadata = item["metadata"]
        name = f"{metadata.get('namespace', '')}/{metadata['name']}"
        tables: dict[str, dict[str, Any]] = {
            "ResourceSlice": self._slices, "DeviceClass": self._classes, "ResourceClaim": self._claims,
        }  # fmt: skip
        of = tables[kind]
        self.changed = True
        of.pop(name, None)
        if event != "DELETED":
            found = _READ[kind](item)
            if found is not None:
                of[name] = found

    def by_node(self) -> dict[str, dict[str, int]]:
        """How many devices of each extended resource there are, by node."""
        found: dict[str, Counter[str]] = {}
        for device in self._devices().values():
            for resource in self._resources(device):
                found.setdefault(device.node, Counter())[resource] += 1
        return {node: dict(counts) for node, counts in found.items()}

    def held(self) -> dict[str, Held]:
        """What claims hold that were not made for a pod's extended resource, by claim and node."""
        devices = self._devices()
        found: dict[str, Held] = {}
        for claim, names in self._claims.items():
            sums: dict[str, Counter[str]] = {}
            for device in (devices[name] for name in names if name in devices):
                sums.setdefault(device.node, Counter()).update(self._resources(device))
            for node, counts in sums.items():
                others = tuple(sorted((name, float(n)) for name, n in counts.items() if name != GPU))
                asked = float(counts[GPU]), *NOTHING[1:]
                found[f"claim {claim} {node}"] = Held(None, node, asked, others)
        return found

    def _devices(self) -> dict[tuple[str, str, str], Device]:
        """Those of the newest generation of each pool."""
        newest = Counter[tuple[str, str]]()
        for driver, pool, generation, _ in self._slices.values():
            newest[driver, pool] = max(newest[driver, pool], generation)
        return {
            (driver, pool, name): device
            for driver, pool, generation, several in self._slices.values()
            if generation == newest[driver, pool]
            for name, device in several
        }

    def _resources(self, device: Device) -> Iterator[str]:
        for resource, selectors in sorted(self._classes.values(), key=lambda each: each[0]):
            if selectors is not None and all(
                device.facts.get(key) == value for each in selectors for key, value in each.items()
            ):
                yield resource


def with_devices(node: Node, counts: Mapping[str, int]) -> Node:
    """The node with these devices, but for what its kubelet offers itself: the scheduler takes that then."""
    labels = dict(node.labels)
    for name, count in sorted(counts.items()):
        resource = counted(name, node.gpu_model, labels)
        if (node.gpus and resource == node.resource) or any(each.resource == resource for each in node.slices):
            continue
        if is_whole(resource) and not node.gpus:
            model = node.gpu_model if resource == GPU else labels.get(AMD_MODEL, "")
            free = count if node.takes_tasks else 0
            node = replace(node, resource=resource, gpus=count, gpus_free=free, gpu_model=model)
        else:
            slices = sorted((*node.slices, Slices(resource, count, count)), key=lambda each: each.resource)
            node = replace(node, slices=tuple(slices))
    return node


def _slice(item: Mapping[str, Any]) -> tuple[str, str, int, list[tuple[str, Device]]] | None:
    spec = item["spec"]
    node = spec.get("nodeName")
    if not node:
        return None  # Devices that several nodes reach.
    driver, pool = spec["driver"], spec["pool"]
    devices = [
        (each["name"], Device(node, {"": driver, **_attributes(driver, each)}))
        for each in spec.get("devices") or ()
        if not any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in each.get("taints") or ())
    ]
    return driver, pool["name"], int(pool["generation"]), devices


def _attributes(driver: str, device: Mapping[str, Any]) -> dict[str, str]:
    """Names without a domain are of the driver's."""
    return {
        name if "/" in name else f"{driver}/{name}": str(value["string"])
        for name, value in (device.get("attributes") or {}).items()
        if "string" in value
    }


def _class(item: Mapping[str, Any]) -> tuple[str, list[dict[str, str]] | None] | None:
    spec = item["spec"]
    name = spec.get("extendedResourceName")
    if not name:
        return None
    found = [_selector((each.get("cel") or {}).get("expression", "")) for each in spec.get("selectors") or ()]
    understood = [each for each in found if each is not None]
    return name, understood if len(understood) == len(found) else None


def _selector(expression: str) -> dict[str, str] | None:
    """What an expression demands of a device's facts; None if it says more."""
    wanted: dict[str, str] = {}
    for part in expression.split("&&"):
        term = part.strip()
        if match := _DRIVER.fullmatch(term):
            key, value = "", match[1] or match[2] or ""
        elif match := _ATTRIBUTE.fullmatch(term):
            key, value = f"{match[1] or match[2]}/{match[3]}", match[4] or match[5] or ""
        else:
            return None
        if wanted.setdefault(key, value) != value:
            return None
    return wanted


def _claim(item: Mapping[str, Any]) -> list[tuple[str, str, str]] | None:
    if MADE_FOR_POD in (item["metadata"].get("annotations") or {}):
        return None
    allocation = (item.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [(each["driver"], each["pool"], each["device"]) for each in results if not each.get("adminAccess")] or None


_READ = {"ResourceSlice": _slice, "DeviceClass": _class, "ResourceClaim": _claim}
