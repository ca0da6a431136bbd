"""Which runs count against the limit of their appcode, and which wait for it: urgent ones first, then those of the person who
holds least (`admission.order.by_person`).

The limit is the quota and what the appcode may borrow beyond it; where the portal does not place runs, nothing can be taken back,
so the limit is the quota. Spare runs count against nothing.

Decisions are made under the lock of the appcode's row, so that two runs are never admitted to the same GPUs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from billing.budgets.access import why_blocked
from clusters.admission.codes import Code, Values
from clusters.admission.order import PriorityClass, by_person
from clusters.catalog.admission import MOST_NAMED, Held, Holder, Quota, judge_quota
from clusters.catalog.data import why_not_read
from clusters.clouds.placement import gpu_limit
from clusters.hooks.models import HookRun
from clusters.manifest.input import input_of
from clusters.runs import due_hooks
from clusters.runs.models import Cluster, Run
from clusters.runs.placing.known import by_class, without
from clusters.runs.placing.rights import SPARE
from clusters.runs.status import history
from clusters.runs.status.phase import TERMINAL
from clusters.runs.status.phase_update import refresh
from portal.models import Appcode

COUNTS = Q(gpus__gt=0) & ~SPARE
# Number of an appcode's waiting runs that one pass checks and gives their places.
QUEUE_LIMIT = 100
JOINED = ("cluster__appcode", "source__cluster")
BUDGET = "BudgetUsedUp"
UNREAD = "WaitingForInput"
UNHOOKED = "WaitingForHook"
# Reasons for which the portal itself holds a run back, until `admit_waiting` admits it. Other reasons end by themselves.
HELD = ("QuotaExceeded", "AppcodeDisabled", "AppcodeExpired", BUDGET, UNREAD, UNHOOKED)


@transaction.atomic
def admit(run_id: int) -> bool:
    """Admits the run against its appcode's quota, or notes what it waits for. Returns whether it may start. Locks the appcode."""
    appcodes = Appcode.objects.select_for_update(of=("self",), no_key=True).select_related("org_node")
    appcode = appcodes.get(clusters__runs=run_id)
    run = Run.objects.select_for_update(of=("self",), no_key=True).select_related(*JOINED).get(pk=run_id)
    if run.desired != Run.Desired.RUNNING or run.verdict or run.admitted_at is not None:
        return run.desired == Run.Desired.RUNNING and not run.verdict
    in_use, before = Held(), list[int]()
    if counted(run):  # one without GPUs waits for no other run
        in_use, before = held(appcode.pk), ahead(appcode.pk, gpu_limit(appcode, run.cloud), run)
    _save_judged([run] if _judge(run, appcode, in_use, before, barred(appcode)) else [])
    return run.admitted_at is not None


@transaction.atomic
def admit_waiting(appcode_id: int) -> list[int]:
    """Admits the waiting runs of an appcode that fit now, in order, and updates the places of the others.

    Returns the ids of the admitted runs. Runs without GPUs do not wait for others, so they are checked apart from the queue.
    """
    appcodes = Appcode.objects.select_for_update(of=("self",), no_key=True).select_related("org_node")
    appcode = appcodes.get(pk=appcode_id)
    bar = barred(appcode)
    queue = [each.run for each in turns(appcode_id, most=QUEUE_LIMIT)[:QUEUE_LIMIT]]
    others = waiting(appcode_id).exclude(COUNTS).values_list("pk", flat=True)[:QUEUE_LIMIT]
    rows = Run.objects.filter(waits(timezone.now()), pk__in=[*queue, *others]).order_by("pk")
    rows = rows.select_for_update(of=("self",), no_key=True)
    in_use, before, changed = held(appcode_id), list[int](), list[Run]()
    found = {run.pk: run for run in rows.select_related(*JOINED)}
    for run in (found[pk] for pk in [*queue, *others] if pk in found):
        if _judge(run, appcode, in_use, before, bar):
            changed.append(run)
        if run.admitted_at is not None:
            in_use += Holder(f"{run.cluster.name}/{run.number}", counted(run))
        elif 0 < counted(run) <= gpu_limit(appcode, run.cloud) and not run.refusal:
            before.append(run.gpus)
    _save_judged(changed)
    return [run.pk for run in changed if run.admitted_at is not None]


