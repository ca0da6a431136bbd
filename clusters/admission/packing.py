"""Places all tasks of a run on nodes, or none. Pure.

Nodes with equal free resources form one group, so the cost depends on the number of different nodes and not on their number. A
greedy best fit comes first. Where it fails, a bounded exact search follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, Literal

from clusters.admission.demand import ANY, GPU, PARTS, Demand, amount, is_gpu, is_whole, keeps_away

Never = Literal["NoSuchGpu", "OverNode", "OverPool"]
# Steps of the exact search before it gives up.
MOST_STEPS = 2000
# Taint of a node that refuses tasks without GPUs.
GPU_ONLY = frozenset({"gpu-tasks-only"})


@dataclass(frozen=True)
class Tasks:
    """`count` equal tasks of one role. `gpu_model`: "" for any. `resource`: what its GPUs are. `labels` and `tolerated` (taints
    as in `demand`) choose nodes. `spread`: they go to the emptiest nodes and not to the fullest, each to another if there are
    enough, since a node may be lost with all that runs there. `extra`: other resources of one task by name."""

    role: str
    count: int
    gpus: int = 0
    gpu_model: str = ""
    cpu_milli: int = 0
    memory_mb: int = 0
    resource: str = GPU
    labels: frozenset[tuple[str, str]] = frozenset()
    tolerated: frozenset[str] = frozenset()
    spread: bool = False
    extra: tuple[tuple[str, int], ...] = ()

    def __hash__(self) -> int:
        """Remembered, since tasks are looked up far more often than made. Not to be pickled: other processes hash otherwise."""
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            sizes = self.count, self.gpus, self.cpu_milli, self.memory_mb
            found = self.__dict__["_hash"] = hash((self.role, self.gpu_model, self.resource, *sizes))
        return found

    @property
    def whole_gpus(self) -> int:
        """GPUs of one task; slices are none."""
        return self.gpus if is_whole(self.resource) else 0

    def needs(self, resource: str) -> int:
        """How much one task needs of a resource that `Shape.has`."""
        return (self.gpus if resource == self.resource else 0) + sum(n for name, n in self.extra if name == resource)


@dataclass(frozen=True)
class Sizes:
    """Resources of one node that somebody holds."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_mb: int = 0
    # What is no whole GPU of NVIDIA's, by resource and in order.
    slices: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of_tasks(cls, tasks: Tasks, count: int) -> Sizes:
        """What this many of the tasks take."""
        is_usual = tasks.resource == GPU
        sliced = Counter({name: count * need for name, need in tasks.extra})
        if tasks.gpus and not is_usual:
            sliced[tasks.resource] += count * tasks.gpus
        gpus = count * tasks.gpus if is_usual else 0
        return cls(gpus, count * tasks.cpu_milli, count * tasks.memory_mb, tuple(sorted(sliced.items())))

    def __add__(self, other: Sizes) -> Sizes:
        slices = self.slices
        if other.slices:
            slices = tuple(sorted((Counter(dict(slices)) + Counter(dict(other.slices))).items()))
        return Sizes(self.gpus + other.gpus, self.cpu_milli + other.cpu_milli, self.memory_mb + other.memory_mb, slices)

    def __sub__(self, other: Sizes) -> Sizes:
        """What is left of a sum without one of its parts."""
        parts = dict(other.slices)
        slices = tuple((name, n - parts.get(name, 0)) for name, n in self.slices)
        return Sizes(self.gpus - other.gpus, self.cpu_milli - other.cpu_milli, self.memory_mb - other.memory_mb, slices)

    @property
    def units(self) -> int:
        """GPUs and slices of GPUs."""
        return self.gpus + sum(n for name, n in self.slices if is_gpu(name))

    def of(self, resource: str) -> int:
        return (self.gpus if resource == GPU else 0) + sum(n for name, n in self.slices if name == resource)


