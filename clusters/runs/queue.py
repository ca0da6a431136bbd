"""Which runs wait for what, their places, and which runs hold what, on each cloud. Reads only.

The idea: details only of runs that the reader may see. Everyone else's runs are two sums per cloud, computed by the database,
so that neither names nor the number of appcodes leak. What a run waits for is decided as in the preview
(`clouds/drivers/base/fit.py`), unless its cloud reports it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from django.db.models import Case, Count, Exists, F, Q, QuerySet, Sum, When, Window
from django.db.models.functions import Greatest, RowNumber
from django.utils import timezone

from clusters.clouds.drivers.base import Capacity
from clusters.clouds.drivers.base.fit import Tasks, judge
from clusters.clouds.health import silences_of
from clusters.clouds.models import CloudState
from clusters.clouds.placement import titles
from clusters.runs.models import Run
from clusters.runs.room import UNPLACED, capacity_from, lacking

# Maximum length of each list: the first that wait, and those that hold most.
MOST = 200
ALIVE = Q(gone=False, desired=Run.Desired.RUNNING, verdict="", cluster__deleted_at=None)
WAITS = ALIVE & (Q(phase=Run.Phase.QUEUED) | ~Q(blocked_message="") | Q(Exists(UNPLACED)))
HOLDS = Q(gone=False, gpu_rate__gt=0)


@dataclass(frozen=True)
class Waits:
    """`place` counts from 1 in the queue of `place_in`: the appcode's quota or the cloud; 0 where there is no order."""

    run: Run
    why: str
    place: int = 0
    place_in: Literal["quota", "cloud", ""] = ""


@dataclass(frozen=True)
class Sums:
    """Sums over runs of appcodes that the reader may not see."""

    waiting: int = 0
    waiting_gpus: int = 0
    holding: int = 0
    held_gpus: int = 0


@dataclass(frozen=True)
class Queue:
    """One cloud. `more_waiting` and `more_holding` count the runs that are not listed."""

    cloud: str
    title: str
    notice: str
    gpus: int
    gpus_free: int
    waiting: Sequence[Waits] = ()
    holding: Sequence[Run] = ()
    others: Sums = Sums()
    more_waiting: int = 0
    more_holding: int = 0


def queues(appcodes: Collection[int] | None) -> list[Queue]:
    """Queues of every cloud with machines or runs. `appcodes` are those that the reader may see, None for all. Seven queries."""
    states = {state.name: state for state in CloudState.objects.order_by("name")}
    names, quiet = titles(), silences_of(states.values(), timezone.now())
    seen = Q() if appcodes is None else Q(cluster__appcode__in=list(appcodes))
    waiting = _waiting(seen)
    holding = list(_joined(HOLDS & seen).order_by("-gpu_rate", "pk")[:MOST])
    mine = _sums(HOLDS & seen | WAITS & seen)
    others = _sums((HOLDS | WAITS) & ~seen) if appcodes is not None else {}
    capacities = {name: capacity_from(state.capacity) for name, state in states.items()}
    pending = lacking([run for run, _ in waiting if run.admitted_at])
    found = []
    for name in sorted({*states, *mine, *others}):
        capacity = capacities.get(name, Capacity(()))
        here = [_waits(run, place, capacity, pending) for run, place in waiting if run.cloud == name]
        held = [run for run in holding if run.cloud == name]
        sums = mine.get(name, Sums())
        found.append(
            Queue(
                name,
                names.get(name, name),
                quiet.get(name, ""),
                sum(node.gpus for node in capacity.nodes),
                sum(node.gpus_free for node in capacity.nodes),
                here,
                held,
                others.get(name, Sums()),
                sums.waiting - len(here),
                sums.holding - len(held),
            )
        )
    return found


def _joined(which: Q) -> QuerySet[Run]:
    return Run.objects.filter(which).select_related("cluster__appcode", "created_by")


def _waiting(seen: Q) -> list[tuple[Run, int]]:
    """The first waiting runs, with their places in their appcode's quota queue, all of which the reader of an appcode sees."""
    place = Window(RowNumber(), partition_by=[F("cluster__appcode"), F("wait_reason")], order_by=F("pk").asc())
    rows = _joined(WAITS & seen).annotate(place=place).order_by("pk")[:MOST]
    return [(run, run.place if run.wait_reason == "QuotaExceeded" and not run.admitted_at else 0) for run in rows]


def _sums(which: Q) -> dict[str, Sums]:
    """Sums by cloud. One query."""
    waits, holds = Q(waits=True), Q(gpu_rate__gt=0)
    rows = Run.objects.filter(which).annotate(waits=Case(When(WAITS, then=True), default=False))
    sums = rows.values("cloud").order_by("cloud").annotate(
        waiting=Count("pk", filter=waits), waiting_gpus=Sum(Greatest(F("gpus") - F("gpu_rate"), 0), filter=waits, default=0),
        holding=Count("pk", filter=holds), held_gpus=Sum("gpu_rate", filter=holds, default=0),
    )  # fmt: skip
    found = sums.values_list("cloud", "waiting", "waiting_gpus", "holding", "held_gpus")
    return {cloud: Sums(*counts) for cloud, *counts in found}


def _waits(run: Run, place: int, capacity: Capacity, pending: Mapping[int, Sequence[Tasks]]) -> Waits:
    if place:
        return Waits(run, run.message, place, "quota")
    if capacity.in_order:
        order = next((n for n, each in enumerate(capacity.queue, 1) if each.run_id == run.pk), 0)
        return Waits(run, run.message, order, "cloud" if order else "")
    if run.admitted_at is None or run.wait_reason:
        return Waits(run, run.message)
    tasks = pending[run.pk]
    verdict = judge(tasks, replace(capacity, queue=()))
    why = run.message if verdict.fits == "now" or run.blocked_message else verdict.message
    return Waits(run, f"{_lacks(tasks, run)}{why}")


def _lacks(tasks: Sequence[Tasks], run: Run) -> str:
    """A sentence about all missing tasks of a partly placed run, as the other message may be about one task only."""
    missing, whole = sum(each.count for each in tasks), sum(role["count"] for role in run.roles.values())
    if missing in (0, whole):
        return ""
    gpus = sum(each.count * each.gpus for each in tasks)
    what = f"{gpus} GPU{'s'[: gpus != 1]} for " if gpus else ""
    return f"Lacks {what}{missing} of {whole} tasks. "
