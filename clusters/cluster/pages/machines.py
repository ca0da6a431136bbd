"""The nodes of a cloud as the page Queue draws them: boxes with a square a GPU, their words, and a legend. Pure.

The idea: what is drawn fits one screen whatever the size of the cloud. Where there are too many nodes for a box each, those whose
GPUs are in the same states share one; boxes that are still too many become one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clusters.admission.demand import PARTS, short
from clusters.runs.placing.tiles import STATES, State, Tile, total

# More nodes than this are grouped, and more groups than this are summed up.
MOST_BOXES = 48
# Nodes with more GPUs than this have one square with a number for each state.
MOST_SQUARES = 16
# How many nodes are named, and how many of their notes are said.
NAMED, SAID = 3, 2
WORDS: Mapping[State, str] = {
    "mine": "held by your runs",
    "others": "held by others' runs",
    "other_software": "held by other software",
    "promised": "for runs that are being started",
    "kept": "kept for waiting runs",
    "free": "free",
    "closed": "on nodes that take no tasks",
}
# An administrator sees all runs.
ALL_WORDS = {**WORDS, "mine": "held by runs"}
# Groups in this order: where a run could start comes first.
ORDER: tuple[State, ...] = ("free", "kept", "promised", "mine", "others", "other_software", "closed")


@dataclass(frozen=True)
class Square:
    """`count` GPUs. One square is drawn for all where they are too many."""

    state: State
    count: int


@dataclass(frozen=True)
class Box:
    """A node, or several alike. `sentence` says everything for who does not see the squares."""

    title: str
    beside: str
    sentence: str
    squares: Sequence[Square]
    note: str
    takes_tasks: bool


@dataclass(frozen=True)
class Kept:
    """Nodes that are kept for a run, named where the reader may see it ("" for all others)."""

    appcode: str
    cluster: str
    nodes: str


@dataclass(frozen=True)
class Machines:
    """`room`: what a run that is created now finds. `rest`: sentences about nodes that are not drawn."""

    room: str
    boxes: Sequence[Box]
    legend: Sequence[tuple[Square, str]]
    kept: Sequence[Kept]
    rest: Sequence[str]


# The appcode and the cluster of a run, by its id.
Names = Mapping[int, tuple[str, str]]


def machines(tiles: Iterable[Tile], keepers: Names, *, sees_all: bool = False) -> Machines:
    """`keepers`: the runs that the reader may see."""
    every = list(tiles)
    drawn = [each for each in every if each.gpus]
    words = ALL_WORDS if sees_all else WORDS
    if len(drawn) <= MOST_BOXES:
        drawn.sort(key=lambda each: _natural(each.name))
        groups = [[each] for each in drawn]
    else:
        alike: dict[object, list[Tile]] = {}
        for each in drawn:
            alike.setdefault(_key(each, keepers), []).append(each)
        groups = sorted(alike.values(), key=_importance)
    models = len({each.gpu_model for each in drawn}) > 1
    places = len({each.domains for each in drawn}) > 1
    sums = total(drawn)
    legend = [(Square(state, sums[state]), words[state]) for state in STATES if sums[state] or state == "free"]
    return Machines(
        _room(drawn),
        [_box(each, keepers, words, with_model=models, with_place=places) for each in groups[:MOST_BOXES]],
        legend,
        _kept(drawn, keepers),
        [
            *slice_lines(every),
            *_rest(groups[MOST_BOXES:], sum(not (each.gpus or each.slices) for each in every), words),
        ],
    )


def _key(tile: Tile, keepers: Names) -> object:
    """Equal for nodes that share a box."""
    keeper = (tile.keeper if tile.keeper in keepers else -1) if tile.keeper else 0
    return tile.gpus, tile.gpu_model, tile.takes_tasks, keeper, *(tile.count(state) for state in STATES)


def _importance(group: Sequence[Tile]) -> tuple[object, ...]:
    return (not group[0].takes_tasks, *(-group[0].count(state) for state in ORDER), -len(group))


def _box(
    group: Sequence[Tile], keepers: Names, words: Mapping[State, str], *, with_model: bool, with_place: bool
) -> Box:
    one = group[0]
    squares = [Square(state, one.count(state)) for state in STATES if one.count(state)]
    if one.gpus <= MOST_SQUARES:
        squares = [Square(each.state, 1) for each in squares for _ in range(each.count)]
    note = " ".join(_few(dict.fromkeys(each.note for each in group if each.note), SAID))
    beside = [f"{one.gpus} GPUs each"] if len(group) > 1 else []
    beside += [one.gpu_model] if with_model and one.gpu_model else []
    beside += (
        [" ".join(one.domains[-1])] if with_place and one.domains and len({each.domains for each in group}) == 1 else []
    )
    # Where nothing is free, no square says it.
    beside += ["kept"] if one.keeper and not one.kept else []
    title = f"{len(group):,} nodes" if len(group) > 1 else one.name
    sentence = _sentence(group, keepers, words, note)
    return Box(title, ", ".join(beside), sentence, squares, note, takes_tasks=one.takes_tasks)


def _sentence(group: Sequence[Tile], keepers: Names, words: Mapping[State, str], note: str) -> str:
    one = group[0]
    has = [(one.count(state), words[state]) for state in STATES if one.count(state)]
    model = f" ({one.gpu_model})" if one.gpu_model else ""
    domains = [" ".join(each) for each in one.domains] if len({each.domains for each in group}) == 1 else []
    where = f" in {', '.join(domains)}" if domains else ""
    gpus = f"{_gpus(one.gpus)}{model}"
    states = f"all {has[0][1]}" if len(has) == 1 else ", ".join(f"{count} {word}" for count, word in has)
    said = [f"{names(each.name for each in group)}: {gpus}{' each' if len(group) > 1 else ''}{where}, {states}."]
    if one.keeper:
        whom = "/".join(keepers[one.keeper]) if one.keeper in keepers else "a run of others"
        said.append(f"Kept for {whom}{'' if one.kept else ', once runs there end'}.")
    return " ".join([*said, note]).strip()


def _room(drawn: Sequence[Tile]) -> str:
    """What a run that is created now finds, also on one node."""
    free: dict[str, int] = {}
    for each in drawn:
        free[each.gpu_model] = free.get(each.gpu_model, 0) + each.free
    gpus, left = sum(each.gpus for each in drawn), sum(free.values())
    models = [f"{count:,} {model or 'of no known model'}" for model, count in sorted(free.items()) if count]
    several = f" ({', '.join(models)})" if len(free) > 1 and models else ""
    most = f", at most {max(each.free for each in drawn)} on one node" if left else ""
    return f"{left:,} of {gpus:,} GPUs free{several}{most}"


def _kept(drawn: Sequence[Tile], keepers: Names) -> list[Kept]:
    """In the order of the queue, runs of others last."""
    nodes: dict[tuple[str, str], list[Tile]] = {}
    for each in sorted(drawn, key=lambda each: each.keeper):
        if each.keeper in keepers:
            nodes.setdefault(keepers[each.keeper], []).append(each)
    others = [each for each in drawn if each.keeper and each.keeper not in keepers]
    rows = [*nodes.items(), *([(("", ""), others)] if others else [])]
    return [Kept(*of, f"{_nodes(len(found))}: {names(each.name for each in found)}") for of, found in rows]


def _rest(groups: Sequence[Sequence[Tile]], bare: int, words: Mapping[State, str]) -> list[str]:
    several = [each for group in groups for each in group]
    said = []
    if several:
        sums = total(several)
        has = ", ".join(f"{sums[state]:,} {words[state]}" for state in ORDER if sums[state])
        said.append(f"And {len(several):,} more {'nodes' if len(several) > 1 else 'node'}: {has}.")
    if bare:
        said.append(f"{_nodes(bare)} without GPUs.")
    return said


def slice_lines(tiles: Iterable[Tile]) -> list[str]:
    """What there is of each kind of slices."""
    found: dict[str, list[tuple[int, int]]] = {}
    for tile in tiles:
        for each in tile.slices:
            kind = tile.gpu_model if each.resource == PARTS and tile.gpu_model else short(each.resource)
            found.setdefault(kind, []).append((each.free, each.total))
    return [
        f"{sum(free for free, _ in several):,} of {sum(total for _, total in several):,} {kind} free, on {_nodes(len(several))}."
        for kind, several in sorted(found.items())
    ]


def names(several: Iterable[str]) -> str:
    found = list(several)
    more = len(found) - NAMED
    return ", ".join(found) if more < 1 else f"{', '.join(found[:NAMED])} and {more:,} more"


def _few(said: Iterable[str], most: int) -> list[str]:
    found = list(said)
    return found if len(found) <= most else [*found[:most], "…"]


def _nodes(count: int) -> str:
    return f"{count:,} node{'s'[: count != 1]}"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s'[: count != 1]}"


def _natural(name: str) -> list[tuple[int, str]]:
    """n2 before n10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
