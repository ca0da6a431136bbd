"""Services: model versions that answer at one address, and the tokens of their callers.

A service runs a revision: one version of the model with one configuration. A revision has replicas, each a cluster of
one task that is `part_of` the service, so quota, logs, cost and clouds work as for any cluster. A rollout leads from
one revision to another. Routers (clusters/router/) route the requests: they read the replicas from these rows and write
counters.
"""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

from clusters.model_registry.models import ModelVersion
from clusters.runs.models import SERVICES, Cluster, Run
from portal.models import Appcode, User


class Service(models.Model):
    """One address that answers for a model. `spec` is a `ServiceSpec` as JSON. Its clusters are `part_of`
    "services/<name>" and run as `acts_for`, the user who last changed or deployed it. A deleted service keeps its row:
    its `label` stays reserved, and a later service of the same name continues its numbers. `route` counts changes of
    its set of replicas: a router that has read number n sends nothing to replicas that had left by n."""

    class Phase(models.TextChoices):
        STARTING = "Starting"
        RUNNING = "Running"
        DEGRADED = "Degraded"
        SLEEPING = "Sleeping"
        FAILED = "Failed"
        STOPPED = "Stopped"

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="services")
    name = models.CharField(max_length=30)
    label = models.CharField(
        max_length=63, unique=True, help_text="Before the domain of services: <service>-<appcode>."
    )
    spec = models.JSONField()
    desired = models.CharField(max_length=10, choices=Run.Desired.choices, default=Run.Desired.RUNNING)
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.STARTING)
    message = models.TextField(blank=True)
    phase_since = models.DateTimeField(default=timezone.now)
    route = models.PositiveBigIntegerField(default=1)
    scale = models.JSONField(
        default=dict,
        db_default={},
        help_text='What the autoscaler decided last: {"replicas": 2, "since": …, "why": "…"}',
    )
    followed = models.BigIntegerField(
        null=True,
        help_text="The row of its alias (ModelAlias) that was looked at last: another one says that it has moved.",
    )
    counted_until = models.DateTimeField(
        null=True, help_text="Before it, what its minutes say is in `Revision.counted`."
    )
    revision_count = models.PositiveIntegerField(default=0)
    rollout_count = models.PositiveIntegerField(default=0)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    acts_for = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="service_once"),
        ]
        indexes: ClassVar = [
            # Services with work or requests left.
            models.Index(fields=["id"], condition=~Q(phase="Stopped"), name="service_living"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"

    @property
    def part_of(self) -> str:
        """The `part_of` of its clusters."""
        return f"{SERVICES}{self.name}"


class Revision(models.Model):
    """One version of the model with one configuration. `spec` is the `ClusterSpec` of each replica, as JSON. Immutable."""

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    version = models.ForeignKey(ModelVersion, on_delete=models.SET_NULL, null=True, related_name="+")
    model = models.CharField(max_length=45, help_text="As runs say it, also when the version is gone: digits/3")
    spec = models.JSONField()
    drain_seconds = models.PositiveIntegerField(default=30)
    weight = models.PositiveIntegerField(default=0, help_text="Per cent of the requests that it is to answer.")
    mirrored = models.BooleanField(
        default=False, help_text="It is sent a copy of each request, and its answers go nowhere."
    )
    wanted = models.PositiveIntegerField(default=0, help_text="How many replicas it is to have.")
    counted = models.PositiveBigIntegerField(
        default=0, help_text="Requests that it answered until its service's `counted_until`, copies not among them."
    )
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["service", "number"], name="revision_once"),
        ]

    def __str__(self) -> str:
        return f"{self.service}, revision {self.number}"


