"""Budgets and their steps: one row per step and month."""

from __future__ import annotations

import datetime as dt
from typing import ClassVar, cast

from django.db import models
from django.db.models import F, Q

from billing.budgets import steps
from billing.budgets.steps import Policy, Step, Terms
from portal.models import Appcode, OrgNode, User

MAX_REASON = 300


class Budget(models.Model):
    """A monthly amount in settings.CURRENCY for one appcode or one business line, and what happens when it is used up.
    Only administrators change a budget that an administrator set; owners change the others, too."""

    class Policy(models.TextChoices):
        NOTIFY = "notify", "Notify only"
        BLOCK = "block", "Block new runs"
        STOP_SERVICES = "stop_services", "Block, then stop services"
        STOP_ALL = "stop_all", "Block, stop services, then everything"

    appcode = models.OneToOneField(Appcode, on_delete=models.CASCADE, null=True, related_name="budget")
    org_node = models.OneToOneField(OrgNode, on_delete=models.CASCADE, null=True, related_name="budget")
    amount = models.DecimalField(max_digits=14, decimal_places=2)
    policy = models.CharField(max_length=13, choices=Policy.choices, default=Policy.NOTIFY)
    countdown_minutes = models.PositiveIntegerField(default=60)
    by_administrator = models.BooleanField(default=False)
    set_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    set_at = models.DateTimeField()

    lifted_until = models.DateTimeField(null=True, help_text="No measures before: the end of a month.")
    lifted_at = models.DateTimeField(null=True)
    lifted_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    lift_reason = models.CharField(max_length=MAX_REASON, blank=True)
    paused_at = models.DateTimeField(null=True)
    paused_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    pause_reason = models.CharField(max_length=MAX_REASON, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(appcode=None, org_node__isnull=False) | Q(appcode__isnull=False, org_node=None),
                name="budget_of_one",
            ),
            models.CheckConstraint(condition=Q(amount__gt=0), name="budget_amount"),
            models.CheckConstraint(condition=Q(policy__in=steps.POLICIES), name="budget_policy"),
            models.CheckConstraint(
                condition=Q(countdown_minutes__gte=1) & Q(countdown_minutes__lte=7 * 24 * 60), name="budget_countdown"
            ),
            models.CheckConstraint(
                condition=Q(appcode__isnull=False) | Q(by_administrator=True), name="budget_line_by_administrator"
            ),
        ]

    def __str__(self) -> str:
        return self.appcode.code if self.appcode else self.org_node.path if self.org_node else ""

    @property
    def countdown(self) -> dt.timedelta:
        return dt.timedelta(minutes=self.countdown_minutes)

    def is_lifted(self, now: dt.datetime) -> bool:
        return self.lifted_until is not None and now < self.lifted_until

    def terms(self, now: dt.datetime) -> Terms:
        policy = cast("Policy", self.policy)
        paused = self.paused_at is not None
        return Terms(self.amount, policy, self.countdown, self.is_lifted(now), paused, self.set_at)


class BudgetStep(models.Model):
    """One step of a budget in one month (`steps.Step`). A step that was taken back and comes again reuses its row.
    `lifted_by` is None if the portal took the step back because its reason was gone."""

    class Kind(models.TextChoices):
        SPENT_50 = "spent_50", "50 % spent"
        SPENT_80 = "spent_80", "80 % spent"
        SPENT_100 = "spent_100", "100 % spent"
        BLOCK = "block", "New runs blocked"
        STOP_SERVICES = "stop_services", "Services stopped"
        STOP_ALL = "stop_all", "Everything stopped"

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="steps")
    month = models.DateField()
    kind = models.CharField(max_length=13, choices=Kind.choices)
    announced_at = models.DateTimeField()
    due_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)
    lifted_at = models.DateTimeField(null=True)
    lifted_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["budget", "month", "kind"], name="budget_step_once"),
            models.CheckConstraint(condition=Q(month__day=1), name="budget_step_month"),
            models.CheckConstraint(
                condition=Q(kind__in=["spent_50", "spent_80", "spent_100", *steps.MEASURES]), name="budget_step_kind"
            ),
            models.CheckConstraint(condition=Q(due_at__gte=F("announced_at")), name="budget_step_announced_first"),
            models.CheckConstraint(
                condition=Q(done_at=None) | Q(done_at__gte=F("due_at")), name="budget_step_when_due"
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["month", "budget"],
                condition=Q(kind__in=steps.MEASURES, lifted_at=None),
                name="budget_step_stands",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} {self.kind} of {self.budget_id}"

    @property
    def step(self) -> Step:
        kind = cast("steps.Kind", self.kind)
        return Step(kind, self.announced_at, self.due_at, self.done_at, self.lifted_at)
