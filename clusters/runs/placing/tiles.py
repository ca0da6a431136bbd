"""Who has which GPUs of a node. Pure.

The idea: each GPU is counted in exactly one state, so the states of a node always add up to its GPUs, whatever rows and the cloud
say: where they contradict each other, what holds GPUs comes before what is only promised or free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from clusters.admission.decision import Outlook, Snapshot
from clusters.admission.demand import is_gpu
from clusters.clouds.drivers.base import Capacity, Node, Slices

State = Literal["mine", "others", "other_software", "promised", "kept", "free", "closed"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Tile:
    """The GPUs of one node by state. `mine`: held by runs that the reader may see, `others`: by other runs. `promised`: to a run
    that is being started. `kept`: for waiting runs. `closed`: held by nobody on a node that takes no tasks. `keeper`: the run for
    which the node is kept, or is going to be free; 0 for none. `slices`: of GPUs; they are in none of these states. `domains`:
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
    slices: tuple[Slices, ...] = ()
    domains: tuple[tuple[str, str], ...] = ()

    def count(self, state: State) -> int:
        found: int = getattr(self, state)
        return found


def tile(node: Node, *, held: int, mine: int, promised: int = 0, keeper: int = 0) -> Tile:
    """`held`: GPUs that tasks of the portal hold there, and `mine` of these those of the reader's runs."""
    gpus = left = max(0, node.gpus)
    mine = max(0, min(mine, held))
    amounts: tuple[tuple[State, int], ...] = (
        ("mine", mine),
        ("others", held - mine),
        ("other_software", node.gpus_others),
        ("promised", promised),
    )
    found: dict[State, int] = {}
    for state, amount in amounts:
        found[state] = min(max(0, amount), left)
        left -= found[state]
    rest: State = "kept" if keeper else "free"
    found[rest if node.takes_tasks else "closed"] = left
    return Tile(
        node.name, gpus, **found, gpu_model=node.gpu_model, takes_tasks=node.takes_tasks, note=node.note, keeper=keeper,
        slices=tuple(each for each in node.slices if is_gpu(each.resource)),
        domains=tuple(each for each in node.domains if each[1]),
    )  # fmt: skip


def seen_tiles(capacity: Capacity, held: Mapping[str, int], mine: Mapping[str, int] | None) -> list[Tile]:
    """Where the portal does not place runs: what the cloud reports as neither free nor other software is held by runs. Of nodes
    that take no tasks it does not report what is free. `held`: by node, by all runs, `mine`: by the reader's; None for all."""
    found = []
    for node in capacity.nodes:
        here = node.gpus - node.gpus_free - node.gpus_others if node.takes_tasks else held.get(node.name, 0)
        found.append(tile(node, held=here, mine=here if mine is None else mine.get(node.name, 0)))
    return found


def placed_tiles(
    capacity: Capacity, held: Mapping[str, int], mine: Mapping[str, int] | None, snapshot: Snapshot, decided: Outlook
) -> list[Tile]:
    """Where the portal places runs: as it decides. `held` and `mine` as above."""
    left = {name: shape.gpus for shape, names in decided.left.items() for name in names}
    found = []
    for node, known in zip(capacity.nodes, snapshot.nodes, strict=True):
        here = held.get(node.name, 0)
        whole = known.drained or known.whole
        promised = whole.gpus - here - left.get(node.name, known.free.gpus)
        keeper = int(decided.kept.get(node.name, 0))
        own = here if mine is None else mine.get(node.name, 0)
        found.append(tile(node, held=here, mine=own, promised=promised, keeper=keeper))
    return found


def total(tiles: Iterable[Tile]) -> dict[State, int]:
    several = list(tiles)
    return {state: sum(each.count(state) for each in several) for state in STATES}
