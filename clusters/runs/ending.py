"""How a run is ended, by a person, a time limit or a budget: written down only, `reconcile` tells the cloud."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from clusters import wakeups
from clusters.events import run_event
from clusters.models import Run
from clusters.phase import TERMINAL
from clusters.runs.status import refresh
from portal.events import record_all

SPANS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def ask_to_end(run: Run, reason: str, message: str) -> None:
    """Asks for the end of a run, whose row is locked in this transaction and has its cluster and appcode."""
    run.desired, run.stop_reason, run.stop_message = Run.Desired.ENDED, reason, message
    run.wait_reason = run.wait_message = ""
    if run.admitted_at is None:
        # No cloud has ever heard of it, and none will (`reconcile` admits only what is wanted): it is over now.
        run.gone = True
        _end_hook_before(run)
    if run.claim_token is None:
        # Nobody works on it; a pause after trouble with the cloud was not meant for this.
        run.claimed_until = None
    wanted = ["desired", "stop_reason", "stop_message", "wait_reason", "wait_message", "gone", "claimed_until"]
    refresh([run], timezone.now(), unsaved=wanted)
    transaction.on_commit(lambda: wakeups.wake(run.pk))


def _end_hook_before(run: Run) -> None:
    """What is done before a run is of no use without it. There is one at most, and its row comes after that of the run, as
    everywhere where several are locked."""
    rows = Run.objects.select_for_update(of=("self",), no_key=True).select_related("cluster__appcode")
    living = rows.filter(does__run=run, does__before=True, desired=Run.Desired.RUNNING).exclude(phase__in=TERMINAL)
    for hook in living:
        ask_to_end(
            hook, "Cancelled", f"Run {run.cluster.name}/{run.number}, before which it was to be done, was ended."
        )


def end_by_portal(run: Run, reason: str, message: str) -> None:
    """The same for a reason of the portal's own, such as its time limit."""
    ask_to_end(run, reason, message)
    record_all([run_event("run.ended", run, message)])


def span(seconds: int) -> str:
    """A length of time as people say it, exactly: 90 seconds, 5 minutes, 1 hour, 2 days."""
    size, unit = next((size, unit) for size, unit in SPANS if seconds % size == 0)
    return f"{seconds // size} {unit}" + ("" if seconds == size else "s")
