"""GPU capacity, how busy held GPUs were (reported by the minute, stored by the hour), outcomes of runs, and waste. None
of it changes the ledger."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from portal.models import Appcode


class MeasuredHour(models.Model):
    """The GPUs of one pod in one hour (UTC): GPU-milliseconds measured, and busy ones among them. `minutes` has a bit
    for each minute in the sums, so that a repeated report changes nothing. `memory_mb` is the peak GPU memory in use,
    null if not measured. Hours without measurements have no row."""

    uid = models.CharField(max_length=80)
    hour = models.DateTimeField()
    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    gpu_model = models.CharField(max_length=60, blank=True)
    minutes = models.BigIntegerField()
    measured_ms = models.BigIntegerField()
    busy_ms = models.BigIntegerField()
    memory_mb = models.BigIntegerField(null=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["uid", "hour"], name="measured_once")]
        indexes: ClassVar = [
            models.Index(fields=["hour"], name="measured_idle", condition=Q(measured_ms__gt=F("busy_ms") * 20)),
        ]

    def __str__(self) -> str:
        return f"{self.uid} {self.hour:%F %H}"


class MeasuredDay(models.Model):
    """The same sums by day and by the groups of dashboards, written by the statement that writes the hours. `key` is a
    hash of the groups."""

    day = models.DateField()
    key = models.UUIDField()
    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    business_line = models.CharField(max_length=200)
    user = models.CharField(max_length=200)
    framework = models.CharField(max_length=200)
    gpu_model = models.CharField(max_length=60)
    measured_ms = models.BigIntegerField()
    busy_ms = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["day", "key"], name="measured_day_once")]

    def __str__(self) -> str:
        return f"{self.day:%F} {self.appcode_id}"


class Measuring(models.Model):
    """How far a cloud's measurements were read. `trouble` says why the last try failed, `note` why there are none; both
    are sentences for people."""

    cloud = models.CharField(max_length=40, primary_key=True)
    position = models.CharField(max_length=200, blank=True)
    read_at = models.DateTimeField(null=True)
    trouble = models.CharField(max_length=1000, blank=True)
    note = models.CharField(max_length=1000, blank=True)

    class Meta:
        verbose_name_plural = "measuring"

    def __str__(self) -> str:
        return self.cloud


class CapacityRecord(models.Model):
    """From `at` on a cloud had `gpus` GPUs of a model, `simulated` of them not real. Append-only (a trigger), one row
    per change."""

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
    """How a consumer ended, as reported by the app that runs it. `looked_at` is false until its waste is computed."""

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
    """What a consumer wasted, by kind; derived from the ledger, observations and outcomes (`waste.look`).

    "failed" is the whole cost of a failed run. "outlived" is the cost of parameter servers after the last task that
    they serve ended. "reserved" are GPUs kept for a pod while its image or data were fetched; nobody pays for them, and
    `charge` is what they would have cost. Several kinds may cover the same seconds.
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


class Watermark(models.Model):
    """How far a loop has read the ledger: up to and including the entry with id `entry`."""

    name = models.CharField(max_length=40, primary_key=True)
    entry = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.name} {self.entry}"
