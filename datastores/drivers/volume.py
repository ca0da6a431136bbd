"""A volume that Kubernetes makes: the nodes that run tasks mount it, the portal does not."""

from __future__ import annotations

from datastores.drivers.base import NotPossible, Unseen


class Volume(Unseen):
    why = "Nodes mount this volume, the portal does not: its files are seen inside a cluster."

    def test(self) -> str:
        raise NotPossible("There is nothing to try before a run mounts this volume: Kubernetes makes it then.")
