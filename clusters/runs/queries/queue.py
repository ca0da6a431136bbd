"""Which runs wait for what, their places, and which runs hold what, on each cloud. Reads only.

The idea: details only of runs that the reader may see. Everyone else's runs are two sums per cloud, computed by the database,
so that neither names nor the number of appcodes leak, and "others" on the nodes. The pass over the places of a cloud
(`places.py`) or the cloud itself says what a run waits for; where neither does, it is decided by what is free. Places are in
the order in which that pass decides. The number of queries depends neither on the number of clouds nor on that of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from django.db.models import Case, Count, Exists, F, Q, QuerySet, Sum, When
from django.db.models.functions import Greatest
from django.utils import timezone

from clusters.admission.decision import Outlook, Snapshot, Verdict, ordered, outlook
from clusters.admission.foretold import Foretold
from clusters.admission.judgement import Judgement
from clusters.admission.packing import Tasks
from clusters.clouds.drivers.base import Capacity
from clusters.clouds.health import silences_of
from clusters.clouds.models import CloudState
from clusters.clouds.placement import titles
from clusters.clouds.registry import all_placing
from clusters.runs.models import Run
from clusters.runs.placing import windows
from clusters.runs.placing.forecasts import forecasts_of
from clusters.runs.placing.known import UNPLACED, Known, capacity_from, lacking, read_several, taken_on
from clusters.runs.placing.places import HELD
from clusters.runs.placing.rights import NAMES, Right, RightName, is_sliced, rights, rights_of
from clusters.runs.placing.room import free_for, snapshot
from clusters.runs.placing.tiles import Tile, placed_tiles, seen_tiles

# Maximum length of each list: the first that wait, and those that hold most.
MOST = 200
ALIVE = Q(gone=False, desired=Run.Desired.RUNNING, verdict="", cluster__deleted_at=None)
WAITS = ALIVE & (Q(phase=Run.Phase.QUEUED) | ~Q(blocked_message="") | Q(Exists(UNPLACED)))
HOLDS = Q(gone=False, gpu_rate__gt=0)


@dataclass(frozen=True)
class Waits:
    """`place` counts from 1 in the queue of `place_in`: the appcode's quota or the cloud; 0 where there is no order.
    `gpus_before`: what the runs before it in the cloud's queue ask for. `right`: by which it would hold its GPUs there.
    `forecast`: by when it probably starts."""

    run: Run
    why: str
    place: int = 0
    place_in: Literal["quota", "cloud", ""] = ""
    gpus_before: int = 0
    right: RightName | None = None
    forecast: Foretold | None = None


@dataclass(frozen=True)
class Turn:
    """The place of a run in the queue of a cloud, from 1, and the GPUs for which those before it ask."""

    place: int
    gpus_before: int
    right: RightName


@dataclass(frozen=True)
class Sums:
    """Sums over runs of appcodes that the reader may not see."""

    waiting: int = 0
    waiting_gpus: int = 0
    holding: int = 0
    held_gpus: int = 0


@dataclass(frozen=True)
class Queue:
    """One cloud. `more_waiting` and `more_holding` count the runs that are not listed. `keepers`: the runs that the reader may
    see and for which nodes are kept, by id. `windows`: maintenance and reservations now and to come. `rights`: by which runs hold
    GPUs, by id."""

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
    tiles: Sequence[Tile] = ()
    keepers: Mapping[int, Run] = field(default_factory=dict)
    windows: Sequence[windows.Shown] = ()
    rights: Mapping[int, Right] = field(default_factory=dict)


def queues(appcodes: Collection[int] | None) -> list[Queue]:
    """Queues of every cloud with machines or runs. `appcodes` are those that the reader may see, None for all. Twenty-one
    queries at most."""
    states = {state.name: state for state in CloudState.objects.order_by("name")}
    names, quiet = titles(), silences_of(states.values(), timezone.now())
    seen = Q() if appcodes is None else Q(cluster__appcode__in=list(appcodes))
    waiting = _waiting(seen)
    holding = list(_joined(HOLDS & seen).order_by("-gpu_rate", "pk")[:MOST])
    mine = _sums(HOLDS & seen | WAITS & seen)
    others = _sums((HOLDS | WAITS) & ~seen) if appcodes is not None else {}
    capacities = {name: capacity_from(state.capacity) for name, state in states.items()}
    foretold = forecasts_of([run for run, _ in waiting])
    pending = lacking([run for run, _ in waiting if run.admitted_at])
    placing = all_placing() & capacities.keys()
    known, closed = _known(capacities, placing), windows.shown(appcodes)
    decided = _decided(known, placing)
    turns = {run: turn for each, then in decided.values() for run, turn in _turns(each, then.verdicts).items()}
    tiles = {
        name: windows.on_tiles(each, closed.get(name, ())) for name, each in _tiles(known, decided, appcodes).items()
    }
    held_by = rights_of(holding)
    keepers = _keepers(seen, {each.keeper for several in tiles.values() for each in several if each.keeper})
    found = []
    for name in sorted({*states, *mine, *others}):
        capacity = capacities.get(name, Capacity(()))
        free = partial(free_for, known=known.get(name, Known(capacity)))
        here = [
            replace(_waits(run, place, free, pending, turns), forecast=foretold.get(run.pk))
            for run, place in waiting
            if run.cloud == name
        ]
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
                tiles.get(name, ()),
                {run.pk: run for run in keepers if run.cloud == name},
                closed.get(name, ()),
                held_by,
            )
        )
    return found


def reported_tiles(states: Iterable[CloudState]) -> dict[str, list[Tile]]:
    """Who has the GPUs of each node as these clouds report it, by cloud, for somebody who sees all runs. It decides nothing, so
    nothing is promised or kept. Two queries."""
    capacities = {state.name: capacity_from(state.capacity) for state in states}
    held, closed = taken_on(Q(run__cloud__in=capacities.keys())), windows.shown(None)
    return {
        name: windows.on_tiles(seen_tiles(capacity, held.get(name, {}), None), closed.get(name, ()))
        for name, capacity in capacities.items()
    }


def _joined(which: Q) -> QuerySet[Run]:
    return Run.objects.filter(which).select_related("cluster__appcode", "created_by")


def _waiting(seen: Q) -> list[tuple[Run, int]]:
    """The first waiting runs, with their places in their appcode's quota queue as the last pass gave them."""
    rows = _joined(WAITS & seen).order_by("pk")[:MOST]
    of_quota = (run.wait_reason == "QuotaExceeded" and not run.admitted_at for run in rows)
    return [
        (run, max(1, run.wait_values.get("place", 0)) if waits else 0)
        for run, waits in zip(rows, of_quota, strict=True)
    ]


