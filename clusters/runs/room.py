"""Judges whether a new run finds room on the nodes of its cloud, by `clusters.admission`: rows and observations in, a code and a
sentence out. Calls no cloud.

Runs that were admitted earlier come first: the cloud is about to place their tasks, so what these need is taken off before the
new run is judged as a whole. The portal itself does not hold nodes back for them: a run that fits beside them starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from django.db.models import Count, Exists, F, Func, IntegerField, JSONField, OuterRef, Q, Sum
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce
from django.utils import timezone

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Node, Snapshot, decide
from clusters.admission.packing import Shape, Tasks
from clusters.admission.words import sentence
from clusters.clouds.drivers.base import Capacity, fit
from clusters.clouds.drivers.base import Node as Seen
from clusters.runs.models import Cluster, Run, Task
from clusters.runs.status.phase import WAITING

# More runs than this are not taken off: where so many lack nodes, the first leave no room.
MOST_PLACING = 1000
# Stands for an amount that the cloud does not report. Larger than any sum of what tasks ask.
UNREPORTED = 1 << 60
# Keeps tasks without GPUs away from nodes that refuse them.
_GPU_ONLY = frozenset({"gpu-tasks-only"})
# Tasks without a machine, or that the cloud cannot create; also of a run in which some roles have started.
UNPLACED = Task.objects.filter(run=OuterRef("pk"), phase="Pending", node="", reason__in=WAITING)
_NEW = "new"


@dataclass(frozen=True)
class Taken:
    """What tasks of the portal hold on one node."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_mb: int = 0


def judge(tasks: Sequence[fit.Tasks], capacity: Capacity, cloud: str, but: Cluster | None = None) -> fit.Judgement:
    """Judges a new run of `tasks`. The run of `but` that lives now will be over then. Three queries.

    `capacity` must have been read before. A task that is placed meanwhile may count twice, as held and as about to be placed,
    but is never missed: "now" is not promised for nodes that another run gets."""
    before = placing(cloud, but)
    verdict = decide(snapshot(capacity, taken(cloud), before, tasks))[_NEW]
    notes = fit.notes(capacity.nodes) if verdict.code is Code.NO_NODES else ""
    closed = fit.closed(capacity) if verdict.code.fits == "waits" and not notes else ""
    return fit.Judgement(verdict.code.fits, verdict.code, f"{sentence(verdict, notes)}{closed}")


def snapshot(
    capacity: Capacity,
    held: Mapping[str, Taken],
    before: Iterable[tuple[int, Sequence[fit.Tasks]]],
    tasks: Sequence[fit.Tasks],
) -> Snapshot:
    """Returns what `decide` needs. `held`: by node. `before`: runs that are being placed, and their tasks without a node."""
    nodes = tuple(_node(each, held.get(each.name, Taken())) for each in capacity.nodes)
    asks = [Ask(str(run), "", _tasks(theirs), admitted=True) for run, theirs in before]
    return Snapshot(nodes, (*asks, Ask(_NEW, "", _tasks(tasks))))


def _node(seen: Seen, held: Taken) -> Node:
    """`held` caps what is free, since an observation may not count the newest tasks yet."""
    cpu, memory = seen.cpu_milli or UNREPORTED, seen.memory_mb or UNREPORTED
    taints = _GPU_ONLY if seen.gpu_tasks_only else frozenset[str]()
    whole = Shape(seen.gpus, cpu, memory, seen.gpu_model, taints=taints, any_model=seen.simulated)
    free = replace(
        whole,
        gpus=_free(seen.gpus, seen.gpus_free, held.gpus),
        cpu_milli=_free(cpu, seen.cpu_milli_free, held.cpu_milli),
        memory_mb=_free(memory, seen.memory_mb_free, held.memory_mb),
    )
    return Node(seen.name, whole, free, ready=seen.takes_tasks)


def _free(whole: int, seen: int | None, held: int) -> int:
    if whole == UNREPORTED:
        return whole
    return max(0, min(whole if seen is None else seen, whole - held))


def _tasks(several: Iterable[fit.Tasks]) -> tuple[Tasks, ...]:
    return tuple(
        Tasks(
            each.role, each.count, each.gpus, each.gpu_model, each.cpu_milli, each.memory_mb,
            tolerated=_GPU_ONLY if each.gpus else frozenset(),
        )
        for each in several
        if each.count
    )  # fmt: skip


def placing(cloud: str, but: Cluster | None = None) -> list[tuple[int, Sequence[fit.Tasks]]]:
    """Returns the runs that their cloud is about to place, oldest first, with their tasks that have no node. Two queries."""
    # Also new runs that are about to be admitted. Others wait in the portal.
    admitted = Q(admitted_at__isnull=False) | Q(wait_reason="", source=None)
    due = Q(not_before=None) | Q(not_before__lte=timezone.now())
    unplaced = Q(phase__in=[Run.Phase.QUEUED, Run.Phase.STARTING]) | Q(Exists(UNPLACED))
    runs = Run.objects.filter(
        admitted,
        due,
        unplaced,
        cloud=cloud,
        gone=False,
        desired=Run.Desired.RUNNING,
        verdict="",
        refusal="",
        blocked_message="",
    )
    if but is not None and but.pk:
        runs = runs.exclude(cluster=but)
    rows = list(runs.order_by("pk").only("spec", "resources", "roles")[:MOST_PLACING])
    found = lacking(rows)
    return [(run.pk, found[run.pk]) for run in rows if any(each.count for each in found[run.pk])]


def lacking(runs: Sequence[Run]) -> Mapping[int, list[fit.Tasks]]:
    """Returns by run the tasks that should have a node now and have none. One query."""
    has = Q(phase__in=["Pending", "Running"]) & ~Q(node="")
    rows = Task.objects.filter(run__in=[run.pk for run in runs]).values_list("run_id", "role")
    sums = rows.annotate(held=Count("pk", filter=has), done=Count("pk", filter=Q(phase="Succeeded")))
    seen = {(run_id, role): (held, done) for run_id, role, held, done in sums}
    return {run.pk: [_lacking(run, role, *seen.get((run.pk, role), (0, 0))) for role in run.resources] for run in runs}


def _lacking(run: Run, role: str, held: int, done: int) -> fit.Tasks:
    left = run.roles.get(role, {}).get("count", 0) - done
    at_once = run.spec["roles"].get(role, {}).get("atOnce") or left
    asked = run.resources[role]
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
    tasks = Task.objects.filter(run__cloud=cloud, run__gone=False, phase__in=["Pending", "Running"]).exclude(node="")
    asked = Func(F("run__resources"), F("role"), function="jsonb_extract_path", output_field=JSONField())

    def amount(name: str) -> Cast:
        return Cast(KeyTextTransform(name, "asked"), IntegerField())

    sums = tasks.annotate(asked=asked).values("node").annotate(
        held_gpus=Sum(amount("gpus")),
        held_cpu=Sum(amount("cpu_milli") + Coalesce(amount("beside_cpu_milli"), 0)),
        held_memory=Sum(amount("memory_mb") + Coalesce(amount("beside_memory_mb"), 0)),
    )  # fmt: skip
    rows = sums.order_by().values_list("node", "held_gpus", "held_cpu", "held_memory")
    return {node: Taken(gpus or 0, cpu or 0, memory or 0) for node, gpus, cpu, memory in rows}
