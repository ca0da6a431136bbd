"""Benchmarks and their measurements."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from clusters.runs.models import Cluster
from portal.models import Appcode, User


class Benchmark(models.Model):
    """How far machines scale: measurements, one after another. `spec` is a `BenchmarkSpec` as JSON. Its clusters are
    `part_of` "benchmarks/<name>" and run as `created_by`."""

    class Phase(models.TextChoices):
        RUNNING = "Running"
        PAUSED = "Paused"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="benchmarks")
    name = models.CharField(max_length=40)
    spec = models.JSONField()
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.RUNNING)
    message = models.TextField(blank=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="benchmark_name_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(finished_at=None), name="benchmark_living"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"

    @property
    def part_of(self) -> str:
        """The `part_of` of its clusters."""
        return f"benchmarks/{self.name}"


class Measurement(models.Model):
    """One measurement of a benchmark, run as a cluster with `count` computing tasks. `phase` is empty while it is live.
    `result` is a `benchmarks.measured.Result` as JSON. `cloud` is where it ran, kept for comparisons."""

    class Phase(models.TextChoices):
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    benchmark = models.ForeignKey(Benchmark, on_delete=models.CASCADE, related_name="measurements")
    number = models.PositiveIntegerField()
    strategy = models.CharField(max_length=20)
    data = models.CharField(max_length=20)
    count = models.PositiveIntegerField()
    cluster = models.OneToOneField(Cluster, on_delete=models.SET_NULL, null=True, related_name="measurement")
    phase = models.CharField(max_length=10, choices=Phase.choices, blank=True)
    message = models.TextField(blank=True)
    result = models.JSONField(null=True)
    cloud = models.CharField(max_length=40, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["benchmark", "number"], name="measurement_once"),
        ]

    def __str__(self) -> str:
        return f"{self.benchmark}-{self.number}"
