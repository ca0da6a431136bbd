"""Budgets as the API says them."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal, cast

from django.conf import settings
from pydantic import Field

from billing.budgets import steps as budgets_steps
from billing.budgets.access import Shown
from billing.budgets.models import BudgetStep
from billing.budgets.turn import Asked
from billing.documents import Amount, Code, Cost, Line, money
from portal.api.documents import Answer
from portal.manifests import Strict


class BudgetChange(Strict):
    amount: Amount = Field(description="Money a month.", examples=["500.00"])
    policy: budgets_steps.Policy = Field(description="How far it goes when it is used up.")
    countdown_minutes: int = Field(default=60, description="Between the announcement of each step and the step.")

    def asked(self) -> Asked:
        return Asked(self.amount, self.policy, self.countdown_minutes)


class BudgetRequest(BudgetChange):
    """For an appcode, or a business line (its path)."""

    appcode: Code = ""
    business_line: Line = ""


class ReasonRequest(Strict):
    reason: Annotated[str, Field(max_length=300)]


class StepDocument(Answer):
    kind: budgets_steps.Kind
    month: str = Field(examples=["2026-11"])
    announced_at: dt.datetime
    due_at: dt.datetime
    done_at: dt.datetime | None
    taken_back_at: dt.datetime | None
    taken_back_by: str | None = Field(description="Nobody when its reason was gone.")


class StepPage(Answer):
    items: list[StepDocument]
    next: str | None


class Stand(Answer):
    """Since when, by whom and why a budget is lifted or paused."""

    since: dt.datetime
    until: dt.datetime | None
    by: str | None
    reason: str


class BudgetDocument(Answer):
    kind: Literal["budget"] = "budget"
    id: int
    appcode: str
    business_line: str
    amount: str
    currency: str
    policy: budgets_steps.Policy
    countdown_minutes: int
    by_administrator: bool = Field(description="Set by an administrator: only they change it.")
    set_by: str | None
    set_at: dt.datetime
    state: budgets_steps.State
    month: str = Field(examples=["2026-11"])
    spent: Cost
    forecast: Cost = Field(description="For the whole month, by the mean of the last seven days.")
    lifted: Stand | None
    paused: Stand | None
    steps: list[StepDocument] = Field(description="Of this month, in their order.")


class BudgetPage(Answer):
    items: list[BudgetDocument]
    next: str | None


def step_document(row: BudgetStep) -> dict[str, Any]:
    return _step(row).json_value()


def _step(row: BudgetStep) -> StepDocument:
    return StepDocument(
        kind=row.step.kind, month=f"{row.month:%Y-%m}", announced_at=row.announced_at, due_at=row.due_at,
        done_at=row.done_at, taken_back_at=row.lifted_at, taken_back_by=row.lifted_by.username if row.lifted_by else None,
    )  # fmt: skip


def budget_document(shown: Shown) -> dict[str, Any]:
    row = shown.budget
    lifted = paused = None
    if shown.is_lifted and row.lifted_at:
        by = row.lifted_by.username if row.lifted_by else None
        lifted = Stand(since=row.lifted_at, until=row.lifted_until, by=by, reason=row.lift_reason)
    if row.paused_at:
        by = row.paused_by.username if row.paused_by else None
        paused = Stand(since=row.paused_at, until=None, by=by, reason=row.pause_reason)
    return BudgetDocument(
        id=row.pk, appcode=row.appcode.code if row.appcode else "",
        business_line=row.org_node.path if row.org_node else "", amount=f"{row.amount:.2f}", currency=settings.CURRENCY,
        policy=cast("budgets_steps.Policy", row.policy), countdown_minutes=row.countdown_minutes,
        by_administrator=row.by_administrator, set_by=row.set_by.username if row.set_by else None, set_at=row.set_at,
        state=shown.state, month=f"{shown.now:%Y-%m}", spent=money(shown.figures.spent),
        forecast=money(shown.figures.forecast), lifted=lifted, paused=paused, steps=[_step(each) for each in shown.steps],
    ).json_value()  # fmt: skip
