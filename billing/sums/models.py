"""Coarser sums of the ledger, for whoever looks at years. The database keeps them, in the transaction that posts."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from portal.models import Appcode


class MonthlySpending(models.Model):
    """MonthlyUsage without the clusters and with one sum of money: what a dashboard over years reads.

    Triggers on MonthlyUsage keep it, in the transaction that posts. `key` is a hash of what is grouped by.
    """

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
    """The GPU-seconds of MonthlySpending over all months, however many: what a scrape reads.

    Triggers on MonthlySpending keep it, in the transaction that posts.
    """

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
    """The highest number of GPU-seconds that Prometheus was told of; a counter never goes down (`billing.sums.metrics`)."""

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
