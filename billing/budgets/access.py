"""Reading budgets: what was spent, which steps they took, and which measures are in force.

The number of queries never depends on the number of rows. `portal.access` decides who may see what.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from django.conf import settings
from django.db.models import Q, QuerySet, Subquery
from django.http import Http404
from django.utils import timezone

from billing.budgets import steps as budgets_steps
from billing.budgets.figures import Figures, figures, month_of
from billing.budgets.models import Budget, BudgetStep
from billing.budgets.steps import MEASURES, Measure, Step
from billing.metering.segments import floor
from billing.sums import access
from portal.access import MANAGE, appcodes_for, may
from portal.models import Appcode, Event, OrgNode, User

WHAT_TO_DO = "Raise the budget, or ask an administrator to lift it until the month is over."


def budgets_for(user: User) -> QuerySet[Budget]:
    """The budgets of appcodes that `user` may see; all budgets for an administrator."""
    rows = Budget.objects.select_related("appcode", "org_node", "set_by", "lifted_by", "paused_by")
    if user.is_administrator:
        return rows
    return rows.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def budget_for(user: User, pk: int) -> Budget:
    """Raises Http404 if it does not exist or `user` may not see it."""
    found = budgets_for(user).filter(pk=pk).first()
    if found is None:
        raise Http404("There is no such budget that you can see.")
    return found


def may_change(user: User, budget: Budget) -> bool:
    if user.is_administrator:
        return True
    return budget.appcode is not None and not budget.by_administrator and may(user, budget.appcode, MANAGE)


def appcodes_of(lines: Collection[str]) -> dict[str, list[Appcode]]:
    """The appcodes that belong to each of these business lines now. Two queries."""
    found: dict[str, list[Appcode]] = {line: [] for line in lines}
    if not lines:
        return found
    titles = dict(OrgNode.objects.exclude(namespace=None).values_list("path", "title"))
    below = Q()
    for line in lines:
        below |= Q(org_node__path=line) | Q(org_node__path__startswith=f"{line}.")
    for appcode in Appcode.objects.filter(below).select_related("org_node").order_by("code"):
        line = access.business_line(appcode.org_node, titles)
        if line in found:
            found[line].append(appcode)
    return found


def steps_of(rows: Sequence[Budget], month: dt.date) -> dict[int, list[Step]]:
    found: dict[int, list[Step]] = {row.pk: [] for row in rows}
    for row in BudgetStep.objects.filter(month=month, budget__in=found):
        found[row.budget_id].append(row.step)
    return found


def amounts(appcodes: Collection[int]) -> dict[int, Decimal]:
    """The monthly amount by appcode id, for appcodes that have their own budget. One query."""
    rows = Budget.objects.filter(appcode__in=appcodes).values_list("appcode", "amount")
    return {appcode: amount for appcode, amount in rows if appcode is not None}


# What is in force now


def _standing(now: dt.datetime) -> QuerySet[BudgetStep]:
    """This month's measures, announced or taken, that are in force."""
    here = Q(budget__paused_at=None) & (Q(budget__lifted_until=None) | Q(budget__lifted_until__lte=now))
    rows = BudgetStep.objects.filter(here, month=month_of(now), kind__in=MEASURES, lifted_at=None)
    return rows.select_related("budget__appcode", "budget__org_node")


def _of_appcode(appcode: Appcode) -> Q:
    """Matches the budgets that apply to `appcode`: its own and its business line's."""
    line = OrgNode.objects.filter(path__in=appcode.org_node.ancestors_and_self).exclude(namespace=None)
    return Q(budget__appcode=appcode) | Q(budget__org_node__in=Subquery(line.order_by("-path").values("pk")[:1]))


def why_blocked(appcode: Appcode, now: dt.datetime | None = None) -> str:
    """Why a budget blocks new runs in `appcode`, or "". One query; a second only while any budget blocks anything."""
    now = now or timezone.now()
    # Called for everything that is created, and mostly nothing is blocked: so check with a cheap query first.
    if not BudgetStep.objects.filter(month=month_of(now), kind="block", lifted_at=None, done_at__isnull=False).exists():
        return ""
    standing = _standing(now).filter(_of_appcode(appcode), kind="block", done_at__isnull=False)
    row = standing.order_by("budget").first()
    return f"New runs of {appcode.code} are blocked: {reason(row.budget, row.month)}. {WHAT_TO_DO}" if row else ""


