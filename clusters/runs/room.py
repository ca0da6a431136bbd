"""Rows and observations → what `clusters.admission` decides by: the nodes of a cloud, what runs hold or are promised there, and
the runs that wait for places, in order. Calls no cloud.

What a run holds on a node is known from its task rows, what other software holds from the cloud's capacity. A placed run is
promised the room of its tasks without a node, wherever in its layout they may go. So nothing counts twice, and nothing is missed
between the decision and the news that a pod was bound.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from django.db.models import Count, Exists, F, Func, IntegerField, JSONField, OuterRef, Q, QuerySet, Sum, TextField
from django.db.models.fields.json import KT, KeyTextTransform
from django.db.models.functions import Cast, Coalesce
from django.utils import timezone

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Node, Snapshot, Verdict, advise
from clusters.admission.decision import room as left_by
from clusters.admission.packing import Field, Shape, Tasks
from clusters.admission.words import sentence
from clusters.clouds.drivers.base import Capacity, fit
from clusters.clouds.drivers.base import Node as Seen
from clusters.clouds.drivers.base import Waiting as Queued
from clusters.clouds.models import CloudState
from clusters.clouds.registry import adds_nodes, orders_runs
from clusters.frameworks import FRAMEWORKS
from clusters.runs.models import SERVICES, Cluster, Run, Task
from clusters.runs.status.phase import WAITING

# More waiting runs than this are not looked at: where so many lack nodes, the first leave no room.
MOST_WAITING = 1000
# How long a run avoids nodes on which its tasks did not start, after its pause.
AVOIDED = dt.timedelta(minutes=10)
# Stands for an amount that the cloud does not report. Larger than any sum of what tasks ask.
UNREPORTED = 1 << 60
_OTHERS = ("gpus_others", "cpu_milli_others", "memory_mb_others")
# Keeps tasks without GPUs away from nodes that refuse them.
_GPU_ONLY = frozenset({"gpu-tasks-only"})
# Tasks without a machine, or that the cloud cannot create; also of a run in which some roles have started.
UNPLACED = Task.objects.filter(run=OuterRef("pk"), phase="Pending", node="", reason__in=WAITING)


@dataclass(frozen=True)
class Taken:
    """Resources of one node."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_mb: int = 0

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.gpus + other.gpus, self.cpu_milli + other.cpu_milli, self.memory_mb + other.memory_mb)


@dataclass(frozen=True)
class Promise:
    """Equal tasks of a placed run. `held` of them have a node and `lacks` have none; `open` has the places of these on each of
    its nodes."""

    run: int
    tasks: Tasks
    held: int
    lacks: int
    open: Mapping[str, int]

    def on(self, node: str) -> int:
        """The most tasks that a scheduler may still bind there. It does not know how many places there are on each of several
        nodes, so all of them may go where other runs have ended since."""
        if node not in self.open:
            return 0
        return self.lacks if len(self.open) > 1 else min(self.lacks, self.open[node])


@dataclass(frozen=True)
class Waiting:
    """A run without places. `started`: its cloud has it already, and places its tasks by itself. `is_independent`: its tasks do
    not need each other. `avoided`: nodes where it does not go. `is_replica`: of a service, which lives on if others do."""

    run: int
    tasks: Sequence[fit.Tasks]
    started: bool = False
    is_independent: bool = False
    avoided: frozenset[str] = frozenset()
    is_replica: bool = False


@dataclass(frozen=True)
class Known:
    """What is known of one cloud. `taken`: by node, by tasks of runs. `waiting` is in order."""

    capacity: Capacity
    taken: Mapping[str, Taken] = field(default_factory=dict)
    promises: Sequence[Promise] = ()
    waiting: Sequence[Waiting] = ()


def capacity_of(cloud: str) -> Capacity:
    """Capacity of a cloud when the controller last saw it; empty before that."""
    return capacity_from(CloudState.objects.filter(name=cloud).values_list("capacity", flat=True).first() or {})


def capacity_json(capacity: Capacity) -> dict[str, Any]:
    """For `CloudState.capacity`. What other software holds stands beside the nodes: programs of release 1.0 read these, too, and
    know no other facts of a node."""
    found = asdict(capacity)
    found["others"] = {node["name"]: [node.pop(name) for name in _OTHERS] for node in found["nodes"]}
    return found


def capacity_from(seen: Mapping[str, Any]) -> Capacity:
    """The reverse of `capacity_json`."""
    others = seen.get("others", {})
    return Capacity(
        nodes=tuple(
            Seen(**node, **dict(zip(_OTHERS, others.get(node["name"], ()), strict=False)))
            for node in seen.get("nodes", [])
        ),
        queue=tuple(Queued(**each) for each in seen.get("queue", [])),
        in_order=seen.get("in_order", False),
    )


