"""Decides which runs start now, wait, or can never start. Pure: equal snapshots give equal decisions.

The quota of the appcode comes first. Then runs start in order, each with all of its tasks or none. A run that waits for nodes
keeps every node that could hold one of its tasks when empty; a later run may only start on other nodes. Nothing in the portal
calls this package yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from clusters.admission.packing import Field, Layout, Shape, Tasks, group, search, why_never


class Code(StrEnum):
    FITS = "Fits"
    QUOTA = "Quota"
    BEHIND = "Behind"
    GPUS = "Gpus"
    RESOURCES = "Resources"  # CPU or memory
    FRAGMENTED = "Fragmented"
    OVER_LIMIT = "OverLimit"
    NO_SUCH_GPU = "NoSuchGpu"
    OVER_NODE = "OverNode"
    OVER_POOL = "OverPool"


@dataclass(frozen=True)
class Node:
    """`free` leaves out what running pods hold, those of others too. `ready`: takes tasks now."""

    name: str
    whole: Shape
    free: Shape
    ready: bool = True


@dataclass(frozen=True)
class Share:
    """GPUs of an appcode: its quota and what its living runs hold."""

    quota: int
    held: int = 0


@dataclass(frozen=True)
class Ask:
    run: str
    appcode: str
    tasks: tuple[Tasks, ...]

    @property
    def gpus(self) -> int:
        return sum(each.count * each.gpus for each in self.tasks)


@dataclass(frozen=True)
class Snapshot:
    """`asks` are in order: the first is the head of the queue."""

    nodes: tuple[Node, ...]
    asks: tuple[Ask, ...]
    shares: Mapping[str, Share] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """`rank`: place among the waiting runs from 1, or 0 for a run that starts now or never. `nodes`: only with Fits."""

    code: Code
    values: Mapping[str, int | str]
    rank: int = 0
    nodes: Layout | None = None


def decide(snapshot: Snapshot) -> dict[str, Verdict]:
    empty = group((node.name, node.whole) for node in snapshot.nodes)
    free = group((node.name, node.free) for node in snapshot.nodes if node.ready)
    whole = {node.name: node.whole for node in snapshot.nodes}
    held = {appcode: share.held for appcode, share in snapshot.shares.items()}
    never: dict[tuple[Tasks, ...], Code | None] = {}
    blocked: set[str] = set()  # Appcodes of which a run waits for quota.
    kept: dict[Shape, tuple[str, ...]] = {}  # Nodes that earlier waiting runs keep.
    verdicts: dict[str, Verdict] = {}
    rank = 0
    for ask in snapshot.asks:
        share = snapshot.shares.get(ask.appcode, Share(0))
        if ask.tasks not in never:
            why = why_never(ask.tasks, empty)
            never[ask.tasks] = Code(why) if why else None
        values: dict[str, int | str] = {"gpus": ask.gpus}
        if ask.gpus > share.quota:
            verdicts[ask.run] = Verdict(Code.OVER_LIMIT, values | {"quota": share.quota})
            continue
        if (impossible := never[ask.tasks]) is not None:
            verdicts[ask.run] = Verdict(impossible, values)
            continue
        now = held.get(ask.appcode, 0)
        if ask.gpus and (now + ask.gpus > share.quota or ask.appcode in blocked):
            rank += 1
            blocked.add(ask.appcode)
            verdicts[ask.run] = Verdict(Code.QUOTA, values | {"quota": share.quota, "held": now}, rank)
            continue
        found = search(ask.tasks, free)
        if found.layout is not None:
            free = found.left
            held[ask.appcode] = now + ask.gpus
            verdicts[ask.run] = Verdict(Code.FITS, values, nodes=found.layout)
            continue
        rank += 1
        every = _both(free, kept)
        suiting = {
            shape: names for shape, names in every.items() if any(shape.suits(each) for each in ask.tasks if each.gpus)
        }
        free_gpus = sum(max(0, shape.gpus) * len(names) for shape, names in suiting.items())
        verdicts[ask.run] = Verdict(_why_waits(ask, every, free_gpus), values | {"free": free_gpus}, rank)
        taken = group((name, shape) for shape, names in free.items() for name in names if _could_hold(whole[name], ask))
        free = group(
            (name, shape) for shape, names in free.items() for name in names if not _could_hold(whole[name], ask)
        )
        kept = _both(kept, taken)
    return verdicts


def _why_waits(ask: Ask, every: Field, free_gpus: int) -> Code:
    """`every`: free resources, including those that earlier runs keep."""
    if free_gpus < ask.gpus:
        return Code.GPUS
    if search(ask.tasks, every).layout is not None:
        return Code.BEHIND
    alone = [replace(each, cpu_milli=0, memory_mb=0) for each in ask.tasks]
    return Code.RESOURCES if search(alone, every).layout is not None else Code.FRAGMENTED


def _could_hold(whole: Shape, ask: Ask) -> bool:
    return any(whole.holds(each) for each in ask.tasks)


def _both(one: Field, other: Field) -> dict[Shape, tuple[str, ...]]:
    return {shape: one.get(shape, ()) + other.get(shape, ()) for shape in {**one, **other}}