def reason(budget: Budget, month: dt.date) -> str:
    whose = str(budget) if budget.appcode_id else f"business line {budget}"
    return budgets_steps.used_up(whose, month, budget.amount, settings.CURRENCY)


@dataclass(frozen=True)
class Order:
    """A measure in force: what `kind` names has to be stopped in each of `appcodes` (ids)."""

    step: int
    kind: Measure
    appcodes: tuple[int, ...]
    message: str


def orders(now: dt.datetime | None = None) -> list[Order]:
    """What has to be stopped now and as long as it is listed here, stop_all before stop_services. At most three queries."""
    now = now or timezone.now()
    rows = list(
        _standing(now).filter(kind__in=["stop_services", "stop_all"], done_at__isnull=False).order_by("kind", "pk")
    )
    lines = appcodes_of([row.budget.org_node.path for row in rows if row.budget.org_node])
    found = []
    for row in rows:
        line = [appcode.pk for appcode in lines.get(str(row.budget), ())]
        codes = (row.budget.appcode_id,) if row.budget.appcode_id else tuple(line)
        said = f"Stopped because {reason(row.budget, row.month)}. Its output is kept. {WHAT_TO_DO}"
        found.append(Order(row.pk, cast("Measure", row.kind), codes, said))
    return found


def hold(order: Order, now: dt.datetime | None = None) -> bool:
    """True if the order is still in force. It locks the row, so the order cannot be lifted before the transaction ends."""
    row = BudgetStep.objects.select_for_update().filter(pk=order.step).first()
    return row is not None and _standing(now or timezone.now()).filter(pk=order.step).exists()


@dataclass(frozen=True)
class Notice:
    """What the pages of an appcode show: the measure in force and, if `due_at` is set, the next one and when it is due."""

    budget: Budget
    holds: str
    comes: str
    due_at: dt.datetime | None
    why: str
    may_see: bool


def notices(user: User, code: str = "", now: dt.datetime | None = None) -> list[Notice]:
    """Announced and taken measures for the appcodes that `user` may see, or for one of them. One query if there are none."""
    now = now or timezone.now()
    standing: dict[int, list[BudgetStep]] = {}
    for row in _standing(now).order_by("budget", "announced_at"):
        standing.setdefault(row.budget_id, []).append(row)
    if not standing:
        return []
    mine = appcodes_for(user)
    mine = mine.filter(code=code) if code else mine
    lines = appcodes_of([rows[0].budget.org_node.path for rows in standing.values() if rows[0].budget.org_node])
    codes = set(mine.order_by().values_list("pk", flat=True))
    found = []
    for rows in standing.values():
        budget = rows[0].budget
        of = {budget.appcode_id} if budget.appcode_id else {appcode.pk for appcode in lines[str(budget)]}
        if of & codes:
            may_see = user.is_administrator or budget.appcode_id is not None
            found.append(_notice(budget, rows, may_see))
    return found


def _notice(budget: Budget, rows: Sequence[BudgetStep], may_see: bool) -> Notice:
    done = [cast("Measure", row.kind) for row in rows if row.done_at]
    ahead = [(cast("Measure", row.kind), row.due_at) for row in rows if not row.done_at]
    who = str(budget)
    return Notice(
        budget,
        budgets_steps.does(max(done, key=MEASURES.index), who) if done else "",
        budgets_steps.will(ahead[0][0], who) if ahead else "",
        ahead[0][1] if ahead else None,
        reason(budget, rows[0].month),
        may_see,
    )


# For display


