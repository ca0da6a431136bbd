"""What dashboards need beyond the ledger: a coarser sum, what capacity there was, how runs ended, what was wasted, and which
appcodes are generated examples. Rules that the database keeps by itself are in the migration `dashboard_guards`.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

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


class CapacityRecord(models.Model):
    """From `at` on a cloud had so many GPUs of a model, `simulated` of them no real ones: append-only (a trigger).

    One row for each change, so that what was held can be set against what was there.
    """

    cloud = models.CharField(max_length=40)
    gpu_model = models.CharField(max_length=60, blank=True)
    gpus = models.PositiveIntegerField()
    simulated = models.PositiveIntegerField(default=0)
    at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["cloud", "gpu_model", "-at", "-id"], name="capacity_latest")]

    def __str__(self) -> str:
        return f"{self.cloud} {self.gpus} × {self.gpu_model or 'GPU'} from {self.at:%F %T}"


class Outcome(models.Model):
    """How what used resources ended, in the words of whoever runs it. `looked_at` is false until its waste was reckoned."""

    class Word(models.TextChoices):
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    consumer = models.CharField(max_length=40, primary_key=True)
    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="+")
    word = models.CharField(max_length=10, choices=Word.choices)
    reason = models.CharField(max_length=40, blank=True)
    ended_at = models.DateTimeField()
    looked_at = models.BooleanField(default=False, db_default=False)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["consumer"], name="outcome_new", condition=Q(looked_at=False)),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(word__in=["Succeeded", "Failed", "Stopped"]), name="outcome_word"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer} {self.word}"


class Waste(models.Model):
    """What a consumer held for nothing, by kind: derived from the ledger, the observations and outcomes (`waste.look`).

    "failed" is all that a failed run cost; "outlived" what parameter servers cost after the last of those that they serve had
    ended; "reserved" GPUs that were kept for a pod while its image was fetched, which nobody pays for: `charge` is what they
    would have cost. Several kinds may tell of the same seconds.
    """

    class Kind(models.TextChoices):
        FAILED = "failed"
        OUTLIVED = "outlived"
        RESERVED = "reserved"

    kind = models.CharField(max_length=10, choices=Kind.choices)
    consumer = models.CharField(max_length=40)
    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    labels = models.JSONField()
    since = models.DateTimeField()
    until = models.DateTimeField()
    seconds = models.BigIntegerField()
    gpu_seconds = models.BigIntegerField()
    charge = models.DecimalField(max_digits=50, decimal_places=10)

    class Meta:
        verbose_name_plural = "waste"
        indexes: ClassVar = [models.Index(fields=["until"], name="waste_until")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["consumer", "kind"], name="waste_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.consumer}"


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


class Watermark(models.Model):
    """How far a loop has read the ledger: everything up to the entry with number `entry`."""

    name = models.CharField(max_length=40, primary_key=True)
    entry = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.name} {self.entry}"


class GeneratedAppcode(models.Model):
    """An appcode whose usage was generated for a demonstration (`history.py`), so that every page can say so.

    A trigger takes one only before anything was observed of the appcode: what is real can never be declared generated. While
    `removing` is true, and at no other time, the append-only tables let rows of this appcode go.
    """

    appcode = models.OneToOneField(Appcode, on_delete=models.PROTECT, primary_key=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    removing = models.BooleanField(default=False, db_default=False)

    def __str__(self) -> str:
        return f"{self.appcode} is generated"
