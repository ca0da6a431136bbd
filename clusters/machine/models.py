"""What tasks did with their machines: one row for each attempt of a task and for each run of several tasks, and its samples
in blocks (series.py)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from clusters.runs.models import Run


class MachineSeries(models.Model):
    """One attempt of a task, or (with an empty `role`) all tasks of a run together. `state` is what sampler.py goes on from: the
    last sample, what it does now, and sums. `recent` is the block that began at `begin`; older ones are rows of MachineBlock."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="machine_series", db_index=False)
    role = models.CharField(max_length=12, blank=True)
    index = models.PositiveIntegerField(default=0)
    attempt = models.PositiveIntegerField(default=0)
    at = models.DateTimeField(help_text="Of the last sample.")
    state = models.JSONField(default=dict)
    begin = models.DateTimeField(null=True)
    recent = models.BinaryField(default=b"")

    class Meta:
        verbose_name_plural = "machine series"
        constraints: ClassVar = [
            # Its index also finds those of a run.
            models.UniqueConstraint(fields=["run", "role", "index", "attempt"], name="machine_series_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["begin"], name="machine_open", condition=Q(begin__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.role}-{self.index}-{self.attempt}"


class MachineBlock(models.Model):
    """Samples of one series from `begin` on, each of `step` seconds."""

    series = models.ForeignKey(MachineSeries, on_delete=models.CASCADE, related_name="blocks", db_index=False)
    step = models.PositiveSmallIntegerField()
    begin = models.DateTimeField()
    data = models.BinaryField()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["series", "begin"], name="machine_block_of"),
            models.Index(fields=["step", "begin"], name="machine_block_age"),
        ]

    def __str__(self) -> str:
        return f"{self.series_id} {self.step} s {self.begin:%F %T}"
