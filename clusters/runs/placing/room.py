"""What is known of a cloud → what `clusters.admission` decides by, and its verdict about a new run. Calls no cloud."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Node, Snapshot, Verdict, advise
from clusters.admission.decision import room as left_by
from clusters.admission.packing import Field, Shape, Tasks
from clusters.admission.windows import NOBODY, Asker, Windows, explained, tolerating
from clusters.admission.words import sentence
from clusters.clouds.drivers.base import Capacity, fit
from clusters.clouds.drivers.base import Node as Seen
from clusters.clouds.registry import adds_nodes, orders_runs
from clusters.runs.models import Cluster
from clusters.runs.placing.known import GPU_ONLY, MOST_WAITING, Known, Taken, Waiting, read, task_of, tasks_of

# Stands for an amount that the cloud does not report. Larger than any sum of what tasks ask.
UNREPORTED = 1 << 60


def judge(
    tasks: Sequence[fit.Tasks], capacity: Capacity, cloud: str, but: Cluster | None = None, asker: Asker = NOBODY
) -> fit.Judgement:
    """Judges a new run of `tasks`, after all that wait. Where a cloud orders runs, by what is free. `asker`: what windows see of
    it."""
    found = fit.judge(tasks, capacity) if orders_runs(cloud) else _judged(tasks, capacity, cloud, but, asker)
    if found.fits == "never" and adds_nodes(cloud):
        more = "That is so with the machines of today: it waits for others, which are added when tasks wait."
        lacking = Code.GPUS if any(each.gpus for each in tasks) else Code.RESOURCES
        return fit.Judgement("waits", lacking, f"{found.message} {more}")
    return found


def _judged(
    tasks: Sequence[fit.Tasks], capacity: Capacity, cloud: str, but: Cluster | None, asker: Asker
) -> fit.Judgement:
    known = read(cloud, capacity, but)
    found, ask = snapshot(known), Ask("", "", tolerating(tasks_of(tasks), known.windows.tolerated(asker)))
    verdict = explained(found, {"": advise(found, ask)}, known.windows, new=(ask, asker))[""]
    return fit.Judgement(verdict.code.fits, verdict.code, said(verdict, capacity))


def said(verdict: Verdict, capacity: Capacity) -> str:
    """The sentence for a verdict."""
    notes = fit.notes(capacity.nodes) if verdict.code is Code.NO_NODES else ""
    closed = fit.closed(capacity) if verdict.code.fits == "waits" and not notes else ""
    return f"{sentence(verdict, notes)}{closed}"


def left(known: Known) -> Field:
    """What all runs leave for a new one."""
    return left_by(snapshot(known))


def rooms(cloud: str, capacity: Capacity) -> Callable[[fit.Tasks], float]:
    """Returns how many tasks like a given one a new run finds room for. At most seven queries, none for each task."""
    if orders_runs(cloud):
        free = fit.free_rooms(capacity)
        return lambda task: sum(each.holds(task) for each in free)
    field = left(read(cloud, capacity))
    return lambda task: sum(
        shape.holds(replace(task_of(task), count=MOST_WAITING)) * len(names) for shape, names in field.items()
    )


def snapshot(known: Known) -> Snapshot:
    """Returns what `decide` needs. Runs are named by their ids."""
    promised: dict[str, Taken] = {}
    for promise in known.promises:
        for node in promise.open:
            if count := promise.on(node):
                promised[node] = promised.get(node, Taken()) + _of(promise.tasks, count)
    alike: dict[Hashable, Node] = {}
    nodes = known.windows.close(
        _node(each, known.taken.get(each.name, Taken()), promised.get(each.name), alike)
        for each in known.capacity.nodes
    )
    # Many runs ask for the same.
    keys = [_key(each, known.windows) for each in known.waiting]
    wanted = dict(zip(keys, known.waiting, strict=True))
    asked = {key: _asked(each, nodes, key[0]) for key, each in wanted.items()}
    asks = tuple(
        Ask(str(each.run), "", asked[key], admitted=each.started) for key, each in zip(keys, known.waiting, strict=True)
    )
    avoiding = [each for each in known.waiting if each.avoided]
    return _avoided(avoiding, nodes, asks) if avoiding else Snapshot(nodes, asks)


def _avoided(avoiding: Sequence[Waiting], nodes: Sequence[Node], asks: Sequence[Ask]) -> Snapshot:
    """Keeps runs off the nodes that they avoid, by labels. A node that is avoided still counts for what can ever fit."""
    every = frozenset(("open to", str(each.run)) for each in avoiding)
    found = []
    for node in nodes:
        labels = every - {("open to", str(each.run)) for each in avoiding if node.name in each.avoided}
        drained = replace(node.drained, labels=labels) if node.drained else None
        free, whole = replace(node.free, labels=labels), replace(node.whole, labels=every)
        found.append(replace(node, whole=whole, free=free, drained=drained))
    return Snapshot(
        tuple(found),
        tuple(
            replace(ask, tasks=tuple(replace(each, labels=frozenset({mine})) for each in ask.tasks))
            if mine in every
            else ask
            for ask in asks
            for mine in [("open to", ask.run)]
        ),
    )


def _key(waiting: Waiting, windows: Windows) -> tuple[frozenset[str], tuple[fit.Tasks, ...], bool, bool]:
    """Equal for runs that ask for the same. Where its cloud places a run by itself, it does so on any node."""
    tolerated = windows.every if waiting.started else windows.tolerated_by(waiting.run)
    return tolerated, tuple(waiting.tasks), waiting.is_independent, waiting.is_replica


def _asked(waiting: Waiting, nodes: Sequence[Node], tolerated: frozenset[str]) -> tuple[Tasks, ...]:
    """Independent tasks take turns where the cloud never has room for all at once."""
    found = tolerating(tasks_of(waiting.tasks), tolerated)
    if waiting.is_replica:
        return tuple(replace(each, spread=True) for each in found)
    if not waiting.is_independent:
        return found
    most = {each: sum((node.drained or node.whole).holds(each) for node in nodes) for each in found}
    return tuple(replace(each, count=max(1, min(each.count, most[each]))) for each in found)


def _of(tasks: Tasks, count: int) -> Taken:
    return Taken(count * tasks.gpus, count * tasks.cpu_milli, count * tasks.memory_mb)


def _node(seen: Seen, held: Taken, promised: Taken | None, alike: dict[Hashable, Node]) -> Node:
    """`alike` remembers nodes by all that is asked here, since most of many are equal but for their names."""
    key = (
        seen.gpus, seen.gpu_model, seen.cpu_milli, seen.memory_mb, seen.cpu_milli_free, seen.memory_mb_free, seen.gpus_others,
        seen.cpu_milli_others, seen.memory_mb_others, seen.gpu_tasks_only, seen.simulated, seen.takes_tasks, held, promised,
    )  # fmt: skip
    if key not in alike:
        alike[key] = _new_node(seen, held, promised)
    one = alike[key]
    return Node(seen.name, one.whole, one.free, one.ready, one.drained, one.promised)


def _new_node(seen: Seen, held: Taken, promised: Taken | None) -> Node:
    """CPU and memory of tasks are estimates, so what the cloud has seen as free caps them."""
    away = promised or Taken()
    cpu, memory = seen.cpu_milli or UNREPORTED, seen.memory_mb or UNREPORTED
    taints = GPU_ONLY if seen.gpu_tasks_only else frozenset[str]()
    whole = Shape(seen.gpus, cpu, memory, seen.gpu_model, taints=taints, any_model=seen.simulated)
    drained = replace(
        whole,
        gpus=max(0, seen.gpus - seen.gpus_others),
        cpu_milli=max(0, cpu - seen.cpu_milli_others),
        memory_mb=max(0, memory - seen.memory_mb_others),
    )
    # What is not reported as there is not free 0 either.
    cpu_free = seen.cpu_milli_free if seen.cpu_milli else None
    memory_free = seen.memory_mb_free if seen.memory_mb else None
    free = replace(
        drained,
        gpus=max(0, drained.gpus - held.gpus - away.gpus),
        cpu_milli=_free(drained.cpu_milli - held.cpu_milli, cpu_free, away.cpu_milli),
        memory_mb=_free(drained.memory_mb - held.memory_mb, memory_free, away.memory_mb),
    )
    return Node(seen.name, whole, free, ready=seen.takes_tasks, drained=drained, promised=promised is not None)


def _free(calculated: int, seen: int | None, promised: int) -> int:
    return max(0, (calculated if seen is None else min(calculated, seen)) - promised)
