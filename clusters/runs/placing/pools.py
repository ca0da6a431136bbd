"""What flavors and living runs ask of nodes beside CPU, memory and GPUs, and what of a cloud's nodes matters for it.

The idea: a cloud reports all labels, taints and devices of its nodes, and only those are stored that somebody names. A node whose
taints nobody tolerates takes no tasks, as its note says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.db import connection

from clusters.admission.demand import DEMANDS, demand_of, is_gpu, keeps_away
from clusters.catalog.models import Flavor
from clusters.clouds.drivers.base import Capacity, Node

# What roles of runs that are not gone ask for, where it is more than GPUs.
_RUNS = """SELECT DISTINCT asked.value FROM clusters_run, jsonb_each(resources) AS asked
WHERE NOT gone AND asked.value ?| ARRAY['resource', 'node_labels', 'tolerations', 'extra']"""


@dataclass(frozen=True)
class Asked:
    """`labels` and `devices`: the names that somebody asks for. `tolerated`: by whom taints are tolerated, each set once."""

    labels: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    tolerated: frozenset[frozenset[str]] = frozenset()

    @classmethod
    def of(cls, several: Iterable[Mapping[str, Any]]) -> Asked:
        """`several`: facts as of `demand_of`, with "gpus"."""
        labels, devices, tolerated = set[str](), set[str](), set[frozenset[str]]()
        for facts in several:
            demand = demand_of(facts)
            labels |= {key for key, _ in demand.labels}
            devices |= {name for name, _ in demand.extra}
            tolerated.add(frozenset(demand.tolerated() if facts["gpus"] else demand.tolerations))
        return cls(frozenset(labels), frozenset(devices), frozenset(tolerated))


def asked() -> Asked:
    """Two queries."""
    flavors = list(Flavor.objects.values("gpus", "resource", *DEMANDS))
    with connection.cursor() as cursor:
        cursor.execute(_RUNS)
        runs = [json.loads(facts) for (facts,) in cursor.fetchall()]
    return Asked.of([*flavors, *runs])


def kept(capacity: Capacity, asked: Asked) -> Capacity:
    """The capacity with what is stored of it."""
    return replace(capacity, nodes=tuple(_kept(node, asked) for node in capacity.nodes))


def _kept(node: Node, asked: Asked) -> Node:
    if not (node.labels or node.taints or node.slices):
        return node
    labels = tuple(each for each in node.labels if each[0] in asked.labels)
    slices = tuple(each for each in node.slices if is_gpu(each.resource) or each.resource in asked.devices)
    found = replace(node, labels=labels, slices=slices)
    if not (node.taints and node.takes_tasks):
        return found
    keeping = [keeps_away(node.taints, tolerated) for tolerated in asked.tolerated]
    if not all(keeping):
        return found
    key = node.taints[0].partition("=")[0]
    note = f"It takes no tasks: taint {key} keeps them away."
    return replace(found, taints=(), takes_tasks=False, gpus_free=0, note=note)
