"""Rows and observations → what is known of a cloud: its nodes, what runs hold or are promised there, and the runs that wait for
places, in order. Calls no cloud.

What a run holds on a node is known from its task rows, what other software holds from the cloud's capacity. A placed run is
promised the room of its tasks without a node, wherever in its layout they may go. So nothing counts twice, and nothing is missed
between the decision and the news that a pod was bound.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from django.db import connection
from django.db.models import (
    Aggregate,
    Case,
    Count,
    DateTimeField,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    Func,
    IntegerField,
    JSONField,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Sum,
    TextField,
    Value,
    When,
    Window,
)  # fmt: skip
from django.db.models.fields.json import KT, KeyTextTransform
from django.db.models.functions import Cast, Coalesce, Greatest, RowNumber
from django.utils import timezone

from clusters.admission.demand import GPU, demand_of
from clusters.admission.order import PriorityClass
from clusters.admission.packing import Sizes, Tasks, asking
from clusters.admission.taking import GRACE_SECONDS
from clusters.admission.windows import Windows
from clusters.clouds.drivers.base import Capacity, Slices
from clusters.clouds.drivers.base import Node as Seen
from clusters.clouds.models import CloudState
from clusters.frameworks import FRAMEWORKS
from clusters.runs.models import SERVICES, Cluster, Run, Task
from clusters.runs.placing import windows
from clusters.runs.status.phase import WAITING

NOTHING = Sizes()
# More waiting runs than this are not looked at: where so many lack nodes, the first leave no room.
MOST_WAITING = 1000
# How long the end of a run takes at most, after its time limit: until its program has ended and its output is stored.
TO_END = dt.timedelta(minutes=3)
# How long a run avoids nodes on which its tasks did not start, after its pause.
AVOIDED = dt.timedelta(minutes=10)
_OTHERS = ("gpus_others", "cpu_milli_others", "memory_mb_others")
_POOLS = ("resource", "labels", "taints", "slices", "domains")
_DOMAINS = """SELECT pool.key, pool.value->'domains' FROM clusters_cloudstate, jsonb_each(capacity->'pools') AS pool
WHERE name = %s AND pool.key = ANY(%s) AND pool.value ? 'domains'"""
# Tasks without a machine, or that the cloud cannot create; also of a run in which some roles have started.
UNPLACED = Task.objects.filter(run=OuterRef("pk"), phase="Pending", node="", reason__in=WAITING)


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
class Terms:
    """What an appcode may hold. `line`: the namespace of its business line."""

    line: str = ""
    quota: int = 0
    borrow: int = 0
    weight: int = 1


@dataclass(frozen=True)
class Waiting:
    """A run without places. `started`: its cloud has it already, and places its tasks by itself. `is_independent`: its tasks do
    not need each other. `avoided`: nodes where it does not go. `is_replica`: of a service, which lives on if others do.
    `appcode`: by id. `seconds`: its time limit, and what it may take to end beyond the usual time. `spread`: its tasks go to as
    many nodes as possible. `person`: who started it, by id."""

    run: int
    tasks: Sequence[Tasks]
    started: bool = False
    is_independent: bool = False
    avoided: frozenset[str] = frozenset()
    is_replica: bool = False
    appcode: str = ""
    terms: Terms = Terms()
    priority_class: PriorityClass = "normal"
    seconds: int | None = None
    spread: bool = False
    person: str = ""


@dataclass(frozen=True)
class Ending:
    """`sizes`: what runs hold on a node that are being ended; `gone`: when the last of these has ended at the latest, in seconds
    since 1970, 0 if unknown. `ends`: when the last of the others ends by its time limit; None if one has none."""

    sizes: Sizes = NOTHING
    ends: int | None = 0
    gone: int = 0


UNUSED, ENDLESS = Ending(), Ending(ends=None)
# By node.
Held = dict[str, Sizes]
Endings = dict[str, Ending]


@dataclass(frozen=True)
class Known:
    """What is known of one cloud. `taken`: by node, by tasks of runs. `waiting`: oldest first."""

    capacity: Capacity
    taken: Mapping[str, Sizes] = field(default_factory=dict)
    promises: Sequence[Promise] = ()
    waiting: Sequence[Waiting] = ()
    ending: Mapping[str, Ending] = field(default_factory=dict)
    windows: Windows = windows.NO_WINDOWS


def capacity_of(cloud: str) -> Capacity:
    """Capacity of a cloud when the controller last saw it; empty before that."""
    stored = CloudState.objects.filter(name=cloud).values_list(Cast("capacity", TextField()), flat=True).first()
    return _parsed(stored or "{}")


# Most previews and passes see the same nodes as the one before.
@lru_cache(4)
def _parsed(stored: str) -> Capacity:
    return capacity_from(json.loads(stored))


def domains_of(cloud: str, nodes: Collection[str]) -> dict[str, str]:
    """Of each of these nodes the narrowest domain that it is in, such as "rack r7". One query, and none without nodes."""
    if not nodes:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_DOMAINS, [cloud, list(nodes)])
        found = {node: [*filter(lambda each: each[1], json.loads(domains))] for node, domains in cursor.fetchall()}
    return {node: " ".join(domains[-1]) for node, domains in found.items() if domains}


def capacity_json(capacity: Capacity) -> dict[str, Any]:
    """For `CloudState.capacity`. What other software holds and what pools have stand beside the nodes: programs of release 1.0
    read these, too, and know no other facts of a node. To them, a node with taints takes no tasks, and there are no GPUs but
    NVIDIA's."""
    found = asdict(capacity)
    found["others"] = {node["name"]: [node.pop(name) for name in _OTHERS] for node in found["nodes"]}
    pools = {}
    for seen, node in zip(capacity.nodes, found["nodes"], strict=True):
        facts = {name: node.pop(name) for name in _POOLS}
        facts = {name: value for name, value in facts.items() if value and (name, value) != ("resource", GPU)}
        hidden: dict[str, Any] = {}
        if seen.resource != GPU:
            hidden = {"gpus": 0, "gpus_free": 0, "gpu_model": ""}
        if seen.taints and seen.takes_tasks:
            hidden |= {
                "gpus_free": 0,
                "takes_tasks": False,
                "note": f"It takes only tasks that tolerate {seen.taints[0]}.",
            }
        facts |= {name: node[name] for name in hidden}
        node |= hidden
        if facts:
            pools[seen.name] = facts
    return found | ({"pools": pools} if pools else {})


