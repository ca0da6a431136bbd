"""Places the tasks of a run near each other: in one rack, else in one zone, else anywhere. Pure.

Nodes in the same rack are not alike, so their racks are no part of their `Shape`: there would be as many groups of equal nodes as
racks. Domains are looked at for tasks that need several nodes alone, by counting what fits in each, and the smallest that holds
all is tried first. What fits anywhere is never refused because of its domains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from clusters.admission.packing import Field, Placement, Tasks, assign, grouped, joined, split

# The zone, the rack, … of a node, from wide to narrow; "" where it is in none. Racks of several zones may be called the same.
Path = tuple[str, ...]
# Domains of one size that are tried for one run, those with the least room first.
MOST_TRIED = 16
_MANY = 1 << 40


@dataclass(frozen=True)
class Level:
    """Domains of one size, which are numbered. `of`: in which each node is; some may be in none."""

    of: Mapping[str, int]
    nodes: Sequence[frozenset[str]]

    def able(self, groups: Sequence[Tasks], field: Field, apart: Field) -> Iterator[frozenset[str]]:
        """The nodes of each domain that may hold all of the tasks, those with the least room first. `apart`: nodes of which
        nothing is promised; tasks on several nodes only go there (`packing.assign`)."""
        rooms = [self._room(each, field, apart) for each in groups]
        able = set(rooms[0]).intersection(*rooms[1:])
        for number in sorted(able, key=lambda number: ([room[number] for room in rooms], number))[:MOST_TRIED]:
            yield self.nodes[number]

    def _room(self, tasks: Tasks, field: Field, apart: Field) -> Mapping[int, int]:
        """How many of the tasks the domains hold that hold all of them."""
        room, many = Counter[int | None](), replace(tasks, count=_MANY)
        whole = set[int | None]()
        for shape, names in field.items():
            if here := shape.holds(many):
                if here >= tasks.count:
                    whole.update(map(self.of.get, names))
                for number, count in Counter(map(self.of.get, apart.get(shape, ()))).items():
                    room[number] += count * here
        able = whole.union(number for number, here in room.items() if here >= tasks.count)
        return {number: room[number] for number in able if number is not None}


@dataclass(frozen=True)
class Topology:
    """`levels`: from narrow to wide. None divides nothing."""

    levels: tuple[Level, ...] = ()

    @classmethod
    def of(cls, nodes: Iterable[tuple[str, Path]]) -> Topology:
        every = dict(nodes)
        levels = []
        for depth in range(max(map(len, every.values()), default=0), 0, -1):
            names: dict[Path, list[str]] = {}
            for name, path in every.items():
                if len(path) >= depth and path[depth - 1]:
                    names.setdefault(path[:depth], []).append(name)
            if len(names) > 1 or any(len(each) < len(every) for each in names.values()):
                several = [names[path] for path in sorted(names)]
                of = {name: number for number, each in enumerate(several) for name in each}
                levels.append(Level(of, tuple(map(frozenset, several))))
        return cls(tuple(levels))

    def in_turn(self, names: Iterable[str]) -> list[str]:
        """The nodes, so that the first of them are in as many domains as possible, and otherwise in the same order."""
        ordered = list(names)
        for level in self.levels:
            before, turns = Counter[int | str](), {}
            for name in ordered:
                domain = level.of.get(name, name)
                turns[name] = before[domain]
                before[domain] += 1
            ordered.sort(key=turns.__getitem__)
        return ordered


NOWHERE = Topology()


def assign_near(
    tasks: Sequence[Tasks], field: Field, promised: Collection[str] = (), topology: Topology = NOWHERE
) -> Placement:
    """As `packing.assign`, near each other."""
    groups = grouped(tuple(tasks)) if topology.levels else []
    if any(each.spread for each in groups):
        return assign(tasks, field, promised, topology.in_turn)
    if not groups or (len(groups) == 1 and any(shape.holds(groups[0]) == groups[0].count for shape in field)):
        return assign(tasks, field, promised)
    apart, risky = split(field, promised)[0], None
    for level in topology.levels:
        for names in level.able(groups, field, apart):
            outside, inside = split(field, names)
            found = assign(tasks, inside, promised)
            if found.layout is not None:
                found = replace(found, left=joined(found.left, outside))
                if found.proved:
                    return found
                risky = risky or found
    anywhere = assign(tasks, field, promised)
    # It matters more that a scheduler finds the places in any order.
    return anywhere if risky is None or (anywhere.proved and anywhere.layout is not None) else risky