def barred(appcode: Appcode) -> tuple[str, str]:
    """Why no run of `appcode` may start, as a reason and a sentence; two empty strings if they may. One query."""
    if sentence := appcode.why_not:
        reason = "AppcodeExpired" if appcode.expired else "AppcodeDisabled"
        return reason, f"{sentence} It starts when the appcode can be used again."
    sentence = why_blocked(appcode)
    return (BUDGET, f"{sentence} It starts then.") if sentence else ("", "")


def _judge(run: Run, appcode: Appcode, in_use: Held, before: list[int], bar: tuple[str, str]) -> bool:
    """Admits a locked run of a locked appcode, or notes why not. True on a change. A run above the quota holds up no other."""
    was = (run.admitted_at, run.wait_reason, run.wait_message)
    hook = ""
    always = reads_always(run.spec)
    unread = why_unread(run.source, always=always) if run.source else ("", "")
    if run.source and unread[0]:
        run.refusal = why_not_read(run.source, always=always)
        run.wait_reason, run.wait_message = ("", "") if run.refusal else unread
    elif bar[0]:
        run.wait_reason, run.wait_message = bar
    elif any(by_hook := due_hooks.before(run)):
        hook, run.refusal = by_hook
        run.wait_reason, run.wait_message = (UNHOOKED, f"It waits for its hook {hook}.") if hook else ("", "")
    else:
        judgement = judge_quota(counted(run), limits(appcode, gpu_limit(appcode, run.cloud), in_use, before))
        run.wait_reason, run.wait_message = judgement.reason, judgement.message
        run.admitted_at = timezone.now() if judgement.fits == "now" else None
    most = gpu_limit(appcode, run.cloud)
    run.wait_code, run.wait_values = _told(run, hook, limits(appcode, most, in_use, before))
    return was != (run.admitted_at, run.wait_reason, run.wait_message)


def limits(appcode: Appcode, most: int, in_use: Held, before: Sequence[int]) -> Quota:
    """`most`: what it may hold where the run would be."""
    return Quota(appcode.code, most, in_use, before, borrow=most - appcode.gpu_quota)


def _told(run: Run, hook: str, quota: Quota) -> tuple[str, Values]:
    """The code and the values of what a judged run waits for."""
    if run.wait_reason == UNREAD and run.source:
        return Code.INPUT, read_of(run.source, always=reads_always(run.spec))
    if run.wait_reason == UNHOOKED:
        return Code.HOOK, {"hook": hook}
    if run.wait_reason == "QuotaExceeded":
        code = Code.OVER_LIMIT if run.gpus > quota.limit else Code.QUOTA
        place = len(quota.queue) + 1 if quota.queue else 0
        told = {"gpus": run.gpus, "quota": quota.limit, "held": quota.held.gpus, "place": place}
        return code, told | ({"borrow": quota.borrow} if quota.borrow else {})
    return history.of_wait(run.wait_reason, run.wait_message)


def read_of(source: Run, *, always: bool) -> Values:
    """The values of a wait for the output of `source`."""
    return {"cluster": source.cluster.name, "run": source.number, "always": int(always)}


def _save_judged(runs: list[Run]) -> None:
    if runs:
        refresh(runs, timezone.now(), unsaved=["admitted_at", "wait_reason", "wait_message", "refusal"])


def why_unread(source: Run, *, always: bool = False) -> tuple[str, str]:
    """Why a run that reads the output of `source` cannot start, as a reason and a sentence; two empty strings if it can. With
    `always` it reads the output whether `source` succeeded or not."""
    if source.phase == Run.Phase.SUCCEEDED or (always and source.is_terminal):
        return "", ""
    ended = "ended" if always else "succeeded"
    return (
        UNREAD,
        f"It reads the output of run {source.cluster.name}/{source.number} and starts when that has {ended}.",
    )


def reads_always(spec: Mapping[str, Any]) -> bool:
    said = input_of(spec)
    return said is not None and said.when == "always"


