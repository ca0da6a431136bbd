"""The contract of a framework driver: what the tasks of one role must find in their environment to find each other.

A driver is pure. It writes values once per role in the syntax of `clouds.base.expand`, where `$(TASK_INDEX)` is the only
thing that differs between the tasks of a role, so that one Kubernetes object per role is enough. What names all tasks is
written once per run, and the values of roles refer to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from clusters.manifest import ClusterSpec, RoleName

Addresses = Mapping[tuple[str, int], str]


class Framework(Protocol):
    name: str

    def shared(self, spec: ClusterSpec, addresses: Addresses) -> dict[str, str]:
        """Variables that are the same for every task, exactly as they stand. `addresses` has `host:port` for each (role,
        index) of the cluster."""

    def environment(self, spec: ClusterSpec, role: RoleName, addresses: Addresses) -> dict[str, str]:
        """Variables for every task of `role`, besides the shared ones."""


def addresses_of(addresses: Addresses, role: str, count: int) -> list[str]:
    """The addresses of one role in the order of their index."""
    return [addresses[role, index] for index in range(count)]
