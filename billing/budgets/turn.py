"""Budgets against what is really spent: the turn that tells and takes measures, and what people do to a budget.

A turn reads all budgets, their steps and the sums of the month, what waits for posting included, in a fixed number of queries,
and writes what `steps.next_steps` says in one transaction: steps, events and mail. Whoever is killed has written nothing,
two at once wait for each other's rows and find it done, and what was announced is in a row that the next turn finds. What is
taken as a measure is only written down here: whoever runs things reads `access.orders`, as long as they stand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from billing import mails, periods
from billing.budgets import steps as budgets_steps
from billing.budgets.access import WHAT_TO_DO, appcodes_of, reason, steps_of
from billing.budgets.figures import Figures, figures, month_of
from billing.budgets.models import MAX_REASON, Budget, BudgetStep
from billing.budgets.steps import MARKS, POLICIES, Change, Mark, Measure, Policy
from billing.metering.segments import floor
from portal.access import MANAGE, appcode_for, appcodes_for, require, require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import entry, record_all
from portal.models import Appcode, Event, OrgNode, User
from portal.specs import MAX_BUDGET

STEP_FIELDS = ["announced_at", "due_at", "done_at", "lifted_at", "lifted_by"]


# The turn


def turn(now: dt.datetime | None = None) -> int:
    """Tells and does what is due, and says how many steps were written. May be killed, repeated and run twice at once."""
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
    """Writes what is due of these budgets, as they and their steps are now that nobody else changes them. `by` is who did
    what made it due, None for the portal."""
    # Two statements: what is joined to a row that had to be waited for is as old as the wait.
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
    """What happened, in a line, and what more there is to say in a mail."""
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
    """A person lets something be taken back; what is told and done is the portal's."""
    step, actor = change.step, by if change.verb == "take_back" else None
    return entry(
        VERBS[change.verb], actor=actor, object=f"budget {budget}", appcode=budget.appcode.code if budget.appcode else "",
        message=f"{said}.", kind=step.kind, due_at=step.due_at.isoformat(),
    )  # fmt: skip


def _mail(told: Sequence[tuple[Budget, Change, str, str]], month: dt.date, now: dt.datetime) -> None:
    """To the addresses of the appcode, or of every appcode of the business line."""
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


def _settle_one(budget: Budget, now: dt.datetime, by: User | None) -> None:
    """What a change of the budget means is done with it: a raised amount unblocks at once."""
    _settle([budget.pk], figures([budget], now), now, by)


# What people do


@dataclass(frozen=True)
class Asked:
    """What a form or a request says a budget is to be."""

    amount: Decimal
    policy: str
    countdown_minutes: int


def check(asked: Asked) -> None:
    """Raises Invalid with paths amount, policy, countdownMinutes."""
    errors = []
    fits = asked.amount.is_finite() and 0 < asked.amount <= MAX_BUDGET
    if not fits or asked.amount != asked.amount.quantize(Decimal("0.01")):
        errors.append(FieldError(("amount",), f"Give an amount from 0.01 to {MAX_BUDGET:,}, with two digits at most."))
    if asked.policy not in POLICIES:
        errors.append(FieldError(("policy",), f"Choose one of {', '.join(POLICIES)}."))
    longest = budgets_steps.MAX_COUNTDOWN // dt.timedelta(minutes=1)
    if not 1 <= asked.countdown_minutes <= longest:
        errors.append(FieldError(("countdownMinutes",), f"Give from 1 minute to 7 days ({longest} minutes)."))
    if errors:
        raise Invalid(errors)


def scope_of(code: str, line: str, user: User) -> Appcode | OrgNode:
    """Whom a budget is to be for. Raises Invalid with paths appcode, businessLine; PermissionDenied for an appcode that is
    theirs, but not to set budgets of."""
    if bool(code) == bool(line):
        raise Invalid.at("appcode", message="Choose an appcode or a business line.")
    if code:
        appcode = appcodes_for(user).filter(code=code).first()
        if appcode is None:
            raise Invalid.at("appcode", message=f"There is no appcode “{code}” that you can see.")
        require(user, appcode, MANAGE)
        return appcode
    if not user.is_administrator:
        raise Invalid.at("businessLine", message="Only administrators set budgets of business lines.")
    node = OrgNode.objects.filter(path=line).exclude(namespace=None).first()
    if node is None:
        raise Invalid.at("businessLine", message=f"There is no business line “{line}”.")
    return node


@transaction.atomic
def add(scope: Appcode | OrgNode, asked: Asked, *, acting_user: User) -> Budget:
    """Raises Invalid, also for a scope that has one."""
    if isinstance(scope, Appcode):
        require(acting_user, scope, MANAGE)
    else:
        require_administrator(acting_user)
    check(asked)
    now = floor(timezone.now())
    try:
        with transaction.atomic():
            budget = Budget.objects.create(
                appcode=scope if isinstance(scope, Appcode) else None,
                org_node=scope if isinstance(scope, OrgNode) else None,
                amount=asked.amount, policy=asked.policy, countdown_minutes=asked.countdown_minutes,
                by_administrator=acting_user.is_administrator, set_by=acting_user, set_at=now,
            )  # fmt: skip
    except IntegrityError as error:
        if "_key" not in str(error) and "unique" not in str(error):
            raise
        path = "appcode" if isinstance(scope, Appcode) else "businessLine"
        raise Invalid.at(path, message=f"{scope} has a budget already; change that one.") from error
    _record("budget.set", budget, acting_user, f"Set: {_words(budget)}.")
    _settle_one(budget, now, acting_user)
    return budget


