"""What people do to a budget: set, change, remove, lift, pause. Each takes effect at once, in its own transaction."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from billing import periods
from billing.budgets import steps as budgets_steps
from billing.budgets.loop import settle_one
from billing.budgets.models import MAX_REASON, Budget
from billing.budgets.steps import POLICIES, Policy
from billing.metering.segments import floor
from portal.access import MANAGE, appcode_for, appcodes_for, require, require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import entry, record_all
from portal.manifests.appcode import MAX_BUDGET
from portal.models import Appcode, OrgNode, User


@dataclass(frozen=True)
class Asked:
    """A budget as a form or a request describes it."""

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
    """The appcode or business line of a new budget. Raises Invalid with paths appcode, businessLine; PermissionDenied
    for an appcode that the user may see but whose budget they may not set."""
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
    """Raises Invalid, also if the scope already has a budget."""
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
    settle_one(budget, now, acting_user)
    return budget


def grant(appcode: Appcode, amount: Decimal, acting_user: User) -> None:
    """Sets the monthly amount that an administrator approved. A new budget blocks new runs when it is used up; an
    existing one keeps its policy. Call it inside the transaction of the approval."""
    found = Budget.objects.filter(appcode=appcode).first()
    if found is None:
        add(appcode, Asked(amount, "block", 60), acting_user=acting_user)
    elif found.amount != amount:
        change(found, Asked(amount, found.policy, found.countdown_minutes), acting_user=acting_user)


@transaction.atomic
def change(budget: Budget, asked: Asked, *, acting_user: User) -> Budget:
    """Takes effect now. After a change by an administrator only administrators may change the budget."""
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
    settle_one(row, now, acting_user)
    return row


@transaction.atomic
def remove(budget: Budget, *, acting_user: User) -> None:
    row = _locked(budget, acting_user)
    _record("budget.removed", row, acting_user, f"Removed; it was {_words(row)}.")
    row.delete()


@transaction.atomic
def lift(budget: Budget, why: str, *, acting_user: User) -> None:
    """No measures until the month is over; measures taken are taken back at once. Notifications go on."""
    row, why = _administered(budget, acting_user), _reason(why)
    now = floor(timezone.now())
    if row.is_lifted(now):
        raise Conflict("It is lifted already.")
    row.lifted_until, row.lifted_at, row.lifted_by, row.lift_reason = periods.month(now).until, now, acting_user, why
    row.save(update_fields=["lifted_until", "lifted_at", "lifted_by", "lift_reason"])
    _record("budget.lifted", row, acting_user, f"Lifted until the end of {now:%B}: {why}")
    settle_one(row, now, acting_user)


@transaction.atomic
def enforce(budget: Budget, *, acting_user: User) -> None:
    """Ends a lift. Measures that are due are announced again before they are taken."""
    row = _administered(budget, acting_user)
    now = floor(timezone.now())
    if not row.is_lifted(now):
        raise Conflict("It is not lifted.")
    row.lifted_until = row.lifted_at = row.lifted_by = None
    row.lift_reason = ""
    row.save(update_fields=["lifted_until", "lifted_at", "lifted_by", "lift_reason"])
    _record("budget.enforced", row, acting_user, "It is not lifted any more.")
    settle_one(row, now, acting_user)


@transaction.atomic
def pause(budget: Budget, why: str, *, acting_user: User) -> None:
    """No notifications or measures until it is resumed; measures taken are taken back at once."""
    row, why = _administered(budget, acting_user), _reason(why)
    now = floor(timezone.now())
    if row.paused_at is not None:
        raise Conflict("It is paused already.")
    row.paused_at, row.paused_by, row.pause_reason = now, acting_user, why
    row.save(update_fields=["paused_at", "paused_by", "pause_reason"])
    _record("budget.paused", row, acting_user, f"Paused: {why}")
    settle_one(row, now, acting_user)


@transaction.atomic
def resume(budget: Budget, *, acting_user: User) -> None:
    row = _administered(budget, acting_user)
    if row.paused_at is None:
        raise Conflict("It is not paused.")
    row.paused_at = row.paused_by = None
    row.pause_reason = ""
    row.save(update_fields=["paused_at", "paused_by", "pause_reason"])
    _record("budget.resumed", row, acting_user, "Resumed.")
    settle_one(row, floor(timezone.now()), acting_user)


def _locked(budget: Budget, user: User) -> Budget:
    """The locked, current row, if `user` may change it. Raises PermissionDenied; Conflict if it was removed meanwhile."""
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
    """Raises PermissionDenied unless `user` is an administrator."""
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
    """ "500.00 USD a month, block, each 60 min after it is announced"."""
    policy = cast("Policy", budget.policy).replace("_", " ")
    after = "" if budget.policy == "notify" else f", each {budget.countdown_minutes} min after it is announced"
    return f"{budget.amount:,.2f} {settings.CURRENCY} a month, {policy}{after}"


def _record(verb: str, budget: Budget, actor: User, message: str) -> None:
    code = budget.appcode.code if budget.appcode else ""
    record_all([entry(verb, actor=actor, object=f"budget {budget}", appcode=code, message=message)])
