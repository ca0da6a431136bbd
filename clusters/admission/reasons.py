"""Why a run does not start: what it lacks, or which node it could never have, as values for sentences (`words.py`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from clusters.admission.codes import Code, Values
from clusters.admission.demand import GPU, PARTS, keeps_away
from clusters.admission.packing import Field, Shape, Tasks, fill, sums


def lacks(tasks: Sequence[Tasks], every: Field) -> Values:
    """Describes the role whose tasks find no place: `fitting` of `count` do, each needs `size` GPUs (…), and the largest block
    that the others leave is `block` GPUs. `resource`: the first of which no node with these GPUs has enough for a task, or ""."""
    filled = fill(tasks, every)
    missing = filled.missing
    if missing is None:  # Found by the exact search alone.
        return {}
    count = sum(each.count for each in tasks if replace(each, count=missing.count) == missing)
    suiting = [shape for shape in filled.left if shape.suits(missing)]
    able = [shape for shape in suiting if shape.has(missing.resource) >= missing.gpus]
    found = {**_describe(missing, able), **({} if able else {"resource": ""})}
    return found | {
        "count": count, "fitting": count - missing.count, "block": max([0, *(shape.has(missing.resource) for shape in suiting)]),
        "roles": sum(1 for each in tasks if each.count),
    }  # fmt: skip


def describe_never(code: Code, tasks: Sequence[Tasks], empty: Field) -> Values:
    if code is Code.OVER_POOL:
        for name, needed, have in sums(tasks, empty):
            if needed > have:
                return {"resource": name, "needed": needed, "most": have}
        return {"resource": "", **lacks(tasks, empty)}
    for each in tasks:
        suiting = [shape for shape in empty if shape.suits(each)]
        if each.count and not any(shape.holds(each) for shape in suiting):
            return {**_describe(each, suiting), **_outside(each, empty)}
    return {}


def _outside(tasks: Tasks, empty: Field) -> Values:
    """What keeps the tasks out of every node that could have them, apart from its size: a label that none has ("no_label"), or a
    taint that they do not tolerate ("taint")."""
    for label in sorted(tasks.labels):
        if not any(label in shape.labels for shape in empty):
            return {"no_label": _label(label)}
    able = [shape for shape in empty if tasks.labels <= shape.labels]
    if not able:
        return {"no_label": _labels(tasks)}
    open_to = replace(tasks, tolerated=tasks.tolerated | {taint for shape in able for taint in shape.taints})
    barred = [shape for shape in able if shape.holds(replace(open_to, count=1)) and not shape.admits(tasks)]
    taints = {taint for shape in barred for taint in shape.taints if "=" in taint}
    taint = keeps_away(taints, tasks.tolerated)
    return {"taint": taint} if taint else {}


def _describe(tasks: Tasks, suiting: Iterable[Shape]) -> Values:
    shapes = list(suiting)
    found: dict[str, int | str] = {
        "role": tasks.role, "size": tasks.gpus, "cpu_milli": tasks.cpu_milli, "memory_mb": tasks.memory_mb,
        "nodes": len(shapes), "resource": "", **kind(tasks),
    }  # fmt: skip
    gpus = (
        ("gpus" if tasks.resource == GPU else tasks.resource),
        tasks.gpus,
        [each.has(tasks.resource) for each in shapes],
    )
    for name, needed, have in (
        gpus,
        ("cpu_milli", tasks.cpu_milli, [each.cpu_milli for each in shapes]),
        ("memory_mb", tasks.memory_mb, [each.memory_mb for each in shapes]),
        *((name, needed, [each.has(name) for each in shapes]) for name, needed in tasks.extra),
    ):
        if needed > (most := max([0, *have])):
            return found | {"resource": name, "needed": needed, "most": most}
    return found


@lru_cache(4096)
def by_kind(tasks: tuple[Tasks, ...]) -> list[tuple[Tasks, ...]]:
    """The tasks with GPUs, first by what suits them, then, where they may go to the same nodes, together."""
    found: dict[object, list[Tasks]] = {}
    for key in (one_gpu, lambda each: (each.resource, each.gpu_model)):
        for each in tasks:
            if each.gpus:
                found.setdefault(key(each), []).append(each)
    return list(dict.fromkeys(map(tuple, found.values())))


@lru_cache(4096)
def gpus_asked(tasks: tuple[Tasks, ...]) -> int:
    return sum(each.count * each.whole_gpus for each in tasks)


@lru_cache(4096)
def asked(tasks: tuple[Tasks, ...]) -> Values:
    """What each verdict tells of its run."""
    return {"gpus": gpus_asked(tasks), **slices(tasks)}


@lru_cache(4096)
def slices(tasks: tuple[Tasks, ...]) -> Values:
    """How many GPUs that are not whole the tasks ask for; `unit` where they are of one kind."""
    sliced = [each for each in tasks if each.gpus and each.count and not each.whole_gpus]
    kinds = {each.resource for each in sliced}
    return {
        "slices": sum(each.count * each.gpus for each in sliced), "unit": kinds.pop() if len(kinds) == 1 else "",
    } if sliced else {}  # fmt: skip


def kind(*tasks: Tasks) -> Values:
    """What the GPUs of equal tasks are, for sentences. `unit`: of what is not whole or not NVIDIA's. `labels`: of their nodes."""
    unit = "" if tasks[0].resource == GPU else tasks[0].resource
    labels = {_labels(each) for each in tasks}
    named = labels.pop() if len(labels) == 1 else ""
    model = tasks[0].gpu_model if not unit or unit == PARTS else ""
    return {
        "model": model, **({"unit": unit} if unit else {}), **({"labels": named} if named else {}),
    }  # fmt: skip


def _labels(tasks: Tasks) -> str:
    """Those that nodes can have: others keep a run off some nodes."""
    return ", ".join(_label(each) for each in sorted(tasks.labels) if " " not in each[0])


def _label(label: tuple[str, str]) -> str:
    return "=".join(label)


def one_gpu(tasks: Tasks) -> Tasks:
    """Equal for all tasks that the same nodes suit."""
    return Tasks("", 1, 1, tasks.gpu_model, 0, 0, tasks.resource, tasks.labels, tasks.tolerated)


def gpus_of(nodes: Field, kinds: Iterable[Tasks]) -> int:
    """GPUs of the nodes that suit any of these, or slices where they are such."""
    wanted = list(kinds)
    if all(kind.resource == GPU for kind in wanted):
        return sum(
            max(0, shape.has(GPU)) * len(names) for shape, names in nodes.items() if any(map(shape.suits, wanted))
        )
    found = 0
    for shape, names in nodes.items():
        resources = {kind.resource for kind in wanted if shape.suits(kind)}
        found += len(names) * sum(max(0, shape.has(resource)) for resource in resources)
    return found
