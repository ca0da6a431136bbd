"""Ends a run for a user, a time limit or a budget. Only stores the decision; `reconcile` calls the cloud."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from clusters import wakeups
from clusters.events import run_event
from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL
from clusters.runs.status.phase_update import refresh
from portal.events import record_all

SPANS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def ask_to_end(run: Run, reason: str, message: str) -> None:
    """Records that a run is to end. Its row must be locked in this transaction and have its cluster and appcode."""
    run.desired, run.stop_reason, run.stop_message = Run.Desired.ENDED, reason, message
    run.wait_reason = run.wait_message = ""
    if run.admitted_at is None:
        # The cloud never got this run and never will (`reconcile` admits only runs that are to run), so it is over now.
        run.gone = True
        _end_hook_before(run)
    if run.claim_token is None:
        # No worker holds it. A pause after trouble with the cloud applies to starting the run, not to ending it.
        run.claimed_until = None
    wanted = ["desired", "stop_reason", "stop_message", "wait_reason", "wait_message", "gone", "claimed_until"]
    refresh([run], timezone.now(), unsaved=wanted)
    transaction.on_commit(lambda: wakeups.wake(run.pk))


def _end_hook_before(run: Run) -> None:
    """Ends the hook that was to be done before this run, as it has no use without the run. At most one is alive. Its row is
    locked after the run's row, the order used everywhere."""
    rows = Run.objects.select_for_update(of=("self",), no_key=True).select_related("cluster__appcode")
    living = rows.filter(does__run=run, does__before=True, desired=Run.Desired.RUNNING).exclude(phase__in=TERMINAL)
    for hook in living:
        ask_to_end(
            hook, "Cancelled", f"Run {run.cluster.name}/{run.number}, before which it was to be done, was ended."
        )


def end_by_portal(run: Run, reason: str, message: str) -> None:
    """`ask_to_end` for a reason of the portal, such as the time limit. Records an event, too."""
    ask_to_end(run, reason, message)
    record_all([run_event("run.ended", run, message)])


def span(seconds: int) -> str:
    """A duration in its largest exact unit: 90 seconds, 5 minutes, 1 hour, 2 days."""
    size, unit = next((size, unit) for size, unit in SPANS if seconds % size == 0)
    return f"{seconds // size} {unit}" + ("" if seconds == size else "s")