def capacity_from(seen: Mapping[str, Any]) -> Capacity:
    """The reverse of `capacity_json`."""
    others, pools = seen.get("others", {}), seen.get("pools", {})
    return Capacity(
        tuple(
            Seen(
                **(node | _pool_from(pools[node["name"]]) if node["name"] in pools else node),
                **dict(zip(_OTHERS, others.get(node["name"], ()), strict=False)),
            )
            for node in seen.get("nodes", [])
        )
    )


def _pool_from(facts: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(facts)
    for name in ("labels", "domains"):
        found[name] = tuple((key, value) for key, value in facts.get(name, ()))
    found["taints"] = tuple(facts.get("taints", ()))
    found["slices"] = tuple(Slices(**each) for each in facts.get("slices", ()))
    return found


def read(cloud: str, capacity: Capacity, but: Cluster | None = None, *, new: bool = True) -> Known:
    """Reads what runs hold and wait for; the run of `but` that lives now will be over. `new`: also runs that are about to be
    admitted. `capacity` must have been read before. Runs that wait are read first: one that gets its places meanwhile counts
    twice, and not never. Six queries at most."""
    waits = waiting(cloud, but, new=new)
    lacks, on_nodes = _held_and_promised(Q(run__cloud=cloud), list(_placed(Q(cloud=cloud) & without(but))))
    held, ending = on_nodes.get(cloud, ({}, {}))
    return Known(capacity, held, lacks, waits, ending, closing(windows.of(cloud), waits))


def closing(found: Windows, waits: Iterable[Waiting]) -> Windows:
    """The windows, with what they see of the runs that wait."""
    if not found.windows:
        return found
    asker = windows.asker
    askers = {each.run: asker(int(each.appcode), each.seconds, is_endless=each.is_replica) for each in waits}
    return replace(found, askers=askers)


def read_several(capacities: Mapping[str, Capacity]) -> dict[str, Known]:
    """What `read` returns with admitted runs only, for several clouds, with as many queries as for one."""
    if not capacities:
        return {}
    first, *others = (_unplaced(alive(name), new=False) for name in capacities)
    unplaced = sorted(first.union(*others, all=True) if others else first)
    waits = _waiting(unplaced)
    placed = list(_placed(Q(cloud__in=capacities)))
    lacks, on_nodes = _held_and_promised(Q(run__cloud__in=capacities), placed)
    cloud_of = {run.pk: run.cloud for run in placed} | {pk: cloud for pk, cloud, *_ in unplaced}
    closed = windows.of_clouds(capacities)
    return {
        name: Known(
            capacity,
            on_nodes.get(name, ({}, {}))[0],
            [each for each in lacks if cloud_of[each.run] == name],
            [each for each in waits if cloud_of[each.run] == name],
            ending=on_nodes.get(name, ({}, {}))[1],
            windows=closing(
                closed.get(name, windows.NO_WINDOWS), [each for each in waits if cloud_of[each.run] == name]
            ),
        )
        for name, capacity in capacities.items()
    }


# Runs that are to run on their cloud, and whose places are not to be cleared first.
ALIVE = Q(gone=False, desired=Run.Desired.RUNNING, verdict="", refusal="", given_back_at=None)


def alive(cloud: str) -> Q:
    return Q(cloud=cloud) & ALIVE


def due() -> Q:
    """Runs that are not put off."""
    return Q(not_before=None) | Q(not_before__lte=timezone.now())


def waiting(cloud: str, but: Cluster | None = None, *, new: bool = True) -> list[Waiting]:
    """Returns the admitted runs without places, oldest first, with their tasks that have no node. Two queries at most."""
    return _waiting(list(_unplaced(alive(cloud) & without(but), new=new)))


# One run that waits: its columns in `_unplaced`.
Row = tuple[
    int, str, dt.datetime | None, dt.datetime | None, str, str, int, str, int, int, int, PriorityClass, str | None, str | None,
    str | None, int | None, bool, str, str, str, str,
]  # fmt: skip


def _unplaced(which: Q, *, new: bool) -> QuerySet[Run, Row]:
    # No room is kept for a run that cannot start for another reason.
    able = Q(applied_at__isnull=False) | Q(wait_reason__in=["", *WAITING.values()])
    admitted = (Q(admitted_at__isnull=False) & able) | (Q(wait_reason="", source=None) if new else Q())
    unplaced = Q(phase__in=[Run.Phase.QUEUED, Run.Phase.STARTING]) | Q(Exists(UNPLACED))
    runs = Run.objects.filter(which, due(), admitted, unplaced, placed_at=None, blocked_message="")
    # The first of each person, then the second of each: the many runs of one do not hide those of others.
    own = Window(
        RowNumber(), partition_by=[F("cluster__appcode"), F("created_by")], order_by=[by_class().asc(), F("pk").asc()]
    )
    first = runs.annotate(turn=own).order_by("turn", "pk").values("pk")[:MOST_WAITING]
    return Run.objects.filter(pk__in=first).order_by("pk").values_list(
        "pk", "cloud", "applied_at", "not_before", "cluster__part_of", KT("spec__framework"), "cluster__appcode",
        "namespace", "cluster__appcode__gpu_quota", "cluster__appcode__gpu_borrow", "cluster__appcode__weight",
        "priority_class", KT("spec__timeLimit"), KT("spec__placement"), KT("spec__terminationGracePeriod"), "created_by",
        Exists(Task.objects.filter(run=OuterRef("pk"))),
        Cast("avoided", TextField()), Cast("resources", TextField()), Cast("roles", TextField()), KT("spec__roles"),
    )  # fmt: skip


def by_class() -> Case:
    """0 for urgent runs, 2 for spare ones."""
    urgent, spare = When(priority_class="urgent", then=0), When(priority_class="spare", then=2)
    return Case(urgent, spare, default=1, output_field=IntegerField())


def _waiting(rows: Sequence[Row]) -> list[Waiting]:
    """One query if one of these runs has tasks."""
    seen = _seen([pk for pk, *_, has_tasks, _, _, _, _ in rows if has_tasks])
    # As text, since many runs ask for the same, and reading JSON takes longer than the rest.
    asked: dict[tuple[str, ...], _Asked] = {}
    unseen: dict[tuple[str, ...], tuple[Tasks, ...]] = {}
    terms: dict[int, Terms] = {}
    found, at = [], timezone.now()
    for (
        pk, _, applied_at, not_before, part_of, framework, appcode, line, quota, borrow, weight, priority_class, limit,
        placement, grace, person, _, avoided, *texts,
    ) in rows:  # fmt: skip
        key = tuple(texts)
        if key not in asked:
            asked[key] = _Asked(*map(json.loads, texts))
            unseen[key] = tuple(asked[key].lacking({}))
        if appcode not in terms:
            terms[appcode] = Terms(line, quota, borrow, weight)
        tasks = tuple(asked[key].lacking(seen[pk])) if pk in seen else unseen[key]
        if tasks:
            away = json.loads(avoided) if not_before and at < not_before + AVOIDED else ()
            independent, replica = FRAMEWORKS[framework].is_independent, part_of.startswith(SERVICES)
            found.append(
                Waiting(
                    pk, tasks, applied_at is not None, independent, frozenset(away), replica, str(appcode), terms[appcode],
                    priority_class, lasts(int(limit) if limit else None, int(grace or 0)),
                    spreads(placement, tasks, is_replica=replica), str(person or ""),
                )
            )  # fmt: skip
    return found


def spreads(placement: str | None, tasks: Sequence[Tasks], *, is_replica: bool) -> bool:
    """Whether tasks of a run go to as many nodes as possible. Replicas of one task each do, so that not all go with a node."""
    return placement == "spread" or (is_replica and sum(each.count for each in tasks) == 1)


def whole_of(texts: tuple[str, ...]) -> tuple[Tasks, ...]:
    """All tasks of a run from its start. `texts`: `Run.resources`, `Run.roles` and the roles of its spec, as JSON."""
    return tuple(_Asked(*map(json.loads, texts)).lacking({}))


def lasts(limit: int | None, grace: int) -> int | None:
    """Seconds from its start until a run with this time limit ends, beside the usual time to end (TO_END)."""
    return None if limit is None else limit + max(0, grace - GRACE_SECONDS)


def to_end(at: dt.datetime, grace: int) -> dt.datetime:
    """When a run that is ended at `at` has ended at the latest."""
    return at + TO_END + dt.timedelta(seconds=max(0, grace - GRACE_SECONDS))


def without(cluster: Cluster | None) -> Q:
    """Runs of other clusters; of all, if this one is none yet."""
    return ~Q(cluster=cluster) if cluster is not None and cluster.pk else Q()


def promises(cloud: str, but: Cluster | None = None) -> list[Promise]:
    """Returns what placed runs lack, oldest first. Two queries."""
    placed = list(_placed(Q(cloud=cloud) & without(but)))
    bound, done = _bound(placed)
    return [promise for run in placed for promise in _promises(run, bound[run.pk], done[run.pk])]


def _placed(which: Q) -> QuerySet[Run]:
    pending = Task.objects.filter(Q(phase="Pending", node="") | Q(phase="Failed"), run=OuterRef("pk"))
    partly = Q(whole_at=None) | Q(lacks_since__isnull=False) | Q(Exists(pending))
    runs = Run.objects.filter(which, ALIVE, partly, placed_at__isnull=False)
    return runs.order_by("pk").only("cloud", "spec", "resources", "roles", "layout", "deadline")


def _held_and_promised(which: Q, placed: Sequence[Run]) -> tuple[list[Promise], dict[str, tuple[Held, Endings]]]:
    """Returns what runs lack, and what these tasks hold as `used_on` does. `placed`: runs that may lack nodes, read before. Two
    queries, each of which sees news that the other does not. So what such a run has and what it lacks is counted by one: a
    task that gets its node in between would count in neither, and another run would be promised the same node."""
    bound, done = _bound(placed)
    on_nodes = used_on(which & ~Q(run__in=[run.pk for run in placed]))
    for run in placed:
        asked, last = alike(run), _ends(run)
        held, ending = on_nodes.setdefault(run.cloud, ({}, {}))
        for (role, node), count in bound[run.pk].items():
            if count:
                held[node] = held.get(node, NOTHING) + Sizes.of_tasks(asked[role], count)
                here = ending.get(node, UNUSED)
                ends = None if last is None or here.ends is None else max(here.ends, last)
                ending[node] = replace(here, ends=ends)
    return [promise for run in placed for promise in _promises(run, bound[run.pk], done[run.pk])], on_nodes


def _ends(run: Run) -> int | None:
    """When a run ends by its time limit at the latest, in seconds since 1970."""
    grace = int(run.spec.get("terminationGracePeriod") or 0)
    return None if run.deadline is None else full_minute(to_end(run.deadline, grace))


def _bound(runs: Sequence[Run]) -> tuple[dict[int, Counter[tuple[str, str]]], dict[int, Counter[str]]]:
    """Returns by run how many of its tasks are on each node, by role and node, and how many have succeeded, by role. One
    query."""
    has = Q(phase__in=["Pending", "Running"]) & ~Q(node="")
    tasks = Task.objects.filter(has | Q(phase="Succeeded"), run__in=[run.pk for run in runs])
    rows = tasks.values_list("run_id", "role", "node").order_by().annotate(
        held=Count("pk", filter=has), done=Count("pk", filter=Q(phase="Succeeded"))
    )  # fmt: skip
    bound, done = defaultdict[int, Counter[tuple[str, str]]](Counter), defaultdict[int, Counter[str]](Counter)
    for run_id, role, node, held, ended in rows:
        bound[run_id][role, node] += held
        done[run_id][role] += ended
    return bound, done


def _promises(run: Run, bound: Counter[tuple[str, str]], done: Counter[str]) -> Iterable[Promise]:
    """Roles that ask for the same share their nodes, see `packing.assign`."""
    groups: dict[Tasks, list[tuple[str, int]]] = {}
    for role in run.resources:
        held = sum(count for (of, _), count in bound.items() if of == role)
        wanted = _lacking(run, role, held, done[role])
        groups.setdefault(replace(wanted, role="", count=0), []).append((role, wanted.count))
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
    return {role: replace(_lacking(run, role, 0, 0), role="", count=0) for role in run.resources}


def lacking(runs: Sequence[Run]) -> Mapping[int, list[Tasks]]:
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


def _lacking(run: Run, role: str, held: int, done: int) -> Tasks:
    return _asked_by(run).of(role, held, done)


def _asked_by(run: Run) -> _Asked:
    return _Asked(run.resources, run.roles, run.spec["roles"])


@dataclass(frozen=True)
class _Asked:
    """What a run asks for, by role: `Run.resources`, `Run.roles` and the roles of its spec."""

    resources: Mapping[str, Any]
    roles: Mapping[str, Any]
    spec: Mapping[str, Any]

    def lacking(self, seen: Mapping[str, tuple[int, int]]) -> list[Tasks]:
        """Tasks that should have a node now and have none. `seen`: as of `_seen`."""
        found = [self.of(role, *seen.get(role, (0, 0))) for role in self.resources]
        return [each for each in found if each.count]

    def of(self, role: str, held: int, done: int) -> Tasks:
        left = self.roles.get(role, {}).get("count", 0) - done
        at_once = self.spec.get(role, {}).get("atOnce") or left
        asked = self.resources[role]
        return asking(
            role,
            max(0, min(at_once, left) - held),
            asked["gpus"],
            asked["gpu_model"],
            asked["cpu_milli"] + asked.get("beside_cpu_milli", 0),
            asked["memory_mb"] + asked.get("beside_memory_mb", 0),
            demand_of(asked),
        )


def taken_on(which: Q) -> dict[str, dict[str, Sizes]]:
    """Returns what these tasks hold, by cloud and node. One query."""
    return {cloud: held for cloud, (held, _) in used_on(which).items()}


IS_ENDING = Q(run__desired=Run.Desired.ENDED) | ~Q(run__verdict="") | Q(run__given_back_at__isnull=False)


def used_on(which: Q) -> dict[str, tuple[Held, Endings]]:
    """Returns what these tasks hold, and when they end, by cloud and node. One query."""
    tasks = Task.objects.filter(which, run__gone=False, phase__in=["Pending", "Running"]).exclude(node="")
    grace = Coalesce(Cast(KeyTextTransform("terminationGracePeriod", "run__spec"), IntegerField()), 0)
    late = ExpressionWrapper(Greatest(grace - GRACE_SECONDS, 0) * Value(dt.timedelta(seconds=1)), DurationField())
    rows = amounts(
        tasks.annotate(is_ending=Case(When(IS_ENDING, then=True), default=False)), "run__cloud", "node", "is_ending",
        ends=Max(ExpressionWrapper(F("run__deadline") + late, DateTimeField())),
        endless=Count("pk", filter=Q(run__deadline=None)),
        since=Max(ExpressionWrapper(Coalesce("run__given_back_at", "run__release_asked_at") + late, DateTimeField())),
        unasked=Count("pk", filter=Q(run__given_back_at=None, run__release_asked_at=None)),
    )  # fmt: skip
    found: dict[str, tuple[Held, Endings]] = {}
    unknown = set[tuple[str, str]]()
    for cloud, node, is_ending, sizes, ends, endless, since, unasked in rows:
        held, ending = found.setdefault(cloud, ({}, {}))
        held[node] = held[node] + sizes if node in held else sizes
        here = ending.get(node, UNUSED)
        if is_ending:
            if unasked:
                unknown.add((cloud, node))
            gone = 0 if (cloud, node) in unknown else max(here.gone, full_minute(since + TO_END))
            ending[node] = replace(here, sizes=here.sizes + sizes, gone=gone)
        else:
            last = None if endless or here.ends is None else max(here.ends, full_minute(ends + TO_END))
            ending[node] = Ending(here.sizes, last, here.gone)
    return found


def full_minute(at: dt.datetime) -> int:
    """The full minute after `at`, in seconds since 1970."""
    return -(-int(at.timestamp()) // 60) * 60


def amounts(tasks: QuerySet[Task], *by: str, **more: Aggregate) -> Iterator[tuple[Any, ...]]:
    """What the tasks hold, after the columns by which they are divided, and before `more`. Where tasks ask for more than whole
    GPUs of NVIDIA's, there are several rows, to be added up. One query."""
    asked = Func(F("run__resources"), F("role"), function="jsonb_extract_path", output_field=JSONField())

    def amount(name: str) -> Cast:
        return Cast(KeyTextTransform(name, "asked"), IntegerField())

    # In full where it is more than whole GPUs of NVIDIA's; most tasks of a node are alike.
    full = Cast("asked", TextField())
    special = Case(
        When(asked__has_any_keys=["resource", "extra"], then=full), default=Value(""), output_field=TextField()
    )
    sums = tasks.annotate(asked=asked).annotate(special=special).values(*by, "special").annotate(
        held_gpus=Sum(amount("gpus")),
        held_cpu=Sum(amount("cpu_milli") + Coalesce(amount("beside_cpu_milli"), 0)),
        held_memory=Sum(amount("memory_mb") + Coalesce(amount("beside_memory_mb"), 0)),
        count=Count("pk"),
        **more,
    )  # fmt: skip
    rows = sums.order_by().values_list("held_gpus", "held_cpu", "held_memory", "special", "count", *by, *more)
    columns = len(by)
    for gpus, cpu, memory, asks, count, *others in rows:
        sizes = Sizes(gpus or 0, cpu or 0, memory or 0)
        if asks:
            sliced = Sizes.of_tasks(_Asked({"": json.loads(asks)}, {}, {}).of("", 0, 0), count)
            sizes = replace(sizes, gpus=sliced.gpus, slices=sliced.slices)
        yield (*others[:columns], sizes, *others[columns:])
