"""What a task asks of its node beside CPU, memory and a number of GPUs: what its GPUs are, and which nodes it may go to. Pure.

The idea: whole GPUs, slices of them (MIG, time-slicing) and other devices are different resources, which nothing adds up. What an
extended resource is called says which it is; a slice that has the name of a whole GPU is told apart by labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# The extended resource of NVIDIA's device plugin.
GPU = "nvidia.com/gpu"
# Extended resources that count whole devices. All others are slices or no GPUs.
WHOLE = frozenset({GPU, "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi"})
# With one strategy for a whole node, MIG slices and time-slices are called nvidia.com/gpu: then the model says what they are, or
# a label of GKE's.
_PART = re.compile(r"-MIG-|-SHARED$")
PART_LABELS = frozenset({"cloud.google.com/gke-gpu-partition-size", "cloud.google.com/gke-max-shared-clients-per-gpu"})
PARTS = f"{GPU} (slices)"
_QUANTITY = re.compile(r"([0-9]{1,15})([kMGT]|[KMGT]i)?")
_UNITS: Mapping[str, int] = {
    **{unit: 1000**power for power, unit in enumerate("kMGT", 1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGT", 1)},
}


@dataclass(frozen=True)
class Demand:
    """`resource`: what the task's GPUs are. `labels`: of its nodes. `tolerations`: taints as kubectl writes them, without a value
    any, without an effect all. `extra`: further extended resources and how much of each, as Kubernetes writes quantities."""

    resource: str = GPU
    labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def chooses_model(self) -> bool:
        """Whether its GPU model is that of the nodes, and not just a name with a price."""
        return self.resource == GPU and not PART_LABELS & dict(self.labels).keys()

    def counted(self, gpu_model: str) -> str:
        """The resource that its GPUs are counted as."""
        return counted(self.resource, gpu_model, dict(self.labels))

    def tolerated(self) -> tuple[str, ...]:
        """All taints that its pods tolerate if they have GPUs: also that by which nodes keep their GPUs for who asks for them."""
        own = dict.fromkeys([GPU, self.resource] if self.resource.startswith("nvidia.com/") else [self.resource])
        return (*(f"{name}:NoSchedule" for name in own), *self.tolerations)


ANY = Demand()
# Where a flavor, and a run that was submitted with it, say so.
DEMANDS = ("node_labels", "tolerations", "extra")


def demand_of(facts: Mapping[str, Any]) -> Demand:
    """What a flavor's facts demand, or those of a role in `Run.resources`. Those of older releases lack the names."""
    if not any(facts.get(name) for name in DEMANDS) and facts.get("resource", GPU) == GPU:
        return ANY
    return Demand(
        facts.get("resource", GPU),
        tuple(sorted((facts.get("node_labels") or {}).items())),
        tuple(map(written, facts.get("tolerations") or ())),
        tuple(sorted((name, str(quantity)) for name, quantity in (facts.get("extra") or {}).items())),
    )


def written(toleration: Mapping[str, str]) -> str:
    """A toleration as Kubernetes has it, in the syntax of `Demand.tolerations`."""
    value = f"={toleration.get('value', '')}" if toleration.get("operator", "Equal") == "Equal" else ""
    effect = f":{toleration['effect']}" if toleration.get("effect") else ""
    return f"{toleration['key']}{value}{effect}"


def counted(resource: str, gpu_model: str, labels: Mapping[str, str]) -> str:
    part = resource == GPU and (_PART.search(gpu_model) or PART_LABELS & labels.keys())
    return PARTS if part else resource


def is_whole(resource: str) -> bool:
    return resource in WHOLE


def is_gpu(resource: str) -> bool:
    """Whether GPUs, or slices of them, are counted under this name."""
    return resource in WHOLE or resource == PARTS or resource.startswith((f"{GPU}.", "nvidia.com/mig-"))


def amount(quantity: str) -> int:
    """Parses a quantity of whole units. Raises ValueError."""
    found = _QUANTITY.fullmatch(quantity)
    if not found:
        raise ValueError("Write a whole number, or one with a unit like 512Mi or 1Gi.")
    factor = _UNITS[found[2]] if found[2] else 1
    return int(found[1]) * factor


def short(resource: str) -> str:
    """The name for people: without the vendor's domain where it says enough."""
    if resource == PARTS:
        return "GPU slice"
    return resource.removeprefix("nvidia.com/")


def forms(taint: str) -> frozenset[str]:
    """All tolerations that match a taint, which is written as "key=value:effect"."""
    rest, _, effect = taint.rpartition(":")
    key, equals, value = rest.partition("=")
    if not equals:  # One of the portal's own, which has no forms.
        return frozenset({taint})
    return frozenset({f"{key}={value}", key, f"{key}={value}:{effect}", f"{key}:{effect}"})


def keeps_away(taints: Iterable[str], tolerated: Iterable[str]) -> str:
    """The first taint that none of the tolerations matches, or ""."""
    known = frozenset(tolerated)
    return next((taint for taint in sorted(taints) if not forms(taint) & known), "")
