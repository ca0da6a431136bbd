"""Nodes of a Kubernetes cloud as its capacity reports them, runs of many tasks for them, and a cloud that only notes what it is
told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clusters.clouds.drivers.base import Node, Plan, RunRef


@dataclass
class Told:
    """A cloud that notes what it is told."""

    asks_for_addresses = False
    software = "container"
    applied: list[Plan] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)

    def reserve(self, run: RunRef, counts: dict[str, int]) -> dict[tuple[str, int], str]:
        return {(role, index): f"{role}-{index}:2222" for role, count in counts.items() for index in range(count)}

    def apply(self, plan: Plan) -> None:
        self.applied.append(plan)

    def delete(self, run: RunRef, *, over: bool = False) -> None:
        self.deleted.append(run.id)


def node(name: str = "n1", free: int = 8, **more: Any) -> Node:
    """What is not free is held by others than the portal."""
    facts: dict[str, Any] = {"gpu_model": "H200", "gpus": 8, "cpu_milli": 64_000, "memory_mb": 1 << 18, **more}
    return Node(name, **{"gpus_free": free, "gpus_others": facts["gpus"] - free, **facts})


def nodes(count: int, free: int = 8) -> tuple[Node, ...]:
    return tuple(node(f"n{number}", free) for number in range(count))


def gang(size: int, name: str = "gang", appcode: str = "ops-demo", **spec: Any) -> dict[str, Any]:
    """One master and workers, with a GPU each."""
    flavor = {"flavor": "middle-1-gpu"}
    roles = {"master": flavor, **({"worker": {**flavor, "count": size - 1}} if size > 1 else {})}
    spec = {"image": "container-only", "command": "true", "roles": roles, **spec}
    return {"kind": "cluster", "metadata": {"name": name, "appcode": appcode}, "spec": spec}


def create_theirs(people: Any, size: int, name: str = "theirs") -> None:
    """Creates a cluster of another appcode."""
    from tests.api.client import api_of

    assert api_of(people.root).post("/appcodes/flight-demo/clusters", gang(size, name, "flight-demo"))[0] == 201