def held(appcode_id: int, but: Cluster | None = None) -> Held:
    """The GPUs that count against an appcode's limit: those of runs that are admitted and not gone, but for those of `but`. One
    query."""
    runs = Run.objects.filter(COUNTS, cluster__appcode=appcode_id, gone=False, admitted_at__isnull=False)
    runs = runs.filter(without(but))
    rows = runs.annotate(sum=Window(Sum("gpus")), count=Window(Count("pk"))).order_by("-gpus", "pk")
    found = list(rows.values_list("cluster__name", "number", "gpus", "sum", "count")[:MOST_NAMED])
    if not found:
        return Held()
    largest = tuple(Holder(f"{name}/{number}", gpus) for name, number, gpus, _, _ in found)
    return Held(found[0][3], largest, found[0][4] - len(found))


def enough(run: Run) -> int:
    """The GPU limit with which a waiting run would start despite what others hold and wait for before it. Three queries."""
    appcode = run.cluster.appcode
    before = ahead(appcode.pk, gpu_limit(appcode, run.cloud), run)
    return held(appcode.pk).gpus + sum(before) + counted(run)


def waiting(appcode_id: int) -> QuerySet[Run]:
    """Runs of an appcode that only the portal keeps from starting, in order. Runs scheduled for later hold up nobody."""
    return Run.objects.filter(waits(timezone.now()), cluster__appcode=appcode_id).order_by(by_class(), "pk")


@dataclass(frozen=True)
class Turn:
    """A run that waits for the limit of its appcode. `person`: who started it, by id."""

    run: int
    gpus: int
    priority_class: PriorityClass = "normal"
    person: str = ""
    appcode: str = ""  # They are all of one.


def turns(appcode_id: int, but: Cluster | None = None, also: Turn | None = None, most: int | None = None) -> list[Turn]:
    """The runs that wait for the limit of an appcode, in order; `also`: one more, the youngest. Runs of `but` will be over.
    `most`: only so many of the first are needed. Two queries, one where none waits for another."""
    rows = waiting(appcode_id).filter(COUNTS, without(but)).order_by("pk")
    if most is not None:
        # Those of one person and class keep their order, so later ones of these are not among the first.
        own = Window(RowNumber(), partition_by=[F("created_by"), F("priority_class")], order_by=F("pk").asc())
        rows = rows.annotate(turn=own).filter(turn__lte=most)
    columns = rows.values_list("pk", "gpus", "priority_class", "created_by")
    found = [Turn(pk, gpus, stored, str(person or "")) for pk, gpus, stored, person in columns]
    found += [also] if also else []
    if len(found) < 2:
        return found
    counting = Run.objects.filter(COUNTS, without(but), cluster__appcode=appcode_id, gone=False)
    sums = counting.filter(admitted_at__isnull=False).order_by().values_list("created_by").annotate(Sum("gpus"))
    return by_person(found, {str(person or ""): gpus for person, gpus in sums})


def ahead(
    appcode_id: int,
    limit: int,
    run: Run | None = None,
    priority_class: PriorityClass = "normal",
    but: Cluster | None = None,
    person: int | None = None,
) -> list[int]:
    """The GPUs of each waiting run of an appcode that is before `run`, or before a new one of that class and person. Runs of
    `but` will be over. Two queries."""
    of = person if run is None else run.created_by_id
    mine = Turn(0, 0, run.priority_class if run else priority_class, str(of or ""))
    mine = replace(mine, run=run.pk, gpus=run.gpus) if run else mine
    every = turns(appcode_id, but, None if run else mine)
    names = [each.run for each in every]
    before = every[: names.index(mine.run)] if mine.run in names else every
    return [each.gpus for each in before if each.gpus <= limit]


def counted(run: Run) -> int:
    """Its GPUs that count against the limit."""
    return 0 if run.priority_class == "spare" else run.gpus


def waits(at: dt.datetime) -> Q:
    """Runs that only the portal keeps from starting at `at`: their input is complete, and no hook before them is pending."""
    written = ~Exists(Run.objects.filter(pk=OuterRef("source_id")).exclude(phase__in=TERMINAL))
    undone = Q(did=None, message="") | (Q(did__isnull=False) & ~Q(did__phase__in=TERMINAL))
    hooked = ~Exists(HookRun.objects.filter(undone, run=OuterRef("pk"), before=True))
    return (
        Q(gone=False, admitted_at=None, desired="running", verdict="", refusal="")
        & (Q(not_before=None) | Q(not_before__lte=at))
        & Q(written)
        & Q(hooked)
    )
