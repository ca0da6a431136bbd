"""A cluster in which runs take GPUs back from each other until nobody can any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, Verdict, decide
from clusters.admission.order import FIRST, Level, Share, levels
from clusters.admission.packing import Layout, Shape, Sizes
from clusters.admission.pool import Node
from clusters.admission.taking import Holding

# Decisions after which runs that still take are in a cycle.
MOST = 30


class Cluster:
    """Nodes with four GPUs each. Everything is wanted for ever, and whoever is taken waits again at its old place."""

    def __init__(self, asks: Sequence[Ask], quotas: Mapping[str, int], count: int) -> None:
        self.asks, self.quotas, self.names = {each.run: each for each in asks}, quotas, [f"n{i}" for i in range(count)]
        self.where: dict[str, dict[str, int]] = {}

    def levels(self) -> dict[Ask, Level]:
        runs = {name: [self.asks[run] for run in self.asks if run in self.where and self.asks[run].appcode == name]
                for name in self.quotas}  # fmt: skip
        return {run: level for name, quota in self.quotas.items() for run, level in levels(runs[name], quota)}

    def share(self, name: str, by_level: Mapping[Ask, Level]) -> Share:
        gpus = {
            level: sum(run.gpus for run in by_level if by_level[run] == level and run.appcode == name)
            for level in Level
        }
        urgent = sum(run.gpus for run in by_level if run.priority_class == "urgent" and run.appcode == name)
        return Share(
            self.quotas[name], gpus[Level.QUOTA], gpus[Level.BORROWED], gpus[Level.SPARE], limit=100, urgent=urgent
        )

    def decide(self, by_level: Mapping[Ask, Level]) -> dict[str, Verdict]:
        free = dict.fromkeys(self.names, 4)
        for name, gpus in (item for nodes in self.where.values() for item in nodes.items()):
            free[name] -= gpus
        assert min(free.values()) >= 0
        held = tuple(
            Holding(run, self.asks[run].appcode, self.asks[run].gpus, {n: Sizes(gpus) for n, gpus in nodes.items()},
                    by_level[self.asks[run]], self.asks[run].priority_class)
            for run, nodes in self.where.items()
        )  # fmt: skip
        waiting = tuple(ask for ask in self.asks.values() if ask.run not in self.where)
        shares = {name: self.share(name, by_level) for name in self.quotas}
        return decide(
            Snapshot(tuple(Node(name, Shape(4), Shape(left)) for name, left in free.items()), waiting, shares, held)
        )

    def start(self, run: str, layout: Layout) -> bool:
        [tasks], found = self.asks[run].tasks, dict[str, int]()
        for (_, name), count in layout.items():
            found[name] = found.get(name, 0) + count * tasks.gpus
        if sum(found.values()) == self.asks[run].gpus:  # Elsewhere a scheduler would choose among more nodes.
            self.where[run] = found
        return run in self.where


def settle(cluster: Cluster) -> None:
    """Decides until nothing changes any more. Raises AssertionError if that does not end, or if somebody's right is hurt."""
    for _ in range(MOST):
        by_level = cluster.levels()
        found = cluster.decide(by_level)
        taken = [(cluster.asks[taker], cluster.asks[run]) for taker, verdict in found.items() for run in verdict.takes]
        assert len(taken) == len({run for _, run in taken})
        for taker, run in taken:
            higher = FIRST[taker.priority_class] < FIRST[run.priority_class]
            assert higher if taker.appcode == run.appcode else by_level[run] < Level.QUOTA
            del cluster.where[run.run]
        started = [
            cluster.start(run, verdict.nodes or {}) for run, verdict in found.items() if verdict.code is Code.FITS
        ]
        if not taken and not any(started):
            return
    raise AssertionError("runs take from each other for ever")
