"""Observations of pods (append-only), quarantined sightings, and the segments of use derived from observations."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from billing.metering.segments import PodState, Resources, Segment, gpu_class
from portal.models import Appcode


class Observation(models.Model):
    """One observed state of one pod: append-only (a trigger refuses UPDATE and DELETE). Keyed by pod uid. `digest` makes a
    repeated sighting of the same state a no-op, and `seen_at` is the first one. Times are as reported by the cloud, in UTC."""

    uid = models.CharField(max_length=80)
    digest = models.CharField(max_length=64)
    seen_at = models.DateTimeField()
    cloud = models.CharField(max_length=40)
    # Checked once per batch instead of by a constraint per row; segments have the constraint.
    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    consumer = models.CharField(max_length=40)
    labels = models.JSONField()
    phase = models.CharField(max_length=12)
    gpus = models.PositiveIntegerField()
    gpu_model = models.CharField(max_length=60, blank=True)
    cpu_milli = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    storage_mb = models.PositiveIntegerField(default=0, db_default=0)
    scheduled_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    estimated = models.BooleanField(default=False)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["uid", "digest"], name="observation_once")]

    def __str__(self) -> str:
        return f"{self.uid} {self.phase}"

    @classmethod
    def of(cls, state: PodState) -> Observation:
        facts = {name: getattr(state, name) for name in OBSERVED}
        return cls(**facts, labels=dict(state.labels), digest=state.digest)

    @property
    def state(self) -> PodState:
        return PodState(**{name: getattr(self, name) for name in OBSERVED}, labels=self.labels)


# The fields that an Observation and a PodState share, except the labels.
OBSERVED = (
    "uid", "cloud", "appcode_id", "consumer", "phase", "gpus", "gpu_model", "cpu_milli", "memory_mb", "storage_mb",
    "scheduled_at", "started_at", "finished_at", "estimated", "seen_at",
)  # fmt: skip


class Quarantined(models.Model):
    """A sighting that could not be interpreted: stored unchanged with the reason, while the rest of its batch went on.
    `manage.py replay` retries it and sets `resolved_at` once it has become an observation. Nothing else of it changes,
    and it is never deleted (a trigger). A repeated sighting is one row."""

    digest = models.CharField(max_length=64, unique=True)
    cloud = models.CharField(max_length=40, blank=True)
    raw = models.TextField()
    reason = models.CharField(max_length=300)
    seen_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["id"], name="quarantined_open", condition=Q(resolved_at=None))]

    def __str__(self) -> str:
        return f"{self.seen_at:%F %T} {self.reason}"


class UsageSegment(models.Model):
    """The time for which one pod held its resources: [started, ended), open while `ended` is null. Derived from observations
    (`manage.py replay --verify` proves it). Both ends are whole seconds; `flags` names what was clamped or estimated."""

    uid = models.CharField(max_length=80)
    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, db_index=False, related_name="segments")
    consumer = models.CharField(max_length=40)
    labels = models.JSONField()
    gpus = models.PositiveIntegerField()
    gpu_model = models.CharField(max_length=60, blank=True)
    cpu_milli = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    storage_mb = models.PositiveIntegerField(default=0, db_default=0)
    started = models.DateTimeField()
    ended = models.DateTimeField(null=True)
    flags = models.JSONField(default=list)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["consumer"]),
            models.Index(fields=["appcode", "started"]),
            # For segments that overlap a month: ended after its first second, or still open.
            models.Index(fields=["ended"]),
            models.Index(fields=["ended"], name="segment_flagged", condition=~Q(flags=[])),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["uid"], name="segment_once"),
            models.CheckConstraint(
                condition=Q(ended__isnull=True) | Q(ended__gte=F("started")), name="segment_forward"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.uid} {self.started:%F %T} – {f'{self.ended:%F %T}' if self.ended else ''}"

    @classmethod
    def of(cls, segment: Segment) -> UsageSegment:
        held = segment.resources
        return cls(
            uid=segment.uid,
            appcode_id=segment.appcode_id,
            consumer=segment.consumer,
            labels=dict(segment.labels),
            gpus=held.gpus,
            gpu_model=held.gpu_model,
            cpu_milli=held.cpu_milli,
            memory_mb=held.memory_mb,
            storage_mb=held.storage_mb,
            started=segment.started,
            ended=segment.ended,
            flags=list(segment.flags),
        )

    @property
    def segment(self) -> Segment:
        return Segment(
            uid=self.uid,
            appcode_id=self.appcode_id,
            consumer=self.consumer,
            labels=self.labels,
            resources=Resources(
                self.gpus, self.gpu_model, self.cpu_milli, self.memory_mb, self.storage_mb, gpu_class(self.labels)
            ),
            started=self.started,
            ended=self.ended,
            flags=tuple(self.flags),
        )
