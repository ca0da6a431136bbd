"""A sweep and its trials."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from clusters.runs.models import Cluster
from portal.models import Appcode, User


class Sweep(models.Model):
    """One definition, trained many times with different parameters. `spec` is a `SweepSpec` as JSON. Its clusters are
    `part_of` "sweeps/<name>" and run as `acts_for`, the user who created or last resumed it. `settled`: its loop
    (sweeps/loop.py) has nothing to do until a user asks for more."""

    class Phase(models.TextChoices):
        RUNNING = "Running"
        PAUSED = "Paused"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="sweeps")
    name = models.CharField(max_length=30)
    spec = models.JSONField()
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.RUNNING)
    message = models.TextField(blank=True)
    best = models.JSONField(
        null=True, help_text='The best point so far: {"number": 7, "value": 0.31, "sd": 0.02, "parameters": {…}}'
    )
    settled = models.BooleanField(default=False)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    acts_for = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    finished_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True, help_text="Its clusters are being deleted, and then it goes, too.")

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="sweep_name_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(settled=False), name="sweep_unsettled"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"

    @property
    def part_of(self) -> str:
        """The `part_of` of its clusters."""
        return f"sweeps/{self.name}"


class Trial(models.Model):
    """One training of a sweep: a point, or one fold of it (from 1; 0 without k-fold). It is a cluster, or one copy in a
    run that it shares with others. `phase` is empty while the trial is live: until then its state is that of its
    cluster's run or its task. A live trial without a cluster waits for a run to share."""

    class Phase(models.TextChoices):
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        PRUNED = "Pruned"
        STOPPED = "Stopped"

    sweep = models.ForeignKey(Sweep, on_delete=models.CASCADE, related_name="trials")
    number = models.PositiveIntegerField()
    fold = models.PositiveIntegerField(default=0)
    parameters = models.JSONField()
    cluster = models.ForeignKey(Cluster, on_delete=models.SET_NULL, null=True, related_name="trials")
    index = models.PositiveIntegerField(null=True, help_text="Which copy it is of a run that it shares.")
    attempt = models.PositiveIntegerField(default=0, help_text="How often its failed run was started anew.")
    phase = models.CharField(max_length=10, choices=Phase.choices, blank=True)
    value = models.FloatField(null=True)
    step = models.BigIntegerField(null=True, help_text="Of a sweep that stops early: the last one that was compared.")
    compared = models.JSONField(default=dict, help_text="What the pruner remembers of it (sweeps/stopping.py).")
    message = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["number", "fold"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["sweep", "number", "fold"], name="trial_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["sweep", "id"], condition=Q(phase=""), name="trial_living"),
        ]

    def __str__(self) -> str:
        return f"{self.sweep}-{self.number}" + (f"-{self.fold}" if self.fold else "")