def _turns(snapshot: Snapshot, verdicts: Mapping[str, Verdict]) -> dict[int, Turn]:
    """Places of waiting runs in the queue of their cloud, among the runs of all appcodes."""
    levels = {ask.run: level for ask, level in ordered(snapshot)}
    found, before = dict[int, Turn](), 0
    for run, verdict in verdicts.items():
        if verdict.rank:
            found[int(run)] = Turn(verdict.rank, before, NAMES[levels[run]])
            before += int(verdict.values.get("gpus", 0))
    return found


def _known(capacities: Mapping[str, Capacity], placing: Set[str]) -> dict[str, Known]:
    """What is known of each cloud; where the portal places no runs, only what they hold. At most seven queries."""
    held = taken_on(Q(run__cloud__in=capacities.keys() - placing))
    others = {name: Known(capacity, held.get(name, {})) for name, capacity in capacities.items()}
    return others | read_several({name: capacities[name] for name in placing})


def _decided(known: Mapping[str, Known], placing: Set[str]) -> dict[str, tuple[Snapshot, Outlook]]:
    """What becomes of the nodes and the runs that wait, where the portal places runs. At most three queries."""
    at = timezone.now()
    shares = rights([run for name in placing for run in known[name].waiting], at).shares if placing else {}
    found = {name: replace(snapshot(known[name], at), shares=shares) for name in placing}
    return {name: (each, outlook(each)) for name, each in found.items()}


def _tiles(
    known: Mapping[str, Known], decided: Mapping[str, tuple[Snapshot, Outlook]], appcodes: Collection[int] | None
) -> dict[str, list[Tile]]:
    """Who has the GPUs of each node, by cloud. At most one query."""
    own = None
    if appcodes is not None:
        own = taken_on(Q(run__cloud__in=known.keys(), run__cluster__appcode__in=list(appcodes)))
    found = {}
    for name, each in known.items():
        mine = None if own is None else own.get(name, {})
        if name in decided:
            found[name] = placed_tiles(each.capacity, each.taken, mine, *decided[name])
        else:
            found[name] = seen_tiles(each.capacity, each.taken, mine)
    return found


def _keepers(seen: Q, runs: Collection[int]) -> list[Run]:
    return list(Run.objects.filter(seen, pk__in=runs).select_related("cluster__appcode")) if runs else []


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


def _waits(
    run: Run,
    place: int,
    free: Callable[[Sequence[Tasks]], Judgement],
    pending: Mapping[int, Sequence[Tasks]],
    turns: Mapping[int, Turn],
) -> Waits:
    if place:
        return Waits(run, run.message, place, "quota")
    if (turn := turns.get(run.pk)) and run.wait_reason in HELD:
        return Waits(
            run, run.message, turn.place, "cloud", turn.gpus_before, turn.right if run.gpus or is_sliced(run) else None
        )
    if run.admitted_at is None or run.wait_reason:
        return Waits(run, run.message)
    tasks = pending[run.pk]
    if run.placed_at:
        return Waits(run, f"{_lacks(tasks, run)}{run.message}")
    verdict = free(tasks)
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
