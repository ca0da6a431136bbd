"""Who has which GPUs of a node. Pure.

The idea: each GPU is counted in exactly one state, so the states of a node always add up to its GPUs, whatever rows and the cloud
say: where they contradict each other, what holds GPUs comes before what is only promised or free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from clusters.admission.decision import Outlook, Snapshot
from clusters.admission.demand import GPU, is_gpu
from clusters.admission.packing import Sizes
from clusters.clouds.drivers.base import Capacity, Node

State = Literal["mine", "others", "other_software", "promised", "kept", "free", "closed"]
STATES: tuple[State, ...] = get_args(State)
NOTHING = Sizes()


@dataclass(frozen=True)
class Slice:
    """The slices of one kind on a node by state, as of `Tile`."""

    resource: str
    total: int
    mine: int = 0
    others: int = 0
    other_software: int = 0
    promised: int = 0
    kept: int = 0
    free: int = 0
    closed: int = 0


@dataclass(frozen=True)
class Tile:
    """The GPUs of one node by state. `mine`: held by runs that the reader may see, `others`: by other runs. `promised`: to a run
    that is being started. `kept`: for waiting runs. `closed`: held by nobody on a node that takes no tasks. `keeper`: the run for
    which the node is kept, or is going to be free; 0 for none. `slices`: of GPUs; each is in a state of its own. `domains`:
    where it is, as of `Node`."""

    name: str
    gpus: int
    mine: int = 0
    others: int = 0
    other_software: int = 0
    promised: int = 0
    kept: int = 0
    free: int = 0
    closed: int = 0
    gpu_model: str = ""
    takes_tasks: bool = True
    note: str = ""
    keeper: int = 0
    slices: tuple[Slice, ...] = ()
    domains: tuple[tuple[str, str], ...] = ()

    def count(self, state: State) -> int:
        found: int = getattr(self, state)
        return found


def sizes_of(amounts: Mapping[str, int]) -> Sizes:
    """Amounts by resource."""
    return Sizes(amounts.get(GPU, 0), slices=tuple(sorted((name, n) for name, n in amounts.items() if name != GPU)))


def tile(node: Node, *, held: Sizes, mine: Sizes, promised: Sizes = NOTHING, keeper: int = 0) -> Tile:
    """`held`: what tasks of the portal hold there, and `mine` of it what those of the reader's runs do."""

    def states(resource: str, total: int, others: int) -> dict[State, int]:
        left, all_of, own = max(0, total), held.of(resource), mine.of(resource)
        own = max(0, min(own, all_of))
        amounts: tuple[tuple[State, int], ...] = (
            ("mine", own),
            ("others", all_of - own),
            ("other_software", others),
            ("promised", promised.of(resource)),
        )
        found: dict[State, int] = {}
        for state, amount in amounts:
            found[state] = min(max(0, amount), left)
            left -= found[state]
        rest: State = "kept" if keeper else "free"
        return found | {rest if node.takes_tasks else "closed": left}

    slices = [each for each in node.slices if is_gpu(each.resource)]
    return Tile(
        node.name, max(0, node.gpus), **states(node.resource, node.gpus, node.gpus_others), gpu_model=node.gpu_model,
        takes_tasks=node.takes_tasks, note=node.note, keeper=keeper, domains=tuple(each for each in node.domains if each[1]),
        slices=tuple(
            Slice(each.resource, max(0, each.total), **states(each.resource, each.total, each.others)) for each in slices
        ),
    )  # fmt: skip


def seen_tiles(capacity: Capacity, held: Mapping[str, Sizes], mine: Mapping[str, Sizes] | None) -> list[Tile]:
    """Where the portal does not place runs: what the cloud reports as neither free nor other software is held by runs. Of nodes
    that take no tasks it does not report what is free. `held`: by node, by all runs, `mine`: by the reader's; None for all."""
    found = []
    for node in capacity.nodes:
        here = held.get(node.name, NOTHING)
        if node.takes_tasks:
            seen = {node.resource: node.gpus - node.gpus_free - node.gpus_others}
            seen |= {each.resource: each.total - each.free - each.others for each in node.slices}
            here = sizes_of(seen)
        found.append(tile(node, held=here, mine=here if mine is None else mine.get(node.name, NOTHING)))
    return found


def placed_tiles(
    capacity: Capacity,
    held: Mapping[str, Sizes],
    mine: Mapping[str, Sizes] | None,
    snapshot: Snapshot,
    decided: Outlook,
) -> list[Tile]:
    """Where the portal places runs: as it decides. `held` and `mine` as above."""
    left = {name: shape for shape, names in decided.left.items() for name in names}
    found = []
    for node, known in zip(capacity.nodes, snapshot.nodes, strict=True):
        here = held.get(node.name, NOTHING)
        whole, rest = known.drained or known.whole, left.get(node.name, known.free)
        # A snapshot has only those slices for which somebody asks.
        names = [whole.resource, *(name for name, _ in whole.slices)]
        promised = {name: whole.has(name) - here.of(name) - rest.has(name) for name in names}
        keeper = int(decided.kept.get(node.name, 0))
        own = here if mine is None else mine.get(node.name, NOTHING)
        found.append(tile(node, held=here, mine=own, promised=sizes_of(promised), keeper=keeper))
    return found


def total(tiles: Iterable[Tile]) -> dict[State, int]:
    several = list(tiles)
    return {state: sum(each.count(state) for each in several) for state in STATES}