@dataclass(frozen=True)
class Shown:
    """A budget with its figures and this month's steps in order."""

    budget: Budget
    figures: Figures
    steps: tuple[BudgetStep, ...]
    now: dt.datetime

    @property
    def state(self) -> budgets_steps.State:
        terms = self.budget.terms(self.now)
        steps = [row.step for row in self.steps]
        return budgets_steps.state(terms, self.figures.spent, self.figures.forecast, steps)

    @property
    def next_step(self) -> BudgetStep | None:
        """The step that is announced and not taken yet."""
        return next((row for row in self.steps if row.lifted_at is None and row.done_at is None), None)

    @property
    def percent(self) -> int:
        return budgets_steps.percent(self.figures.spent, self.budget.amount)

    @property
    def percent_words(self) -> str:
        return budgets_steps.percent_words(self.figures.spent, self.budget.amount)

    @property
    def level(self) -> budgets_steps.Level:
        return budgets_steps.level(self.percent)

    @property
    def left(self) -> Decimal:
        return max(Decimal(0), self.budget.amount - self.figures.spent)

    @property
    def overspent(self) -> Decimal:
        return max(Decimal(0), self.figures.spent - self.budget.amount)

    @property
    def parts(self) -> tuple[float, float, float]:
        """Spent, forecast and amount, as percentages of the bar's width."""
        amount, spent, expected = self.budget.amount, self.figures.spent, self.figures.forecast
        whole = max(amount, spent, expected)
        return tuple(round(float(each * 100 / whole), 1) for each in (spent, expected, amount))  # type: ignore[return-value]

    @property
    def is_lifted(self) -> bool:
        return self.budget.is_lifted(self.now)


def shown(rows: Sequence[Budget], now: dt.datetime) -> list[Shown]:
    """Keeps the order of `rows`. At most eight queries."""
    now = floor(now)
    found, steps = figures(rows, now), defaultdict(list)
    of = BudgetStep.objects.filter(month=month_of(now), budget__in=[row.pk for row in rows]).select_related("lifted_by")
    for step in of.order_by("announced_at", "pk"):
        steps[step.budget_id].append(step)
    return [Shown(row, found[row.pk], tuple(steps[row.pk]), now) for row in rows]


def budget_of(appcode: int) -> Budget | None:
    return Budget.objects.filter(appcode=appcode).select_related("appcode", "org_node").first()


@dataclass(frozen=True)
class Part:
    """How much of its budget an appcode has spent this month. `pk` is the budget's."""

    pk: int
    code: str
    amount: Decimal
    spent: Decimal

    @property
    def percent(self) -> int:
        return budgets_steps.percent(self.spent, self.amount)

    @property
    def percent_words(self) -> str:
        return budgets_steps.percent_words(self.spent, self.amount)

    @property
    def level(self) -> budgets_steps.Level:
        return budgets_steps.level(self.percent)


@dataclass(frozen=True)
class Tightest:
    """The appcode that has spent the largest part of its budget; `of_all` if it is the only appcode. `over` is the number of
    other budgets that are used up."""

    part: Part
    of_all: bool
    over: int


def parts(appcodes: QuerySet[Appcode], used: Sequence[access.Usage]) -> dict[str, Part]:
    """By appcode code, for those with a budget that counts; `used` is their usage of this month. One query."""
    rows = Budget.objects.filter(appcode__in=appcodes.order_by().values("pk"), paused_at=None)
    spent = {each.name: each.amount.cost for each in used}
    return {
        code: Part(pk, code, amount, spent.get(code, Decimal(0)))
        for pk, code, amount in rows.values_list("pk", "appcode__code", "amount")
    }


def tightest(appcodes: QuerySet[Appcode], used: Sequence[access.Usage]) -> Tightest | None:
    """Computed from this month's usage of each appcode. Two queries."""
    found = sorted(parts(appcodes, used).values(), key=lambda part: (part.percent, part.code))
    if not found:
        return None
    *others, most = found
    return Tightest(most, appcodes.count() == 1, sum(part.level == "over" for part in others))


def events_of(budget: Budget) -> QuerySet[Event]:
    """The budget's events, latest first; without those of an earlier, removed budget of the same name."""
    code = budget.appcode.code if budget.appcode else ""
    first = (
        Event.objects.filter(appcode=code, object=f"budget {budget}", verb="budget.set")
        .order_by("-pk")
        .values("pk")[:1]
    )
    return Event.objects.filter(appcode=code, object=f"budget {budget}", pk__gte=Subquery(first))
