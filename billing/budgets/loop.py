"""The loop that compares budgets with spending.

A turn reads all budgets, their steps and the month's sums, including usage that is not posted yet, in a fixed number of
queries. It writes the changes of `steps.next_steps` (steps, events and mail) in one transaction, so a killed turn has written
nothing. Two turns at once wait for each other's row locks; the second finds the work done. Announced steps are rows, which the
next turn finds. A measure is only recorded here: `clusters/` carries out `access.orders` as long as they are in force.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import cast

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from billing import mails
from billing.budgets import steps as budgets_steps
from billing.budgets.access import WHAT_TO_DO, appcodes_of, reason, steps_of
from billing.budgets.figures import Figures, figures, month_of
from billing.budgets.models import Budget, BudgetStep
from billing.budgets.steps import MARKS, Change, Mark, Measure
from billing.metering.segments import floor
from portal.events import entry, record_all
from portal.models import Event, User

STEP_FIELDS = ["announced_at", "due_at", "done_at", "lifted_at", "lifted_by"]


def turn(now: dt.datetime | None = None) -> int:
    """Writes and notifies the steps that are due; returns how many. May be killed, repeated and run twice at once."""
    moment = floor(now or timezone.now())
    rows = list(Budget.objects.select_related("appcode", "org_node").order_by("pk"))
    steps = steps_of(rows, month_of(moment))
    found = figures(rows, moment)
    due = [
        row.pk
        for row in rows
        if budgets_steps.next_steps(row.terms(moment), found[row.pk].spent, steps[row.pk], moment)
    ]
    return _settle(due, found, moment) if due else 0


@transaction.atomic
def _settle(due: Sequence[int], found: Mapping[int, Figures], now: dt.datetime, by: User | None = None) -> int:
    """Writes the due steps of these budgets, recomputed under a lock. `by` is the person whose change made them due,
    None for the portal."""
    # Two statements: in a locking query, joined rows are as old as the start of the wait for the lock.
    list(Budget.objects.select_for_update(no_key=True).filter(pk__in=due).order_by("pk").values_list("pk"))
    rows = list(Budget.objects.filter(pk__in=due).select_related("appcode", "org_node").order_by("pk"))
    month = month_of(now)
    steps = steps_of(rows, month)
    changes = [
        (row, change)
        for row in rows
        for change in budgets_steps.next_steps(row.terms(now), found[row.pk].spent, steps[row.pk], now)
    ]
    if not changes:
        return 0
    BudgetStep.objects.bulk_create(
        (
            BudgetStep(
                budget=row, month=month, kind=step.kind, announced_at=step.announced_at, due_at=step.due_at,
                done_at=step.done_at, lifted_at=step.lifted_at, lifted_by=by if step.lifted_at else None,
            )
            for row, step in ((row, change.step) for row, change in changes)
        ),
        update_conflicts=True,
        unique_fields=["budget", "month", "kind"],
        update_fields=STEP_FIELDS,
    )  # fmt: skip
    loud = [(row, change) for row, change in changes if change.verb != "note"]
    told = [_told(row, change, found[row.pk], month) for row, change in loud]
    record_all([_event(row, change, said, by) for (row, change), (said, _) in zip(loud, told, strict=True)])
    _mail([(row, change, *words) for (row, change), words in zip(loud, told, strict=True)], month, now)
    return len(changes)


VERBS = {"tell": "budget.told", "announce": "budget.announced", "act": "budget.acted", "take_back": "budget.taken-back"}


def _told(budget: Budget, change: Change, found: Figures, month: dt.date) -> tuple[str, str]:
    """What happened, as a one-line sentence and as more text for the mail."""
    step, who, amount = change.step, str(budget), f"{budget.amount:,.2f} {settings.CURRENCY}"
    why = reason(budget, month)
    spent = (
        f"{who} has spent {found.spent:,.2f} of {amount} in {month:%B %Y}. If it goes on like this, it will be "
        f"{found.forecast:,.2f} {settings.CURRENCY} when the month is over."
    )
    if change.verb == "tell":
        percent = MARKS[cast("Mark", step.kind)]
        return f"{who} has used {percent} % of its budget for {month:%B %Y} ({amount})", spent
    measure = cast("Measure", step.kind)
    if change.verb == "announce":
        said = f"{budgets_steps.will(measure, who)} at {step.due_at:%Y-%m-%d %H:%M} UTC: {why}"
        return said, f"{spent}\n\n{WHAT_TO_DO}"
    if change.verb == "act":
        stored = " What runs goes on." if measure == "block" else " Output is stored before a run ends."
        return f"{budgets_steps.does(measure, who)}: {why}", f"{spent}{stored}\n\n{WHAT_TO_DO}"
    again = " any more" if step.done_at else ""
    return f"{budgets_steps.does_not(measure, who)}{again}", spent


def _event(budget: Budget, change: Change, said: str, by: User | None) -> Event:
    """Only taking back is attributed to a person; notifications and measures are the portal's."""
    step, actor = change.step, by if change.verb == "take_back" else None
    return entry(
        VERBS[change.verb], actor=actor, object=f"budget {budget}", appcode=budget.appcode.code if budget.appcode else "",
        message=f"{said}.", kind=step.kind, due_at=step.due_at.isoformat(),
    )  # fmt: skip


def _mail(told: Sequence[tuple[Budget, Change, str, str]], month: dt.date, now: dt.datetime) -> None:
    """Queues mail to the addresses of the appcode, or of every appcode of the business line."""
    lines = appcodes_of({str(row) for row, *_ in told if row.org_node})
    letters = []
    for row, change, said, more in told:
        key = f"budget {row.pk} {month:%Y-%m} {change.step.kind} {change.verb} {int(now.timestamp())}"
        for appcode in [row.appcode] if row.appcode else lines[str(row)]:
            link = f"{settings.PORTAL_ORIGIN}/budgets/{row.pk}" if row.appcode else f"{settings.PORTAL_ORIGIN}/billing"
            letters.append(
                mails.Letter(f"{key} {appcode.pk}", appcode.pk, said[:200], f"{said}.\n\n{more}\n\n{link}\n")
            )
    mails.queue(letters, now)


def settle_one(budget: Budget, now: dt.datetime, by: User | None) -> None:
    """Applies a change of the budget at once: a raised amount unblocks immediately."""
    _settle([budget.pk], figures([budget], now), now, by)
