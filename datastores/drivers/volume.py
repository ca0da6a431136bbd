"""A volume that Kubernetes makes: mounted by the nodes that run tasks, not by the portal."""

from __future__ import annotations

from datastores.drivers.base import NotPossible, Unseen


class Volume(Unseen):
    why = "Nodes mount this volume, the portal does not: its files are seen inside a cluster."

    def test(self) -> str:
        raise NotPossible("There is nothing to try before a run mounts this volume: Kubernetes makes it then.")
