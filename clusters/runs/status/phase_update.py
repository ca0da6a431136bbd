"""Rows → `phase` → rows: recomputes the phase of runs whose facts changed, and the readiness and cost that lists show.

Called by all code that changes a fact (a user's action, the reconcile loop, the watch), in the transaction of that change, so
that the displayed phase never contradicts the rows behind it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence, Set
from dataclasses import fields
from decimal import Decimal
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Max, Min, Q

from billing.efficiency.waste import note_outcome
from billing.sums.totals import totals
from clusters import wakeups
from clusters.clouds.kinds import OWN
from clusters.events import run_event
from clusters.frameworks import FRAMEWORKS
from clusters.runs.due_hooks import note_due
from clusters.runs.models import Run, Task
from clusters.runs.status import history
from clusters.runs.status.notifications import tell
from clusters.runs.status.phase import ORDERED, TROUBLES, RunState, TaskState, next_phase
from portal.db.bulk_update import update_rows
from portal.events import record_all
from portal.models import Event
from portal.text.zones import utc_text

FIELDS = [
    "phase", "reason", "message", "phase_since", "verdict", "verdict_reason", "verdict_message", "started_at", "deadline",
    "finished_at", "look_at", "roles", "usage_as_of", "gpu_seconds", "gpu_rate", "cost", "cost_rate", "wait_code", "wait_values",
    "noted", "end_announced_at",
]  # fmt: skip
RECOUNT = dt.timedelta(minutes=1)
# Precision of a cost in its column.
SMALLEST = Decimal("1e-9")
# What a task is judged by.
FACTS = [each.name for each in fields(TaskState)]
# A sentence about several tasks quotes the first in this order.
IN_ORDER = ("role", "index", "-attempt")
# Running and not in trouble (`TaskState.is_in_trouble`).
STEADY = Q(phase="Running") & ~Q(reason__in=TROUBLES)


def consumer(run: Run) -> str:
    """The key under which billing knows a run."""
    return f"run {run.pk}"


def refresh(
    runs: Sequence[Run], now: dt.datetime, metered: Set[str] | None = None, unsaved: Sequence[str] = ()
) -> None:
    """Recomputes `runs` (locked rows of this transaction) at `now`, in a number of queries that does not grow with them.

    `metered` has the billing keys of runs whose usage may differ from their rows, None means all. The usage of other runs follows
    from their rows, except for times ahead of this clock, so it is added up again after RECOUNT. The caller saves its unsaved
    changes of facts, or names them in `unsaved` to have them saved here; then `metered` is None. A new verdict wakes the loop on
    commit to end the run; a run that is over wakes those of its appcode that wait for quota.
    """
    before = {run.pk: _kept(run) for run in runs}
    phases = {run.pk: run.phase for run in runs}
    steady, others = _tasks_of(runs)
    paused = []
    for run in runs:
        state = state_of(run)
        # Tasks of a run that loses its places end because of that.
        seen = ([], {}) if run.given_back_at else (others[run.pk], steady[run.pk])
        decision = next_phase(state, *seen)
        if decision.verdict and not run.verdict:
            if run.claimed_until is not None and run.claim_token is None:
                # A pause after trouble with starting or re-applying the run was not meant for its end.
                paused.append(run.pk)
            transaction.on_commit(lambda pk=run.pk: wakeups.wake(pk))  # type: ignore[misc]
            if state.at_once and (whole := run.cluster.part_of):
                # Trials that share a run are over with their tasks; cleaning up the whole run may take a while.
                transaction.on_commit(partial(wakeups.wake_whole, run.cluster.appcode_id, whole))
        if not run.verdict:
            # Kept from the verdict on: a success must not look half ready because its parameter servers were ended.
            run.roles = {role: {**facts, "ready": decision.ready.get(role, 0)} for role, facts in run.roles.items()}
        run.phase, run.reason, run.message = decision.phase, decision.reason, decision.message
        run.verdict, run.verdict_reason, run.verdict_message = (
            decision.verdict, decision.verdict_reason, decision.verdict_message,
        )  # fmt: skip
    if paused:
        Run.objects.filter(pk__in=paused).update(claimed_until=None)
    moved = [run for run in runs if run.phase != phases[run.pk]]
    # A run of which no task was ever seen has used nothing.
    counted = [run for run in runs if run.usage_as_of or steady[run.pk] or others[run.pk]]
    if metered is not None:
        known = {
            run.pk
            for run in runs
            if run.phase == phases[run.pk] and run.usage_as_of and run.usage_as_of > now - RECOUNT
        }
        counted = [run for run in counted if run.pk not in known or consumer(run) in metered]
    money = totals([consumer(run) for run in counted], now) if counted else {}
    for run in counted:
        usage = money[consumer(run)]
        run.usage_as_of, run.gpu_seconds, run.gpu_rate = now, usage.gpu_seconds, usage.gpu_rate
        run.cost, run.cost_rate = usage.cost, usage.cost_rate
    told = []
    for run in moved:
        run.phase_since = now
        told.append((run, _phase_changed(run, now)))
    if told:
        tell(told)
        note_due(run for run in moved if run.is_terminal)
    history.note(runs, now)
    # With `metered` None the caller may have changed rows in ways not seen here, so all are written.
    update_rows(runs if metered is None else [run for run in runs if _kept(run) != before[run.pk]], [*FIELDS, *unsaved])


def _kept(run: Run) -> list[Any]:
    return [getattr(run, name) for name in FIELDS]


def _tasks_of(runs: Sequence[Run]) -> tuple[dict[int, dict[str, int]], dict[int, list[TaskState]]]:
    """For each run, the number of steady tasks by role, and the states of the others. Of thousands of tasks nearly all are
    steady. A role of a run with restarted tasks has no count, because only each task's newest attempt may count."""
    steady: dict[int, dict[str, int]] = {run.pk: {} for run in runs}
    others: dict[int, list[TaskState]] = {run.pk: [] for run in runs}
    tasks = Task.objects.filter(run__in=runs).order_by()
    counts = tasks.values("run_id", "role").annotate(
        last=Max("attempt"), steady=Count("pk", filter=STEADY), all=Count("pk")
    )
    again, quiet = set(), True
    for run_id, role, last, count, of in counts.values_list("run_id", "role", "last", "steady", "all"):
        steady[run_id][role] = count
        quiet = quiet and count == of and not last
        if last:
            again.add(run_id)
    if quiet:
        return steady, others
    steady |= {run_id: {} for run_id in again}
    # Tuples instead of model objects, as little of each task is needed.
    for run_id, *facts in tasks.filter(~STEADY | Q(run__in=again)).order_by(*IN_ORDER).values_list("run_id", *FACTS):
        others[run_id].append(TaskState(*facts))
    return steady, others


