"""Pipelines, their runs and the runs of their stages."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL
from portal.models import Appcode, User


class Pipeline(models.Model):
    """Stages that wait for each other. `spec` is a `PipelineSpec` as JSON; `current_run` is the latest run."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="pipelines")
    name = models.CharField(max_length=30)
    spec = models.JSONField()
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    run_count = models.PositiveIntegerField(default=0)
    next_by = models.ForeignKey(
        User,
        on_delete=models.SET_NULL,
        null=True,
        related_name="+",
        help_text="Who wants a run as soon as this is over.",
    )
    current_run = models.OneToOneField("PipelineRun", on_delete=models.SET_NULL, null=True, related_name="current_of")

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="pipeline_name_once"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"


class PipelineRun(models.Model):
    """One run of a pipeline, with a copy of its spec. `fresh`: reuse nothing; `newest`: use the latest commits of Git
    refs. Stages run as `created_by`."""

    class Phase(models.TextChoices):
        RUNNING = "Running"
        PAUSED = "Paused"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="runs")
    number = models.PositiveIntegerField()
    spec = models.JSONField()
    fresh = models.BooleanField(default=False)
    newest = models.BooleanField(default=False)
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.RUNNING)
    message = models.TextField(blank=True)
    cancelled_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pipeline", "number"], name="pipeline_run_once"),
            models.UniqueConstraint(fields=["pipeline"], condition=Q(finished_at=None), name="pipeline_run_one_live"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(finished_at=None), name="pipeline_run_live"),
        ]

    def __str__(self) -> str:
        return f"{self.pipeline}-{self.number}"


class StageRun(models.Model):
    """One attempt of a stage in a pipeline run; the last row counts. `run` is what it started, or the earlier run that
    it reuses (`reused`). `tries` counts attempts since a user last requested it."""

    class Phase(models.TextChoices):
        WAITING = "Waiting"
        RUNNING = "Running"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"
        SKIPPED = "Skipped"

    pipeline_run = models.ForeignKey(PipelineRun, on_delete=models.CASCADE, related_name="stages")
    stage = models.CharField(max_length=30)
    attempt = models.PositiveIntegerField(default=1)
    tries = models.PositiveIntegerField(default=1)
    run = models.ForeignKey(Run, on_delete=models.SET_NULL, null=True, related_name="stages")
    sweep = models.ForeignKey("Sweep", on_delete=models.SET_NULL, null=True, related_name="stages")
    reused = models.BooleanField(default=False)
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.WAITING)
    message = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pipeline_run", "stage", "attempt"], name="stage_attempt_once"),
        ]

    def __str__(self) -> str:
        return f"{self.pipeline_run}-{self.stage}-{self.attempt}"

    @property
    def has_ended(self) -> bool:
        """Whether the run or sweep that it started has ended, even if `phase` does not show it yet."""
        return bool((self.run and self.run.is_terminal) or (self.sweep and self.sweep.phase in TERMINAL))