def read(cloud: str, capacity: Capacity, but: Cluster | None = None, *, new: bool = True) -> Known:
    """Reads what runs hold and wait for; the run of `but` that lives now will be over. `new`: also runs that are about to be
    admitted. `capacity` must have been read before. Five queries."""
    return Known(capacity, taken(cloud), promises(cloud, but), waiting(cloud, but, new=new))


def read_several(capacities: Mapping[str, Capacity]) -> dict[str, Known]:
    """What `read` returns with admitted runs only, for several clouds, with as many queries as for one."""
    if not capacities:
        return {}
    held = taken_on(Q(run__cloud__in=capacities))
    placed = list(_placed(Q(cloud__in=capacities)))
    first, *others = (_unplaced(alive(name), new=False) for name in capacities)
    unplaced = sorted(first.union(*others, all=True) if others else first)
    cloud_of = {run.pk: run.cloud for run in placed} | {pk: cloud for pk, cloud, *_ in unplaced}
    lacks, waits = promised(placed), _waiting(unplaced)
    return {
        name: Known(
            capacity,
            held.get(name, {}),
            [each for each in lacks if cloud_of[each.run] == name],
            [each for each in waits if cloud_of[each.run] == name],
        )
        for name, capacity in capacities.items()
    }


def judge(tasks: Sequence[fit.Tasks], capacity: Capacity, cloud: str, but: Cluster | None = None) -> fit.Judgement:
    """Judges a new run of `tasks`, after all that wait. Where a cloud orders runs, by what is free."""
    found = fit.judge(tasks, capacity) if orders_runs(cloud) else _judged(tasks, capacity, cloud, but)
    if found.fits == "never" and adds_nodes(cloud):
        more = "That is so with the machines of today: it waits for others, which are added when tasks wait."
        lacking = Code.GPUS if any(each.gpus for each in tasks) else Code.RESOURCES
        return fit.Judgement("waits", lacking, f"{found.message} {more}")
    return found


def _judged(tasks: Sequence[fit.Tasks], capacity: Capacity, cloud: str, but: Cluster | None) -> fit.Judgement:
    found = snapshot(read(cloud, capacity, but))
    verdict = advise(found, Ask("", "", tasks_of(tasks)))
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
        shape.holds(replace(_task(task), count=MOST_WAITING)) * len(names) for shape, names in field.items()
    )


