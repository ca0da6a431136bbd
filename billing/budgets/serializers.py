from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from django.conf import settings
from pydantic import Field

from billing.budgets import steps as budgets_steps
from billing.budgets.access import Shown
from billing.budgets.actions import Asked
from billing.budgets.models import BudgetStep
from billing.documents import Amount, Code, Line
from portal.api.documents import Answer, Who, page_of
from portal.api.money import Money, money
from portal.manifests import Strict


class BudgetChange(Strict):
    amount: Amount = Field(description="Money a month.", examples=["500.00"])
    policy: budgets_steps.Policy = Field(description="How far it goes when it is used up.")
    countdown_minutes: int = Field(default=60, description="Between the announcement of each step and the step.")

    def asked(self) -> Asked:
        return Asked(self.amount, self.policy, self.countdown_minutes)


class BudgetRequest(BudgetChange):
    """For an appcode, or for a business line (its path)."""

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
    taken_back_by: Who = Field(description="Nobody when its reason was gone.")


StepPage = page_of("StepPage", StepDocument)


class Stand(Answer):
    """Since when, by whom and why a budget is lifted or paused."""

    since: dt.datetime
    until: dt.datetime | None
    by: Who
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
    set_by: Who
    set_at: dt.datetime
    state: budgets_steps.State
    month: str = Field(examples=["2026-11"])
    spent: Money
    forecast: Money = Field(description="For the whole month, by the mean of the last seven days.")
    lifted: Stand | None
    paused: Stand | None
    steps: list[StepDocument] = Field(description="Of this month, in their order.")


BudgetPage = page_of("BudgetPage", BudgetDocument)


def step_document(row: BudgetStep) -> dict[str, Any]:
    return _step(row).json_value()


def _step(row: BudgetStep) -> StepDocument:
    return StepDocument.of(
        row, kind=row.step.kind, month=f"{row.month:%Y-%m}", taken_back_at=row.lifted_at, taken_back_by=row.lifted_by
    )


def budget_document(shown: Shown) -> dict[str, Any]:
    row = shown.budget
    lifted = paused = None
    if shown.is_lifted and row.lifted_at:
        lifted = Stand.of(row, since=row.lifted_at, until=row.lifted_until, by=row.lifted_by, reason=row.lift_reason)
    if row.paused_at:
        paused = Stand.of(row, since=row.paused_at, until=None, by=row.paused_by, reason=row.pause_reason)
    return BudgetDocument.of(
        row, appcode=row.appcode.code if row.appcode else "", business_line=row.org_node.path if row.org_node else "",
        amount=f"{row.amount:.2f}", currency=settings.CURRENCY,
        state=shown.state, month=f"{shown.now:%Y-%m}", spent=money(shown.figures.spent),
        forecast=money(shown.figures.forecast), lifted=lifted, paused=paused, steps=[_step(each) for each in shown.steps],
    ).json_value()  # fmt: skip
