"""Coarser sums of the ledger, for reports over years. Triggers keep them in the transaction that posts."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from portal.models import Appcode


class MonthlySpending(models.Model):
    """MonthlyUsage without clusters and with a single sum of money, for dashboards over years. Triggers on MonthlyUsage
    keep it. `key` is a hash of the grouping columns."""

    month = models.DateField()
    key = models.UUIDField()
    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    business_line = models.CharField(max_length=200)
    user = models.CharField(max_length=200)
    framework = models.CharField(max_length=200)
    gpu_model = models.CharField(max_length=60)
    gpu_seconds = models.BigIntegerField()
    charge = models.DecimalField(max_digits=50, decimal_places=10)

    class Meta:
        verbose_name_plural = "monthly spending"
        constraints: ClassVar = [models.UniqueConstraint(fields=["month", "key"], name="spending_once")]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} {self.appcode_id}"


class GpuTotal(models.Model):
    """GPU-seconds of MonthlySpending over all months, so that a metrics scrape reads few rows. Triggers on
    MonthlySpending keep it."""

    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    business_line = models.CharField(max_length=200)
    gpu_model = models.CharField(max_length=60)
    gpu_seconds = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "business_line", "gpu_model"], name="gpu_total_once")
        ]

    def __str__(self) -> str:
        return f"{self.appcode_id} {self.gpu_model}"


class GpuCounter(models.Model):
    """The highest GPU-seconds exported to Prometheus; a counter never goes down (`billing.sums.metrics`)."""

    code = models.CharField(max_length=63)
    business_line = models.CharField(max_length=200)
    gpu_model = models.CharField(max_length=60)
    seconds = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["code", "business_line", "gpu_model"], name="gpu_counter_once")
        ]

    def __str__(self) -> str:
        return f"{self.code} {self.gpu_model}"


class DecayedUse(models.Model):
    """GPU-seconds of the ledger's lines up to `entry`, as far as they count `at` then (`billing.sums.decayed_use`). Not rounded,
    so that errors do not add up."""

    appcode = models.OneToOneField(Appcode, on_delete=models.CASCADE, primary_key=True, related_name="+")
    gpu_seconds = models.FloatField()
    at = models.DateTimeField()
    entry = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "decayed use"

    def __str__(self) -> str:
        return f"{self.appcode_id} {self.gpu_seconds:.0f} at {self.at:%F %T}"