def snapshot(known: Known) -> Snapshot:
    """Returns what `decide` needs. Runs are named by their ids."""
    promised: dict[str, Taken] = {}
    for promise in known.promises:
        for node in promise.open:
            if count := promise.on(node):
                promised[node] = promised.get(node, Taken()) + _of(promise.tasks, count)
    alike: dict[Hashable, Node] = {}
    nodes = tuple(
        _node(each, known.taken.get(each.name, Taken()), promised.get(each.name), alike)
        for each in known.capacity.nodes
    )
    # Many runs ask for the same.
    wanted = {(tuple(each.tasks), each.is_independent, each.is_replica): each for each in known.waiting}
    asked = {key: _asked(each, nodes) for key, each in wanted.items()}
    asks = tuple(
        Ask(str(each.run), "", asked[tuple(each.tasks), each.is_independent, each.is_replica], admitted=each.started)
        for each in known.waiting
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


def _asked(waiting: Waiting, nodes: Sequence[Node]) -> tuple[Tasks, ...]:
    """Independent tasks take turns where the cloud never has room for all at once."""
    found = tasks_of(waiting.tasks)
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
    taints = _GPU_ONLY if seen.gpu_tasks_only else frozenset[str]()
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


def tasks_of(several: Iterable[fit.Tasks]) -> tuple[Tasks, ...]:
    return tuple(_task(each) for each in several if each.count)


def _task(each: fit.Tasks) -> Tasks:
    return Tasks(
        each.role, each.count, each.gpus, each.gpu_model, each.cpu_milli, each.memory_mb,
        tolerated=_GPU_ONLY if each.gpus else frozenset(),
    )  # fmt: skip


# Runs that are to run on their cloud, and whose places are not to be cleared first.
ALIVE = Q(gone=False, desired=Run.Desired.RUNNING, verdict="", refusal="", given_back_at=None)


def alive(cloud: str) -> Q:
    return Q(cloud=cloud) & ALIVE


def due() -> Q:
    """Runs that are not put off."""
    return Q(not_before=None) | Q(not_before__lte=timezone.now())


def waiting(cloud: str, but: Cluster | None = None, *, new: bool = True) -> list[Waiting]:
    """Returns the admitted runs without places, oldest first, with their tasks that have no node. Two queries."""
    return _waiting(list(_unplaced(alive(cloud) & _but(but), new=new)))


# One run that waits: its columns in `_unplaced`.
Row = tuple[int, str, dt.datetime | None, list[str], dt.datetime | None, str, str, str, str, str]


def _unplaced(which: Q, *, new: bool) -> QuerySet[Run, Row]:
    # No room is kept for a run that cannot start for another reason.
    able = Q(applied_at__isnull=False) | Q(wait_reason__in=["", *WAITING.values()])
    admitted = (Q(admitted_at__isnull=False) & able) | (Q(wait_reason="", source=None) if new else Q())
    unplaced = Q(phase__in=[Run.Phase.QUEUED, Run.Phase.STARTING]) | Q(Exists(UNPLACED))
    runs = Run.objects.filter(which, due(), admitted, unplaced, placed_at=None, blocked_message="")
    return runs.order_by("pk").values_list(
        "pk", "cloud", "applied_at", "avoided", "not_before", "cluster__part_of", KT("spec__framework"),
        Cast("resources", TextField()), Cast("roles", TextField()), KT("spec__roles"),
    )[:MOST_WAITING]  # fmt: skip


def _waiting(rows: Sequence[Row]) -> list[Waiting]:
    seen = _seen([pk for pk, *_ in rows])
    # As text, since many runs ask for the same, and reading JSON takes longer than the rest.
    asked: dict[tuple[str, ...], _Asked] = {}
    unseen: dict[tuple[str, ...], tuple[fit.Tasks, ...]] = {}
    found, at = [], timezone.now()
    for pk, _, applied_at, avoided, not_before, part_of, framework, *texts in rows:
        key = tuple(texts)
        if key not in asked:
            asked[key] = _Asked(*map(json.loads, texts))
            unseen[key] = tuple(asked[key].lacking({}))
        tasks = tuple(asked[key].lacking(seen[pk])) if pk in seen else unseen[key]
        if any(each.count for each in tasks):
            away = frozenset[str](avoided) if not_before and at < not_before + AVOIDED else frozenset[str]()
            independent, replica = FRAMEWORKS[framework].is_independent, part_of.startswith(SERVICES)
            found.append(Waiting(pk, tasks, applied_at is not None, independent, away, replica))
    return found


def _but(cluster: Cluster | None) -> Q:
    return ~Q(cluster=cluster) if cluster is not None and cluster.pk else Q()


def promises(cloud: str, but: Cluster | None = None) -> list[Promise]:
    """Returns what placed runs lack, oldest first. Two queries."""
    return promised(list(_placed(Q(cloud=cloud) & _but(but))))


def _placed(which: Q) -> QuerySet[Run]:
    pending = Task.objects.filter(Q(phase="Pending", node="") | Q(phase="Failed"), run=OuterRef("pk"))
    partly = Q(whole_at=None) | Q(lacks_since__isnull=False) | Q(Exists(pending))
    runs = Run.objects.filter(which, ALIVE, partly, placed_at__isnull=False)
    return runs.order_by("pk").only("cloud", "spec", "resources", "roles", "layout")


def promised(runs: Sequence[Run]) -> list[Promise]:
    """Returns what these placed runs lack. One query."""
    has = Q(phase__in=["Pending", "Running"]) & ~Q(node="")
    tasks = Task.objects.filter(has | Q(phase="Succeeded"), run__in=[run.pk for run in runs])
    rows = tasks.values_list("run_id", "role", "node").order_by().annotate(
        held=Count("pk", filter=has), done=Count("pk", filter=Q(phase="Succeeded"))
    )  # fmt: skip
    bound, done = dict[int, Counter[tuple[str, str]]](), dict[int, Counter[str]]()
    for run_id, role, node, held, ended in rows:
        bound.setdefault(run_id, Counter())[role, node] += held
        done.setdefault(run_id, Counter())[role] += ended
    return [
        promise for run in runs for promise in _promises(run, bound.get(run.pk, Counter()), done.get(run.pk, Counter()))
    ]


def _promises(run: Run, bound: Counter[tuple[str, str]], done: Counter[str]) -> Iterable[Promise]:
    """Roles that ask for the same share their nodes, see `packing.assign`."""
    groups: dict[Tasks, list[tuple[str, int]]] = {}
    for role in run.resources:
        held = sum(count for (of, _), count in bound.items() if of == role)
        wanted = _lacking(run, role, held, done[role])
        groups.setdefault(replace(_task(wanted), role="", count=0), []).append((role, wanted.count))
    for tasks, roles in groups.items():
        if lacks := sum(count for _, count in roles):
            most, here = Counter[str](), Counter[str]()
            for role, _ in roles:
                most.update(run.layout.get(role, {}))
                here.update({node: count for (of, node), count in bound.items() if of == role})
            left = {node: max(0, count - here[node]) for node, count in most.items()}
            yield Promise(run.pk, replace(tasks, count=lacks), here.total(), lacks, left)


def alike(run: Run) -> Mapping[str, Tasks]:
    """By role what one task asks for; equal where tasks of several roles ask for the same."""
    return {role: replace(_task(_lacking(run, role, 0, 0)), role="", count=0) for role in run.resources}


def lacking(runs: Sequence[Run]) -> Mapping[int, list[fit.Tasks]]:
    """Returns by run the tasks that should have a node now and have none. One query."""
    seen = _seen([run.pk for run in runs])
    return {run.pk: _asked_by(run).lacking(seen.get(run.pk, {})) for run in runs}


def _seen(runs: Sequence[int]) -> dict[int, dict[str, tuple[int, int]]]:
    """By run and role, the number of tasks that have a node, and of those that have ended well. One query."""
    has = Q(phase__in=["Pending", "Running"]) & ~Q(node="")
    rows = Task.objects.filter(run__in=runs).values_list("run_id", "role")
    sums = rows.annotate(held=Count("pk", filter=has), done=Count("pk", filter=Q(phase="Succeeded")))
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for run_id, role, held, done in sums.order_by():
        found.setdefault(run_id, {})[role] = (held, done)
    return found


def _lacking(run: Run, role: str, held: int, done: int) -> fit.Tasks:
    return _asked_by(run).of(role, held, done)


def _asked_by(run: Run) -> _Asked:
    return _Asked(run.resources, run.roles, run.spec["roles"])


@dataclass(frozen=True)
class _Asked:
    """What a run asks for, by role: `Run.resources`, `Run.roles` and the roles of its spec."""

    resources: Mapping[str, Any]
    roles: Mapping[str, Any]
    spec: Mapping[str, Any]

    def lacking(self, seen: Mapping[str, tuple[int, int]]) -> list[fit.Tasks]:
        """Tasks that should have a node now and have none. `seen`: as of `_seen`."""
        return [self.of(role, *seen.get(role, (0, 0))) for role in self.resources]

    def of(self, role: str, held: int, done: int) -> fit.Tasks:
        left = self.roles.get(role, {}).get("count", 0) - done
        at_once = self.spec.get(role, {}).get("atOnce") or left
        asked = self.resources[role]
        return fit.Tasks(
            role,
            max(0, min(at_once, left) - held),
            asked["gpus"],
            asked["gpu_model"],
            asked["cpu_milli"] + asked.get("beside_cpu_milli", 0),
            asked["memory_mb"] + asked.get("beside_memory_mb", 0),
        )


def taken(cloud: str) -> dict[str, Taken]:
    """Returns what tasks of the portal hold, by node. One query."""
    return taken_on(Q(run__cloud=cloud)).get(cloud, {})


def taken_on(which: Q) -> dict[str, dict[str, Taken]]:
    """Returns what these tasks hold, by cloud and node. One query."""
    tasks = Task.objects.filter(which, run__gone=False, phase__in=["Pending", "Running"]).exclude(node="")
    asked = Func(F("run__resources"), F("role"), function="jsonb_extract_path", output_field=JSONField())

    def amount(name: str) -> Cast:
        return Cast(KeyTextTransform(name, "asked"), IntegerField())

    sums = tasks.annotate(asked=asked).values("run__cloud", "node").annotate(
        held_gpus=Sum(amount("gpus")),
        held_cpu=Sum(amount("cpu_milli") + Coalesce(amount("beside_cpu_milli"), 0)),
        held_memory=Sum(amount("memory_mb") + Coalesce(amount("beside_memory_mb"), 0)),
    )  # fmt: skip
    found: dict[str, dict[str, Taken]] = {}
    rows = sums.order_by().values_list("run__cloud", "node", "held_gpus", "held_cpu", "held_memory")
    for cloud, node, gpus, cpu, memory in rows:
        found.setdefault(cloud, {})[node] = Taken(gpus or 0, cpu or 0, memory or 0)
    return found