class Replica(models.Model):
    """One run of one cluster of a service, from its request until it is gone. Its cluster is `<service>-<slot>`; a
    later replica may reuse the slot. `address` is where routers reach it while `serving`. A draining replica gets no new
    requests from route number `left_at` on, and ends when no router has a request in flight there, or at `drain_until`.
    """

    class State(models.TextChoices):
        STARTING = "starting"
        SERVING = "serving"
        DRAINING = "draining"
        GONE = "gone"

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="replicas")
    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="replicas")
    slot = models.PositiveIntegerField()
    cluster = models.ForeignKey(Cluster, on_delete=models.SET_NULL, null=True, related_name="+")
    run = models.OneToOneField(Run, on_delete=models.SET_NULL, null=True, related_name="replica")
    state = models.CharField(max_length=10, choices=State.choices, default=State.STARTING)
    address = models.CharField(max_length=260, blank=True)
    left_at = models.PositiveBigIntegerField(null=True)
    drain_until = models.DateTimeField(null=True)
    message = models.TextField(blank=True)
    counted = models.JSONField(
        default=dict, db_default={}, help_text="What it had counted beside its training sample when it was last asked."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    served_at = models.DateTimeField(null=True, help_text="When it could answer first.")
    gone_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["slot", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["service", "slot"], condition=~Q(state="gone"), name="replica_slot_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["service", "id"], condition=~Q(state="gone"), name="replica_living"),
        ]

    def __str__(self) -> str:
        return f"{self.service}-{self.slot}"


class Rollout(models.Model):
    """A service's move from one revision to another, kept as a record. At most one is live. `rolling`: the new revision
    takes over as soon as it answers. `canary`: it first answers `weight` per cent until `judge_at`. `shadow`: it first
    gets copies of requests. If it does worse than the old one over the same minutes, it is rolled back."""

    class Kind(models.TextChoices):
        ROLLING = "rolling"
        CANARY = "canary"
        SHADOW = "shadow"

    class Phase(models.TextChoices):
        GATED = "Gated"  # an alias moved, and somebody has to agree
        STARTING = "Starting"
        COMPARING = "Comparing"
        SHIFTING = "Shifting"
        PROMOTED = "Promoted"
        ROLLED_BACK = "RolledBack"
        CANCELLED = "Cancelled"
        FAILED = "Failed"

    LIVING: ClassVar = (Phase.GATED, Phase.STARTING, Phase.COMPARING, Phase.SHIFTING)

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="rollouts")
    number = models.PositiveIntegerField()
    kind = models.CharField(max_length=10, choices=Kind.choices)
    from_revision = models.ForeignKey(Revision, on_delete=models.CASCADE, null=True, related_name="+")
    to_revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="rollouts")
    weight = models.PositiveIntegerField(default=100)
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.STARTING)
    message = models.TextField(blank=True)
    reason = models.CharField(max_length=300, blank=True, help_text="Why somebody wanted it.")
    judged = models.JSONField(
        default=dict, db_default={}, help_text='What was compared: {"from": {"requests", "errors", "p99Ms"}, "to": {…}}'
    )
    by_hand = models.BooleanField(default=False, help_text="Whether somebody, not the clock, promotes it.")
    minutes = models.PositiveIntegerField(default=0, help_text="Of a canary or shadow: for how long it is compared.")
    judge_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    phase_since = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["service", "number"], name="rollout_once"),
            models.UniqueConstraint(
                fields=["service"],
                condition=Q(phase__in=["Gated", "Starting", "Comparing", "Shifting"]),
                name="rollout_one_living",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.service}, rollout {self.number}"


class ServiceToken(models.Model):
    """A caller's token for one service. Shown once; the row holds its SHA-256."""

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=40, help_text="Who asks with it.")
    digest = models.CharField(max_length=64, unique=True)
    begins = models.CharField(max_length=12, help_text="Its first letters, by which people tell it from others.")
    per_second = models.PositiveIntegerField(null=True, help_text="Requests; NULL: no limit.")
    at_once = models.PositiveIntegerField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)
    used_at = models.DateTimeField(null=True, help_text="To a minute or so.")

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["service", "name"], name="service_token_once"),
        ]

    def __str__(self) -> str:
        return self.name


class Router(models.Model):
    """A process that routes requests to services, with its last heartbeat (about one a second). Without a recent one it
    counts as dead.

    `services`: {"7": {"route": 12, "inFlight": {"31": 2}, "waiting": 0, "stable": 3.4, "panic": 8.0}} by service and
    replica. `stable` and `panic` are mean requests in flight and waiting, over the last minute and the last six
    seconds.
    """

    name = models.CharField(max_length=80, unique=True)
    seen_at = models.DateTimeField()
    services = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.name


class ServiceMinute(models.Model):
    """One router's counters for one revision in one minute (UTC). The router rewrites the whole row, so a repeated write
    changes nothing. `mirrored` rows count copied requests.

    `latency` counts answers by bucket (clusters/router/histograms.py). `errors` are status codes from 500 and missing
    answers, `refused` those of 400 to 499 from the model server.
    """

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="minutes")
    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="minutes")
    router = models.CharField(max_length=80)
    minute = models.DateTimeField()
    mirrored = models.BooleanField(default=False)
    requests = models.PositiveIntegerField(default=0)
    errors = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    rows = models.PositiveBigIntegerField(default=0, help_text="That were answered, as far as model servers say it.")
    latency = ArrayField(models.PositiveIntegerField(), default=list)
    busy_ms = models.PositiveBigIntegerField(
        default=0, help_text="Of all requests together, until their answer was complete."
    )
    bytes_in = models.PositiveBigIntegerField(default=0)
    bytes_out = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["service", "minute", "revision", "router", "mirrored"], name="service_minute_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.service} at {self.minute:%H:%M}"


class RevisionDrift(models.Model):
    """Statistics of a revision's inputs and outputs over one hour, compared with its training sample. `columns`: see
    model_registry/drift.py. `alerted`: an alert began or continued in this hour."""

    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="drift")
    hour = models.DateTimeField()
    rows = models.PositiveBigIntegerField(default=0)
    columns = models.JSONField(default=list)
    alerted = models.BooleanField(default=False)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["revision", "hour"], name="revision_drift_once")]

    def __str__(self) -> str:
        return f"{self.revision} at {self.hour:%Y-%m-%d %H}"
