"""Gives runs their places on the nodes of a cloud: all tasks of a run at once, or none. Where the portal places runs
(`Cloud.places_runs`), `reconcile` tells the cloud only of runs that have places, and its tasks can go nowhere else.

One pass decides for a whole cloud, under one lock: it reads what is held and promised, asks `clusters.admission` once, and writes
every answer in the same transaction. It runs when a run is admitted (at once, by the same worker), when the capacity of the cloud
changes, and with the sweep as long as runs wait. A run that cannot take the places it was given loses them, and waits again in
its old order.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from clusters import wakeups
from clusters.admission.codes import Code, Values
from clusters.admission.decision import Verdict
from clusters.admission.packing import Layout, Sizes
from clusters.admission.pool import Node
from clusters.admission.words import loss
from clusters.clouds.drivers.base import Capacity
from clusters.clouds.models import CloudState
from clusters.clouds.registry import driver, places_runs
from clusters.events import run_event
from clusters.frameworks import FRAMEWORKS
from clusters.runs.models import Run, Task
from clusters.runs.placing import room
from clusters.runs.placing.known import ALIVE, Known, Promise, alike, alive, capacity_of, due, promises, read
from clusters.runs.placing.rights import held_by
from clusters.runs.status.notifications import tell
from clusters.runs.status.phase_update import refresh
from portal.db.advisory_lock import Lock, lock_until_commit
from portal.events import record_all
from portal.models import Event

# Reasons of a run that waits for its places.
FOR_GPUS, FOR_ROOM = "WaitingForGPUs", "WaitingForResources"
HELD = (FOR_GPUS, FOR_ROOM)
# Number of waiting runs that are told what they lack. The others are told that they wait for their turn.
TOLD = 100
# How long a run may lack nodes for some of its tasks before it loses its places; if it cannot get them there; and if nothing is
# lost by it, too.
PATIENCE, REPAIR, BLINK = dt.timedelta(minutes=5), dt.timedelta(minutes=1), dt.timedelta(seconds=10)
# Pause after the first time that a run lost its places; doubled each time.
PAUSE, LONGEST_PAUSE = dt.timedelta(seconds=30), dt.timedelta(minutes=10)
# Columns of a run that `start_anew` changes, beside those that a lost run changes.
FORGOTTEN = ("placed_at", "layout", "whole_at", "lacks_since", "given_back_at", "started_at", "phase", "phase_since")
# And those that taking it off its cloud changes.
LOST = ("given_back_at", "times_given_back", "not_before", "avoided", "wait_reason", "wait_message")
TURN = "It waits for its turn."
OLD = "That is what was known when the cloud answered last:"


def waits(cloud: str) -> QuerySet[Run]:
    """Runs that wait for their places, in order."""
    return every_wait().filter(cloud=cloud).order_by("pk")


def every_wait() -> QuerySet[Run]:
    """Runs that wait for their places, on all clouds."""
    return Run.objects.filter(ALIVE, due(), placed_at=None, wait_reason__in=HELD, admitted_at__isnull=False)


# Placed runs that lack nodes, or lacked them at the last pass: they may have to give their places back.
LACK = Q(placed_at__isnull=False) & (Q(lacks_since__isnull=False) | Q(whole_at=None))


def lacks(cloud: str) -> Q:
    return alive(cloud) & LACK


def needs_place(run: Run) -> bool:
    """Whether a run that is admitted must wait for places before the cloud is told of it."""
    return run.placed_at is None and places_runs(run.cloud) and not run.tasks.exists()


def wait(run: Run) -> tuple[str, str]:
    """What a run is told until the next pass, as a reason and a message."""
    return _reason(run.gpus), TURN


def place(cloud: str) -> None:
    """Makes one pass over the runs of a cloud that wait for places, then over placed ones that lack nodes, then takes back what
    others are to get. The number of queries does not grow with them. Three transactions: each locks its runs in pk order, as
    everything does, so that none waits for another in a circle."""
    if found := _give(cloud):
        known, nodes, takes = found
        _give_back(cloud, known, nodes)
        if takes:
            _take_back(cloud, takes)


@transaction.atomic
def _give(cloud: str) -> tuple[Known, Mapping[str, Node], Mapping[int, int]] | None:
    """Gives places to runs that wait. Returns what it knew of the cloud, its nodes, and which runs are to be taken back for
    which; None where the portal places nothing."""
    lock_until_commit(Lock.PLACES, cloud)
    at = timezone.now()
    if not places_runs(cloud):
        # It was switched to another way of placing runs meanwhile.
        _write(waits(cloud), {run_id: Answer() for run_id in waits(cloud).values_list("pk", flat=True)}, at)
        return None
    capacity = capacity_of(cloud)
    known = read(cloud, capacity, new=False)
    snapshot, verdicts = room.decide_all(cloud, known, at)
    may_grow = driver(cloud).is_remote
    trouble = CloudState.objects.filter(name=cloud).values_list("trouble", flat=True).first()
    said = {int(run): each for run, each in verdicts.items() if each.code is Code.FITS or each.rank <= TOLD}
    answers = {}
    rows = waits(cloud).filter(pk__in=said)
    for run_id, gpus, *told in rows.values_list("pk", "gpus", "wait_reason", "wait_message"):
        answer = _answer(said[run_id], capacity, gpus, may_grow=may_grow)
        if trouble and answer.reason:
            answer = replace(answer, message=f"{answer.message} {OLD} {trouble}")
        if [answer.reason, answer.message] != told:
            answers[run_id] = answer
    _write(waits(cloud), answers, at)
    takes = {int(run): int(taker) for taker, each in verdicts.items() for run in each.takes}
    return known, {node.name: node for node in snapshot.nodes}, takes


@dataclass(frozen=True)
class Answer:
    """What a waiting run is told: a reason and a message, or its places, and nothing if it needs none; or why it never starts."""

    reason: str = ""
    message: str = ""
    layout: Layout | None = None
    refusal: str = ""
    code: str = ""
    values: Values = field(default_factory=dict)


def _answer(verdict: Verdict, capacity: Capacity, gpus: int, *, may_grow: bool) -> Answer:
    if verdict.code is Code.FITS:
        return Answer(layout=verdict.nodes or {})
    sentence = room.said(verdict, capacity)
    if verdict.code.fits == "never" and not may_grow:
        return Answer(refusal=sentence)
    return Answer(_reason(gpus), sentence, code=verdict.code, values=room.told(verdict, capacity))


def _write(rows: QuerySet[Run], answers: Mapping[int, Answer], at: dt.datetime) -> None:
    if not answers:
        return
    rows = rows.filter(pk__in=answers).select_for_update(of=("self",), no_key=True)
    # Without what is long and not asked here.
    rows = rows.defer("cluster__spec", "cluster__proof", "read", "wrote", "crashes", "code")
    runs = list(rows.select_related("cluster").prefetch_related("cluster__appcode"))
    for run in runs:
        answer = answers[run.pk]
        run.wait_reason, run.wait_message, run.refusal = answer.reason, answer.message, answer.refusal
        run.wait_code, run.wait_values = answer.code, dict(answer.values)
        if answer.layout is not None:
            run.placed_at, run.layout = at, _by_role(answer.layout)
        if not answer.reason:
            transaction.on_commit(partial(wakeups.wake, run.pk))
    refresh(runs, at, unsaved=["wait_reason", "wait_message", "refusal", "placed_at", "layout"])


def _by_role(layout: Layout) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (role, node), count in sorted(layout.items()):
        found.setdefault(role, {})[node] = count
    return found


def nodes_of(run: Run, role: str) -> tuple[str, ...]:
    """The only nodes on which tasks of the role may run; none for any. Roles that ask for the same share theirs."""
    asked = alike(run)
    return tuple(sorted({node for each, nodes in run.layout.items() if asked[each] == asked[role] for node in nodes}))


@transaction.atomic
def _give_back(cloud: str, known: Known, nodes: Mapping[str, Node]) -> None:
    """Notes which placed runs lack nodes, and takes their places from those that cannot get them, or not in time."""
    lock_until_commit(Lock.PLACES, cloud)
    at = timezone.now()
    mine = Run.objects.filter(lacks(cloud) | Q(pk__in={each.run for each in known.promises})).order_by("pk")
    list(mine.select_for_update(of=("self",), no_key=True).values_list("pk"))
    # Read again under the locks: their last tasks may have got nodes meanwhile.
    lacking: dict[int, list[Promise]] = {}
    for promise in promises(cloud):
        lacking.setdefault(promise.run, []).append(promise)
    Run.objects.filter(lacks(cloud), lacks_since__isnull=False).exclude(pk__in=lacking).update(lacks_since=None)
    Run.objects.filter(pk__in=lacking, lacks_since=None, applied_at__isnull=False).update(lacks_since=at)
    # The cloud was not told of it in time: it is away, or another run was first to mount a volume.
    unclaimed = Q(claim_token=None) | Q(claimed_until__lt=at)
    untold = Run.objects.filter(alive(cloud), unclaimed, placed_at__lte=at - PATIENCE, applied_at=None)
    untold.filter(~Exists(Task.objects.filter(run=OuterRef("pk")))).update(placed_at=None, layout={})
    late = Run.objects.filter(lacks(cloud), pk__in=lacking, lacks_since__lte=at - BLINK, applied_at__lte=at - BLINK)
    rows = late.order_by("pk").select_for_update(of=("self",), no_key=True)
    runs = list(rows.select_related("cluster__appcode"))
    pending = set(Task.objects.filter(run__in=runs, phase="Pending", node="").values_list("run_id", flat=True))
    lost = []
    for run in runs:
        missing = lacking[run.pk]
        held = sum(promise.held for promise in missing)
        if held and FRAMEWORKS[run.spec["framework"]].is_independent:
            continue
        if not run.layout:
            continue  # No node was known when it started, so it may go anywhere.
        if run.whole_at and run.pk not in pending:
            continue  # Its tasks have failed, and Kubernetes starts them again after a while.
        assert run.lacks_since
        assert run.applied_at
        cannot = any(_cannot(each, known, nodes) for each in missing)
        # Nothing is lost by a run that has not begun, or that has no task left. Others restart whole: Kubernetes allows no change
        # of the template of a Job, which names the nodes, so the lost task cannot be told of another.
        least = (REPAIR if run.whole_at and held else BLINK) if cannot else PATIENCE
        if at - max(run.lacks_since, run.applied_at) >= least:
            # Kubernetes may have a reason that the portal does not know, such as the number of pods of a node.
            elsewhere = not cannot and len(nodes) > 1
            run.avoided = sorted({node for promise in missing for node in promise.open}) if elsewhere else []
            lost.append(run)
    record_all([_lose(run, at) for run in lost])
    refresh(lost, at, unsaved=LOST)


def _cannot(promise: Promise, known: Known, nodes: Mapping[str, Node]) -> bool:
    """Whether what lacks a node cannot get it where it has its places: a node is gone, or others have taken the room."""
    able = 0
    for name, count in promise.open.items():
        node = nodes.get(name)
        if node is not None and node.ready and node.drained is not None:
            free = replace(node.drained, taints=node.whole.taints)  # A window that comes takes no places.
            able += free.less(known.taken.get(name, Sizes())).holds(replace(promise.tasks, count=count))
    return able < promise.lacks


@transaction.atomic
def _take_back(cloud: str, takes: Mapping[int, int]) -> None:
    """Takes runs off their cloud for others, which still wait. Whoever was asked to end meanwhile is left alone."""
    lock_until_commit(Lock.PLACES, cloud)
    at = timezone.now()
    rows = Run.objects.filter(alive(cloud), pk__in=takes, placed_at__isnull=False).order_by("pk")
    runs = list(rows.select_for_update(of=("self",), no_key=True).select_related("cluster__appcode"))
    takers = every_wait().filter(cloud=cloud, pk__in=takes.values()).select_related("cluster__appcode").in_bulk()
    taken = [run for run in runs if takes[run.pk] in takers]
    events = record_all([_taken(run, takers[takes[run.pk]], at) for run in taken])
    refresh(taken, at, unsaved=LOST)
    tell(list(zip(taken, events, strict=True)))


def _taken(run: Run, taker: Run, at: dt.datetime) -> Event:
    own = taker.cluster.appcode_id == run.cluster.appcode_id
    who = f"{taker.cluster.name}/{taker.number}, of a higher class," if own else "Another appcode"
    is_spare = run.priority_class == "spare"
    right = (
        "" if own else ", and this run is spare" if is_spare else " inside its quota, and this run has borrowed them"
    )
    why: Values = {"taker": f"{taker.cluster.name}/{taker.number}"} if own else {"spare" if is_spare else "borrowed": 1}
    its = held_by(run)
    loses = {"gpus": run.gpus, "seconds": its.unsaved(at), "saved": int(its.is_saved)}
    run.wait_code, run.wait_values = Code.TAKEN_BACK, {**loses, **why}
    said = f"{who} needs its GPUs{right}. {loss(loses)}"
    return take_off(run, at, "run.taken_back", said, lost=loses, checkpoint_at=its.saved and its.saved.isoformat())


def _lose(run: Run, at: dt.datetime) -> Event:
    """Has a run taken off its cloud that cannot get its places, and returns what to tell of it."""
    was_whole = run.whole_at is not None
    why = (
        "Some of its tasks lost their nodes and find no room there."
        if was_whole
        else "Not all of its tasks got a node where they had their places."
    )
    if run.blocked_message:
        why = f"{why} {run.blocked_message}"
    pause = dt.timedelta(0) if was_whole else pause_of(run)
    run.wait_code, run.wait_values = Code.GIVEN_BACK, {"whole": int(was_whole), "blocked": run.blocked_message[:500]}
    return take_off(run, at, "run.given_back", why, pause)


def pause_of(run: Run) -> dt.timedelta:
    """How long a run waits that could not take its places; twice as long each time."""
    times: int = 2 ** min(run.times_given_back, 10)
    return min(PAUSE * times, LONGEST_PAUSE)


def take_off(
    run: Run, at: dt.datetime, kind: str, why: str, pause: dt.timedelta = dt.timedelta(0), **more: Any
) -> Event:
    """Has a run taken off its cloud, and returns what to tell of it. It waits again as soon as nothing of it is left there."""
    run.times_given_back += 1
    run.given_back_at, run.not_before = at, at + pause
    run.wait_reason = _reason(run.gpus)
    run.wait_message = f"{why} It is taken off its nodes, holds nothing then, and waits again in its old place."
    transaction.on_commit(partial(wakeups.wake, run.pk))
    return run_event(kind, run, run.wait_message, **more)


def start_anew(run: Run, at: dt.datetime) -> None:
    """Changes a locked run that lost its places and of which nothing is left: it waits again, in its old order."""
    forget_tasks(run)
    run.endpoints, run.layout = {}, {}
    run.blocked_reason = run.blocked_message = ""
    run.placed_at = run.whole_at = run.lacks_since = run.given_back_at = run.applied_at = run.release_asked_at = None
    run.started_at = run.deadline = None
    run.phase, run.phase_since = Run.Phase.QUEUED, at
    transaction.on_commit(partial(wakeups.wake_places, run.cloud))


def forget_tasks(run: Run) -> None:
    """Changes a run that begins with first attempts again. What its pods used stays in the usage."""
    run.tasks.all().delete()
    run.storage_state = run.storage_message = run.data_warning = run.activity = ""
    run.read = {}


def _reason(gpus: int) -> str:
    return FOR_GPUS if gpus else FOR_ROOM