def asking(
    role: str,
    count: int,
    gpus: int = 0,
    gpu_model: str = "",
    cpu_milli: int = 0,
    memory_mb: int = 0,
    demand: Demand = ANY,
) -> Tasks:
    """Returns equal tasks that may use the nodes which refuse tasks without GPUs, if they have some."""
    if demand == ANY and demand.counted(gpu_model) == GPU:
        return Tasks(role, count, gpus, gpu_model, cpu_milli, memory_mb, tolerated=GPU_ONLY if gpus else frozenset())
    tolerated = {*demand.tolerated(), *(GPU_ONLY if demand.resource.startswith("nvidia.com/") else ())} if gpus else ()
    return Tasks(
        role, count, gpus, gpu_model, cpu_milli, memory_mb, demand.counted(gpu_model), frozenset(demand.labels),
        frozenset({*demand.tolerations, *tolerated}),
        extra=tuple((name, amount(quantity)) for name, quantity in demand.extra),
    )  # fmt: skip


@dataclass(frozen=True, order=True)
class Shape:
    """Free (or all) resources of a node. `resource` is the extended resource that `gpus` counts; `slices` has others, by name and
    in order. `any_model`: its GPUs are simulated and take every model."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_mb: int = 0
    gpu_model: str = ""
    resource: str = GPU
    labels: frozenset[tuple[str, str]] = frozenset()
    taints: frozenset[str] = frozenset()
    any_model: bool = False
    slices: tuple[tuple[str, int], ...] = ()

    def __hash__(self) -> int:
        """As of `Tasks`."""
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            sizes = self.gpus, self.cpu_milli, self.memory_mb
            found = self.__dict__["_hash"] = hash((*sizes, self.gpu_model, self.labels, self.taints, self.slices))
        return found

    @cached_property
    def size(self) -> tuple[Any, ...]:
        """By which shapes are ordered, the smallest first."""
        return (
            self.gpus, self.cpu_milli, self.memory_mb, self.gpu_model, self.resource, sorted(self.labels),
            sorted(self.taints), self.any_model, self.slices,
        )  # fmt: skip

    @property
    def units(self) -> int:
        """GPUs and slices of GPUs."""
        return self.gpus + (sum(n for name, n in self.slices if is_gpu(name)) if self.slices else 0)

    def has(self, resource: str) -> int:
        return self.gpus if resource == self.resource else next((n for name, n in self.slices if name == resource), 0)

    def offers(self, resource: str) -> bool:
        """Whether it has such a resource, of which nothing may be left."""
        return resource == self.resource or any(name == resource for name, _ in self.slices)

    def admits(self, tasks: Tasks) -> bool:
        """Whether its labels and taints let the tasks in."""
        return tasks.labels <= self.labels and (not self.taints or not _keeps_away(self.taints, tasks.tolerated))

    def suits(self, tasks: Tasks) -> bool:
        if not self.admits(tasks):
            return False
        if not tasks.gpus:
            return True
        # Elsewhere the model is a name; not all nodes with slices that are called GPUs say what they are.
        chooses = tasks.resource == GPU or (tasks.resource == PARTS and bool(self.gpu_model))
        if chooses and not self.any_model and tasks.gpu_model not in ("", self.gpu_model):
            return False
        return self.offers(tasks.resource)

    def holds(self, tasks: Tasks) -> int:
        """Returns how many of the tasks fit on one such node, at most `tasks.count`."""
        if not self.suits(tasks):
            return 0
        gpus = self.gpus if tasks.resource == self.resource else self.has(tasks.resource)
        sizes = ((gpus, tasks.gpus), (self.cpu_milli, tasks.cpu_milli), (self.memory_mb, tasks.memory_mb))
        found = max(0, min([tasks.count, *(have // need for have, need in sizes if need)]))
        return min([found, *(max(0, self.has(name)) // need for name, need in tasks.extra)]) if tasks.extra else found

    def without(self, tasks: Tasks, count: int) -> Shape:
        gpus = tasks.needs(self.resource) if tasks.extra else tasks.gpus if tasks.resource == self.resource else 0
        left = (
            self.gpus - count * gpus,
            self.cpu_milli - count * tasks.cpu_milli,
            self.memory_mb - count * tasks.memory_mb,
        )
        return self._with(*left, tuple((name, n - count * tasks.needs(name)) for name, n in self.slices))

    def no_less_than_nothing(self) -> Shape:
        left = max(0, self.gpus), max(0, self.cpu_milli), max(0, self.memory_mb)
        return self._with(*left, tuple((name, max(0, n)) for name, n in self.slices))

    def plus(self, more: Sizes) -> Shape:
        return self._changed(more, 1)

    def less(self, held: Sizes) -> Shape:
        return self._changed(held, -1)

    def _changed(self, by: Sizes, sign: int) -> Shape:
        usual = self.resource == GPU and not by.slices
        return self._with(
            self.gpus + sign * (by.gpus if usual else by.of(self.resource)),
            self.cpu_milli + sign * by.cpu_milli,
            self.memory_mb + sign * by.memory_mb,
            tuple((name, n + sign * by.of(name)) for name, n in self.slices) if self.slices else (),
        )

    def _with(self, gpus: int, cpu_milli: int, memory_mb: int, slices: tuple[tuple[str, int], ...]) -> Shape:
        """As `replace` would do it, which takes five times as long."""
        of_all = self.gpu_model, self.resource, self.labels, self.taints, self.any_model, slices
        return Shape(gpus, cpu_milli, memory_mb, *of_all)


# Few nodes have taints, and few tasks tolerate any, but many are compared.
_keeps_away = lru_cache(1024)(keeps_away)


# Equal nodes → their names, sorted.
Field = Mapping[Shape, tuple[str, ...]]
# Role and node → number of tasks.
Layout = Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class Placement:
    """`layout` is None where no place was found. `proved`: there is none; otherwise the search ended at its bound."""

    layout: Layout | None
    left: Field
    proved: bool = True


def group(nodes: Iterable[tuple[str, Shape]]) -> Field:
    # Most nodes that are alike share one object, which is found faster than an equal one.
    same: dict[int, tuple[Shape, list[str]]] = {}
    for name, shape in nodes:
        if (known := same.get(id(shape))) is None:
            known = same[id(shape)] = shape, []
        known[1].append(name)
    names: dict[Shape, list[str]] = {}
    for shape, of in same.values():
        names.setdefault(shape, []).extend(of)
    return {shape: tuple(sorted(names[shape])) for shape in names}


def place(tasks: Sequence[Tasks], field: Field) -> Layout | None:
    """Returns nodes for all tasks, or None."""
    return search(tasks, field).layout


def search(tasks: Sequence[Tasks], field: Field, most_steps: int = MOST_STEPS) -> Placement:
    ordered = _ordered(tasks)
    if any(sum(shape.holds(each) * len(names) for shape, names in field.items()) < each.count for each in ordered):
        return Placement(None, field)
    if len(ordered) > 1 and _short(ordered, field):
        return Placement(None, field)
    greedy = fill(ordered, field)
    if greedy.missing is None:
        return Placement(greedy.layout, greedy.left)
    if len(ordered) == 1:  # Equal tasks do not compete, so the greedy answer is exact.
        return Placement(None, field)
    return _Exact(most_steps).search(ordered, field)


def assign(
    tasks: Sequence[Tasks],
    field: Field,
    promised: Collection[str] = (),
    in_turn: Callable[[Iterable[str]], Sequence[str]] = tuple,
) -> Placement:
    """Places all tasks, or none, so that a scheduler may bind the pods of several runs in any order.

    A scheduler knows on which nodes a role may run, and not how many of its tasks belong on each. Roles that ask for the same
    count as one. If they fit on one node, they take exactly what they ask there. Otherwise they stay off nodes of which others
    were `promised` a part that they have not taken yet, and take the room of all tasks that could go there: that is `layout`,
    under the first of these roles. `left` lacks this room, until it is known where the tasks went.

    Roles of one run share nodes if there is no other way; then the order matters among them, and `proved` is False. `in_turn`
    orders the nodes for tasks that spread, which it gets with the emptiest first."""
    groups = grouped(tuple(tasks))
    left, laid, used, single = dict(field), dict[tuple[str, str], int](), set(promised), len(groups) == 1
    for each in groups:
        alone = not each.spread or each.count == 1
        held = {shape: here for shape in left if (here := shape.holds(each))}
        whole = [shape for shape, here in held.items() if here == each.count] if alone else []
        if whole:
            best = max(whole, key=_least_used(each)) if each.spread else min(whole, key=_by_size)
            [name] = _put(left, best, 1, best.without(each, each.count))
            laid[each.role, name] = each.count
            used.add(name)
            continue
        if single and sum(here * len(left[shape]) for shape, here in held.items()) < each.count:
            return Placement(None, field, proved=not promised)
        apart, others = split(left, used)
        found = search([each], apart) if alone else _spread(each, apart, in_turn)
        if found.layout is None and not alone:
            return assign([replace(other, spread=False) for other in tasks], field, promised)
        if found.layout is None:
            return Placement(None, field, proved=not promised) if single else _together(groups, field, promised)
        found = _widened([each], found)
        assert found.layout is not None
        laid |= found.layout
        used |= {name for _, name in found.layout}
        left = joined(found.left, others)
    return Placement(laid, left)


def _spread(tasks: Tasks, field: Field, in_turn: Callable[[Iterable[str]], Sequence[str]]) -> Placement:
    """Places one task on each node after the other."""
    least_used = _least_used(tasks)
    shapes = sorted(field, key=lambda shape: (least_used(shape), shape.size), reverse=True)
    room = {name: here for shape in shapes if (here := shape.holds(tasks)) for name in field[shape]}
    if sum(room.values()) < tasks.count:
        return Placement(None, field)
    laid = Counter[str]()
    nodes = in_turn(room)
    while laid.total() < tasks.count:
        laid.update(nodes[: tasks.count - laid.total()])
        nodes = [name for name in nodes if laid[name] < room[name]]
    left = dict(field)
    for shape in shapes:
        for name in field[shape]:
            if laid[name]:
                _move(left, shape, name, shape.without(tasks, laid[name]))
    return Placement({(tasks.role, name): count for name, count in laid.items()}, left)


def _least_used(tasks: Tasks) -> Callable[[Shape], tuple[int | str, ...]]:
    """Tasks without GPUs go by CPU: the nodes with most GPUs are for others."""
    return lambda shape: (
        shape.gpus if tasks.gpus else 0,
        shape.cpu_milli,
        shape.memory_mb,
        -shape.gpus,
        shape.gpu_model,
    )


def _together(groups: Sequence[Tasks], field: Field, promised: Collection[str]) -> Placement:
    apart, others = split(field, promised)
    found = search(groups, apart)
    if found.layout is None:
        return Placement(None, field, proved=not promised and found.proved)
    wide = _widened(groups, found)
    return Placement(wide.layout, joined(_reserved(groups, wide), others), proved=False)


@lru_cache(4096)
def grouped(tasks: tuple[Tasks, ...]) -> list[Tasks]:
    """Tasks that ask for the same count as one."""
    groups: dict[Tasks, Tasks] = {}
    for each in _ordered(tasks):
        key = replace(each, role="", count=0)
        groups[key] = replace(groups[key], count=groups[key].count + each.count) if key in groups else each
    return list(groups.values())


def _widened(groups: Sequence[Tasks], found: Placement) -> Placement:
    """The placement with the room of as many tasks as could go to each node, for groups on several."""
    assert found.layout is not None
    most, left = dict(found.layout), dict(found.left)
    for each in groups:
        mine = {node for (role, node), count in most.items() if role == each.role and count}
        if len(mine) == 1:
            continue
        for shape, names in list(left.items()):
            for name in () if mine.isdisjoint(names) else names:
                if name in mine and (more := shape.holds(replace(each, count=each.count - most[each.role, name]))):
                    most[each.role, name] += more
                    _move(left, shape, name, shape.without(each, more))
    return Placement(most, left)


def _reserved(groups: Sequence[Tasks], found: Placement) -> Field:
    """What is left where all tasks of a group may go to any of its nodes: while those of another have yet to take their part of a
    node, a scheduler sees more room there."""
    assert found.layout is not None
    left = dict(found.left)
    for each in groups:
        mine = {node: count for (role, node), count in found.layout.items() if role == each.role and count}
        if len(mine) == 1:
            continue
        for shape, names in list(left.items()):
            for name in names:
                if more := each.count - mine.get(name, each.count):
                    rest = shape.without(each, more)
                    _move(left, shape, name, rest.no_less_than_nothing())
    return left


def freed(field: Field, more: Mapping[str, Sizes]) -> Field:
    """The field once `more` is free on its nodes."""
    rest, those = split(field, more)
    found = {shape: list(names) for shape, names in rest.items()}
    for shape, names in those.items():
        for name in names:
            found.setdefault(shape.plus(more[name]), []).append(name)
    return {shape: tuple(sorted(names)) for shape, names in found.items()}


def split(field: Field, names: Collection[str]) -> tuple[Field, Field]:
    """The field without the named nodes, and these."""
    if not names:
        return field, {}
    rest, those, wanted = dict(field), dict[Shape, tuple[str, ...]](), set(names)
    for shape, of in field.items():
        if wanted.isdisjoint(of):
            continue
        those[shape] = tuple(name for name in of if name in wanted)
        if len(those[shape]) == len(of):
            del rest[shape]
        else:
            rest[shape] = tuple(name for name in of if name not in wanted)
    return rest, those


def joined(one: Field, other: Field) -> dict[Shape, tuple[str, ...]]:
    found = dict(one)
    for shape, names in other.items():
        found[shape] = tuple(sorted((*found[shape], *names))) if shape in found else names
    return found


def _move(field: dict[Shape, tuple[str, ...]], shape: Shape, name: str, to: Shape) -> None:
    field[shape] = tuple(other for other in field[shape] if other != name)
    if not field[shape]:
        del field[shape]
    field[to] = tuple(sorted((*field.get(to, ()), name)))


@dataclass(frozen=True)
class Filled:
    """`missing`: the tasks of the first role that did not all find a place, or None."""

    layout: Layout
    left: Field
    missing: Tasks | None = None


def fill(tasks: Sequence[Tasks], field: Field) -> Filled:
    """Places as many tasks as fit, the largest first, each on the fullest nodes that hold it."""
    left, laid, missing = dict(field), Counter[tuple[str, str]](), None
    named = {each.gpu_model for each in tasks if each.gpu_model}
    for each in _ordered(tasks):
        short, wanted = each.count, named if not each.gpu_model else set[str]()
        held = {shape: here for shape in left if (here := shape.holds(each))} if short else {}
        for shape in sorted(held, key=lambda shape: (shape.gpu_model in wanted, *shape.size)):
            here = held[shape]
            if not short:
                break
            for nodes, count in ((min(short // here, len(left[shape])), here), (1, short % here)):
                if nodes and count and shape in left and short >= count:
                    for name in _put(left, shape, nodes, shape.without(each, count)):
                        laid[each.role, name] += count
                    short -= nodes * count
        if short and missing is None:
            missing = replace(each, count=short)
    return Filled(laid, left, missing)


def _ordered(tasks: Iterable[Tasks]) -> list[Tasks]:
    found = [each for each in tasks if each.count]
    return sorted(found, key=lambda each: (-each.gpus, not each.gpu_model, -each.cpu_milli, -each.memory_mb))


def why_never(tasks: Sequence[Tasks], empty: Field) -> Never | None:
    """Returns why even the empty nodes cannot hold the tasks, or None if they can or if it is not proved."""
    for each in tasks:
        if each.count and not any(
            shape.suits(each) and shape.has(each.resource) >= min(each.gpus, 1) for shape in empty
        ):
            return "NoSuchGpu" if each.gpus else "OverNode"
        if each.count and not any(shape.holds(each) for shape in empty):
            return "OverNode"
    found = search(tasks, empty)
    return "OverPool" if found.layout is None and found.proved else None


def _short(tasks: Sequence[Tasks], field: Field) -> bool:
    """Returns whether the sums alone are too large."""
    return any(needed > have for _, needed, have in sums(tasks, field))


def sums(tasks: Sequence[Tasks], field: Field) -> Iterator[tuple[str, int, int]]:
    """What all tasks need and all nodes have of each resource, by name; GPUs as "gpus" where there is no other kind. A node that
    shrank below what it holds counts as full."""
    for resource in sorted({each.resource for each in tasks if each.gpus}):
        needed = sum(each.count * each.gpus for each in tasks if each.resource == resource)
        have = sum(max(0, shape.has(resource)) * len(names) for shape, names in field.items())
        yield "gpus" if resource == GPU else resource, needed, have
    sizes: tuple[tuple[str, Callable[[Tasks | Shape], int]], ...] = (
        ("cpu_milli", lambda of: of.cpu_milli),
        ("memory_mb", lambda of: of.memory_mb),
    )
    for name, size in sizes:
        have = sum(max(0, size(shape)) * len(names) for shape, names in field.items())
        yield name, sum(each.count * size(each) for each in tasks), have
    for name in sorted({name for each in tasks for name, _ in each.extra}):
        have = sum(max(0, shape.has(name)) * len(names) for shape, names in field.items())
        yield name, sum(each.count * each.needs(name) for each in tasks), have


def _put(field: dict[Shape, tuple[str, ...]], shape: Shape, nodes: int, to: Shape) -> tuple[str, ...]:
    """Moves the first `nodes` names of one group to another. Returns them."""
    taken, rest = field[shape][:nodes], field[shape][nodes:]
    del field[shape]
    if rest:
        field[shape] = rest
    field[to] = tuple(sorted((*field.get(to, ()), *taken)))
    return taken


_by_size = attrgetter("size")


class _Exact:
    """Depth-first search, one task at a time, over groups. States that failed are remembered by the sizes of their groups."""

    def __init__(self, most_steps: int):
        self.steps = most_steps
        self.failed: set[tuple[int, frozenset[tuple[Shape, int]]]] = set()

    def search(self, tasks: Sequence[Tasks], field: Field) -> Placement:
        single = [replace(each, count=1) for each in tasks for _ in range(min(each.count, self.steps + 1))]
        laid = Counter[tuple[str, str]]()
        left = dict(field)
        path: list[tuple[dict[Shape, tuple[str, ...]], list[Shape], tuple[str, str] | None]] = []
        path.append((left, self._choices(single[0], left), None))
        while path:
            left, choices, _ = path[-1]
            if not choices:
                self.failed.add(self._state(len(path) - 1, left))
                if (back := path.pop()[2]) is not None:
                    laid[back] -= 1
                continue
            if not self.steps:
                return Placement(None, field, proved=False)
            self.steps -= 1
            task, shape = single[len(path) - 1], choices.pop()
            after = dict(left)
            put = task.role, _put(after, shape, 1, shape.without(task, 1))[0]
            if len(path) == len(single):
                laid[put] += 1
                return Placement(+laid, after)
            if self._state(len(path), after) not in self.failed:
                laid[put] += 1
                path.append((after, self._choices(single[len(path)], after), put))
        return Placement(None, field)

    @staticmethod
    def _choices(task: Tasks, field: Field) -> list[Shape]:
        """Returns groups that hold the task, the best fit last."""
        return sorted((shape for shape in field if shape.holds(task)), key=_by_size, reverse=True)

    @staticmethod
    def _state(depth: int, field: Field) -> tuple[int, frozenset[tuple[Shape, int]]]:
        return depth, frozenset((shape, len(names)) for shape, names in field.items())
