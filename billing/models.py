"""Usage and prices. Observations are what was seen and are never changed; segments and money are derived from them.

Billing knows appcodes and nothing of clusters: what used a GPU is described by copied labels and by `consumer`, an
opaque key chosen by the caller ("run 17"), so that names survive the deletion of what they name.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from billing.rating import DatedPrice
from billing.usage import PodState, Resources, Segment
from portal.models import Appcode


class Observation(models.Model):
    """One seen state of one pod: append-only (a trigger refuses UPDATE and DELETE).

    Keyed by pod uid; `digest` makes a repeated sighting of the same state a no-op, and `seen_at` is its first one.
    Times are what the cloud said, in UTC.
    """

    uid = models.CharField(max_length=80)
    digest = models.CharField(max_length=64)
    seen_at = models.DateTimeField()
    cloud = models.CharField(max_length=40)
    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="+")
    consumer = models.CharField(max_length=40)
    labels = models.JSONField()
    phase = models.CharField(max_length=12)
    gpus = models.PositiveIntegerField()
    gpu_model = models.CharField(max_length=60, blank=True)
    cpu_milli = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
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


# The fields that an Observation and a PodState share, the labels apart.
OBSERVED = (
    "uid", "cloud", "appcode_id", "consumer", "phase", "gpus", "gpu_model", "cpu_milli", "memory_mb", "scheduled_at",
    "started_at", "finished_at", "estimated", "seen_at",
)  # fmt: skip


class UsageSegment(models.Model):
    """The time for which one pod held its resources: [started, ended), open while `ended` is null.

    Derived from observations (`manage.py replay --verify` proves it). Both ends are whole seconds; `flags` names what
    was clamped or estimated.
    """

    uid = models.CharField(max_length=80, unique=True)
    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="segments")
    consumer = models.CharField(max_length=40, db_index=True)
    labels = models.JSONField()
    gpus = models.PositiveIntegerField()
    gpu_model = models.CharField(max_length=60, blank=True)
    cpu_milli = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    started = models.DateTimeField()
    ended = models.DateTimeField(null=True)
    flags = models.JSONField(default=list)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["appcode", "started"]),
            # What overlaps a month: it ended after its first second, or not yet.
            models.Index(fields=["ended"]),
        ]
        constraints: ClassVar = [
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
            resources=Resources(self.gpus, self.gpu_model, self.cpu_milli, self.memory_mb),
            started=self.started,
            ended=self.ended,
            flags=tuple(self.flags),
        )


class Price(models.Model):
    """The price of one unit of a SKU for one hour, from `valid_from` until the next price of the same SKU.

    `sku` is "gpu" (any model), "gpu:<model>", "cpu" (one core) or "memory" (one GiB); money is in settings.CURRENCY. A
    price that has begun to hold has been charged: a trigger refuses to change or delete it.
    """

    sku = models.CharField(max_length=70)
    per_hour = models.DecimalField(max_digits=14, decimal_places=6)
    valid_from = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["sku", "valid_from"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["sku", "valid_from"], name="price_once"),
            models.CheckConstraint(condition=Q(per_hour__gte=0), name="price_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.sku} {self.per_hour} from {self.valid_from:%F}"

    @property
    def explained(self) -> str:
        """What one unit of it is, in words."""
        kind, _, model = self.sku.partition(":")
        units = {"gpu": f"one {model} GPU" if model else "one GPU of any model", "cpu": "one core", "memory": "one GiB"}
        return units.get(kind, "")

    @property
    def dated(self) -> DatedPrice:
        return DatedPrice(self.sku, self.valid_from, self.per_hour)