def grant(appcode: Appcode, amount: Decimal, acting_user: User) -> None:
    """The monthly amount that an administrator approved. A new budget blocks new runs when it is used up, one that is there
    keeps its policy. To be called in the transaction of the approval."""
    found = Budget.objects.filter(appcode=appcode).first()
    if found is None:
        add(appcode, Asked(amount, "block", 60), acting_user=acting_user)
    elif found.amount != amount:
        change(found, Asked(amount, found.policy, found.countdown_minutes), acting_user=acting_user)


@transaction.atomic
def change(budget: Budget, asked: Asked, *, acting_user: User) -> Budget:
    """From now on; an administrator's change makes it the administrators'."""
    row = _locked(budget, acting_user)
    check(asked)
    now = floor(timezone.now())
    before = _words(row)
    row.amount, row.policy, row.countdown_minutes = asked.amount, asked.policy, asked.countdown_minutes
    row.by_administrator = row.by_administrator or acting_user.is_administrator
    row.set_by, row.set_at = acting_user, now
    row.save()
    if _words(row) != before:
        _record("budget.changed", row, acting_user, f"Changed: {_words(row)}; it was {before}.")
    _settle_one(row, now, acting_user)
    return row


@transaction.atomic
def remove(budget: Budget, *, acting_user: User) -> None:
    row = _locked(budget, acting_user)
    _record("budget.removed", row, acting_user, f"Removed; it was {_words(row)}.")
    row.delete()


@transaction.atomic
def lift(budget: Budget, why: str, *, acting_user: User) -> None:
    """No measures until the month is over; what was taken is taken back at once. It goes on telling."""
    row, why = _administered(budget, acting_user), _reason(why)
    now = floor(timezone.now())
    if row.is_lifted(now):
        raise Conflict("It is lifted already.")
    row.lifted_until, row.lifted_at, row.lifted_by, row.lift_reason = periods.month(now).until, now, acting_user, why
    row.save(update_fields=["lifted_until", "lifted_at", "lifted_by", "lift_reason"])
    _record("budget.lifted", row, acting_user, f"Lifted until the end of {now:%B}: {why}")
    _settle_one(row, now, acting_user)


@transaction.atomic
def enforce(budget: Budget, *, acting_user: User) -> None:
    """Ends a lift; what is due then is announced again before it is done."""
    row = _administered(budget, acting_user)
    now = floor(timezone.now())
    if not row.is_lifted(now):
        raise Conflict("It is not lifted.")
    row.lifted_until = row.lifted_at = row.lifted_by = None
    row.lift_reason = ""
    row.save(update_fields=["lifted_until", "lifted_at", "lifted_by", "lift_reason"])
    _record("budget.enforced", row, acting_user, "It is not lifted any more.")
    _settle_one(row, now, acting_user)


@transaction.atomic
def pause(budget: Budget, why: str, *, acting_user: User) -> None:
    """It neither tells nor takes measures, for any time; what was taken is taken back at once."""
    row, why = _administered(budget, acting_user), _reason(why)
    now = floor(timezone.now())
    if row.paused_at is not None:
        raise Conflict("It is paused already.")
    row.paused_at, row.paused_by, row.pause_reason = now, acting_user, why
    row.save(update_fields=["paused_at", "paused_by", "pause_reason"])
    _record("budget.paused", row, acting_user, f"Paused: {why}")
    _settle_one(row, now, acting_user)


@transaction.atomic
def resume(budget: Budget, *, acting_user: User) -> None:
    row = _administered(budget, acting_user)
    if row.paused_at is None:
        raise Conflict("It is not paused.")
    row.paused_at = row.paused_by = None
    row.pause_reason = ""
    row.save(update_fields=["paused_at", "paused_by", "pause_reason"])
    _record("budget.resumed", row, acting_user, "Resumed.")
    _settle_one(row, floor(timezone.now()), acting_user)


def _locked(budget: Budget, user: User) -> Budget:
    """The row as it is now, for somebody who may change it. Raises PermissionDenied; Conflict when it went meanwhile."""
    Budget.objects.select_for_update(no_key=True).filter(pk=budget.pk).first()
    row = Budget.objects.select_related("appcode", "org_node").filter(pk=budget.pk).first()
    if row is None:
        raise Conflict("Somebody removed this budget meanwhile.")
    if not user.is_administrator:
        if row.appcode is None:
            raise Http404("There is no such budget that you can see.")
        require(user, appcode_for(user, row.appcode.code), MANAGE)
        if row.by_administrator:
            raise PermissionDenied("An administrator set this budget; ask one to change it.")
    return row


def require_administrator_of(user: User) -> None:
    """Raises PermissionDenied for somebody who may see the budget all the same."""
    if not user.is_administrator:
        raise PermissionDenied("Only administrators lift or pause a budget.")


def _administered(budget: Budget, user: User) -> Budget:
    require_administrator_of(user)
    return _locked(budget, user)


def _reason(why: str) -> str:
    why = why.strip()
    if not why or len(why) > MAX_REASON:
        raise Invalid.at("reason", message=f"Say why, in at most {MAX_REASON} characters.")
    return why


def _words(budget: Budget) -> str:
    """ "500.00 USD a month, block after 1 h"."""
    policy = cast("Policy", budget.policy).replace("_", " ")
    after = "" if budget.policy == "notify" else f", each {budget.countdown_minutes} min after it is announced"
    return f"{budget.amount:,.2f} {settings.CURRENCY} a month, {policy}{after}"


def _record(verb: str, budget: Budget, actor: User, message: str) -> None:
    code = budget.appcode.code if budget.appcode else ""
    record_all([entry(verb, actor=actor, object=f"budget {budget}", appcode=code, message=message)])
