"""What programs record by MLflow's client."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models

from clusters.runs.models import Run
from portal.models import Appcode


class Experiment(models.Model):
    """A name under which an appcode's programs group what they record. Made by whoever first asks for it."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=256)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="experiment_once"),
        ]

    def __str__(self) -> str:
        return self.name


class TrackedRun(models.Model):
    """What MLflow calls a run: one training that a program recorded. A run of the portal has none, one, or several, such as the
    trials of a search inside one task. Times are MLflow's: milliseconds since 1970, as the program said."""

    class Status(models.TextChoices):
        RUNNING = "RUNNING"
        SCHEDULED = "SCHEDULED"
        FINISHED = "FINISHED"
        FAILED = "FAILED"
        KILLED = "KILLED"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="tracked", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="tracked")
    name = models.CharField(max_length=256)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.RUNNING)
    started_at = models.BigIntegerField()
    ended_at = models.BigIntegerField(null=True)
    params = models.JSONField(default=dict, help_text="Texts by name; a value never changes.")
    tags = models.JSONField(default=dict, help_text="Texts by name.")

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["experiment", "-started_at", "id"], name="tracked_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.id.hex})"


class TrackedMetric(models.Model):
    """One metric of a TrackedRun. `kept` has its points, thinned like those of event files (scalars/events.py), and `recent` the
    few that came since. So most reports rewrite a small row, and PostgreSQL leaves the long column alone."""

    tracked = models.ForeignKey(TrackedRun, on_delete=models.CASCADE, related_name="metrics", db_index=False)
    name = models.CharField(max_length=250)
    last_step = models.BigIntegerField()
    last_at = models.BigIntegerField(help_text="Milliseconds since 1970.")
    last = models.FloatField(help_text="The value at the highest step.")
    kept = models.BinaryField(default=b"")
    stride = models.PositiveIntegerField(default=1)
    seen = models.PositiveBigIntegerField(default=0, help_text="Points in `kept` before it was thinned.")
    recent = models.BinaryField(default=b"")
    extremes = models.BinaryField(default=b"", help_text="The smallest and the largest point that came into `kept`.")

    class Meta:
        constraints: ClassVar = [
            # Its index also finds those of a run.
            models.UniqueConstraint(fields=["tracked", "name"], name="tracked_metric_once"),
        ]

    def __str__(self) -> str:
        return f"{self.tracked}: {self.name}"