def _phase_changed(run: Run, now: dt.datetime) -> Event:
    if run.phase == Run.Phase.QUEUED and run.reason in ORDERED:
        # It was taken back: its time limit does not count while it waits, and begins anew with it.
        run.started_at = run.deadline = None
    if run.phase == Run.Phase.RUNNING and run.started_at is None:
        run.started_at = now
        limit = run.spec.get("timeLimit")
        run.deadline = now + dt.timedelta(seconds=limit) if limit else None
        run.end_announced_at = None  # If it was taken back, that of the earlier limit.
        # Replicas are not checked for idleness: the loop of their service decides how many it needs.
        run.look_at = now if run.spec["mode"] == "service" and not run.cluster.is_replica else None
    if run.is_terminal:
        run.finished_at = now
        if run.started_at is None and (began := run.tasks.aggregate(at=Min("started_at"))["at"]):
            # It was over before it was seen running.
            run.started_at = min(began, now)
        note_outcome(consumer(run), run.cluster.appcode_id, run.phase, run.reason, now)
        transaction.on_commit(lambda: wakeups.wake_waiting(run.cluster.appcode_id))
        if run.placed_at and not run.whole_at:
            # Nothing at the cloud changes where it ends before its tasks had nodes.
            transaction.on_commit(lambda: wakeups.wake_places(run.cloud))
        if whole := run.cluster.part_of:
            transaction.on_commit(lambda: wakeups.wake_whole(run.cluster.appcode_id, whole))
        if run.cluster.next_by_id:
            transaction.on_commit(lambda: wakeups.wake_next(run.cluster_id))
        if run.cluster.deleted_at:
            transaction.on_commit(lambda: wakeups.wake_purge(run.cluster_id))
    message = f"Run {run.number} {run.phase}. {run.message}".strip()
    [event] = record_all([run_event(f"run.{run.phase.lower()}", run, message, reason=run.reason, **_measured(run))])
    return event


def _measured(run: Run) -> dict[str, Any]:
    """Figures in events for programs that follow runs: what the run holds from its start, and at its end what it held and cost.

    The cost is unrounded and at current prices; late reports, discounts and rounding are only in the invoice.
    """
    if run.started_at is None and not run.is_terminal:
        return {}
    found: dict[str, Any] = {"gpus": run.gpus, "started_at": utc_text(run.started_at) if run.started_at else None}
    if run.is_terminal:
        found |= {
            "finished_at": utc_text(run.finished_at) if run.finished_at else None, "gpu_seconds": run.gpu_seconds,
            "cost": f"{run.cost.quantize(SMALLEST).normalize():f}", "currency": settings.CURRENCY,
        }  # fmt: skip
    return found


def state_of(run: Run) -> RunState:
    return RunState(
        phase=run.phase,  # type: ignore[arg-type]
        counts={role: facts["count"] for role, facts in run.roles.items()},
        mode=run.spec["mode"],
        awaited=FRAMEWORKS[run.spec["framework"]].completion(run.spec["completion"]).role,
        retries=run.spec["retries"],
        independent=FRAMEWORKS[run.spec["framework"]].is_independent,
        at_once=max((role.get("atOnce") or 0 for role in run.spec["roles"].values()), default=0),
        desired=run.desired,
        stop_reason=run.stop_reason,
        stop_message=run.stop_message,
        wait_reason=run.wait_reason,
        wait_message=run.wait_message,
        refusal=run.refusal,
        verdict=run.verdict,  # type: ignore[arg-type]
        verdict_reason=run.verdict_reason,
        verdict_message=run.verdict_message,
        storage_state=run.storage_state,
        storage_message=run.storage_message,
        gone=run.gone,
        stored=run.stored,
        blocked_reason=run.blocked_reason,
        blocked_message=run.blocked_message,
        gone_message=run.gone_message,
        gpus={} if run.cloud in OWN else {role: held["gpus"] for role, held in run.resources.items()},
        unanswered=tuple(name for name in sorted(run.cluster.origins) if not run.endpoints.get(name, {}).get("routed")),
    )
