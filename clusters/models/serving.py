"""Services: versions of models that answer at one address, and who asks them.

A service is a definition. What it runs is a revision: one version of the model, made in one way. A revision has replicas, each a
cluster of one task that is `part_of` the service, so quota, logs, cost and both clouds are those of any cluster. A rollout leads
from one revision to another. Fronts (clusters/front/) take the requests; they read who answers from these rows, and write what
they counted.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils import timezone

from clusters.frameworks import runtimes
from clusters.manifest import ServerSpec, check_env
from clusters.models.registry import ModelVersion
from clusters.models.runs import SERVICES, Cluster, Run
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import Appcode, User


class ServingRuntime(models.Model):
    """A program that serves models, an entry of the catalogue like an image. PORTAL is the portal's own (frameworks/serve.py), of
    which `command` is empty; `command`, `health` and `folder` of others have {model}, {version} and {port} in them.

    `image` is a container's reference, so that what has one runs in containers alone; without one it runs where the image of the
    service does, this machine included.
    """

    PORTAL = "portal"

    name = models.SlugField(max_length=40, unique=True)
    title = models.CharField(max_length=60)
    description = models.CharField(max_length=500, blank=True)
    formats = ArrayField(models.CharField(max_length=20), help_text="Of models: saved-model, onnx …")
    protocols = ArrayField(models.CharField(max_length=30), help_text="PROTOCOLS of frameworks/runtimes.py")
    image = models.CharField(max_length=300, blank=True)
    command = models.TextField(blank=True, help_text="Divided into words as a shell does; no shell runs it.")
    env = models.JSONField(default=dict, db_default={}, blank=True)
    port = models.PositiveIntegerField(default=8501)
    health = models.CharField(
        max_length=200,
        default="/v2/health/ready",
        help_text="A path that is answered without an error as soon as the model is loaded.",
    )
    folder = models.CharField(max_length=200, default=runtimes.FOLDER, help_text="Where it reads the model.")
    warm_up_seconds = models.PositiveIntegerField(
        default=0, help_text="For how long it has been healthy before it is asked anything."
    )
    drain_seconds = models.PositiveIntegerField(
        default=30, help_text="How long a replica that is to end may answer what it was asked before."
    )
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.title

    def server(self, model: str, version: int) -> dict[str, Any] | None:
        """How a replica of that version is started, as JSON of a `ServerSpec`; None of the portal's own. Raises ValueError for a
        command that cannot be divided into words."""
        template = runtimes.Template(self.command, self.health, self.folder, self.port, self.warm_up_seconds)
        return runtimes.server(self.name, template, model, version) if self.command else None

    def clean(self) -> None:
        is_portal = self.name == self.PORTAL
        if is_portal != (not self.command):
            why = "The portal's own server needs none." if is_portal else "Say how it is started."
            raise ValidationError({"command": why})
        if not is_portal and not self.image and self.folder != runtimes.FOLDER:
            why = f"On this machine a model lies at {runtimes.FOLDER}; only a container may have it elsewhere."
            raise ValidationError({"folder": why})
        try:
            check_env(self.env)
        except ValueError as error:
            raise ValidationError({"env": str(error)}) from error
        try:
            server = self.server("model", 1)
        except ValueError as error:
            raise ValidationError({"command": f"It cannot be divided into words: {error}."}) from error
        try:
            if server:
                parse(ServerSpec, server)
        except Invalid as invalid:
            columns = {"argv": "command", "warmUpSeconds": "warm_up_seconds"}
            fields = {columns.get(each.path[0], each.path[0]): each.message for each in invalid.errors}
            raise ValidationError(fields) from invalid


class Service(models.Model):
    """One address that answers for a model. `spec` is a `ServiceSpec` as JSON; its clusters are `part_of` "services/<name>" and
    made in the name of `acts_for`, who changed or deployed it last. A deleted one keeps its row, because its `label` stays its
    own for ever, and so that a service of the same name goes on with its numbers.

    `route` counts how often it has changed who answers: a front that has taken number n over leads to nobody who had
    left by then.
    """

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
            # Those that have something left to do or to answer.
            models.Index(fields=["id"], condition=~Q(phase="Stopped"), name="service_living"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"

    @property
    def part_of(self) -> str:
        """What its clusters say."""
        return f"{SERVICES}{self.name}"


class Revision(models.Model):
    """One version of the model, made in one way: `spec` is the `ClusterSpec` of each replica, as JSON. It never changes."""

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
    """One run of one cluster of a service, from when it is wanted until it is gone. `slot` is the number of its cluster,
    `<service>-<slot>`, which the next replica may have after it.

    `address` is where fronts reach it, while it is `serving`. One that is draining is led nobody new since the service's route
    number `left_at`, and ends when no front has a request there, or at `drain_until`.
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
    """The way of a service from one revision to another, and its record afterwards. At most one lives.

    `rolling`: the new one takes over as soon as it answers. `canary`: it first answers `weight` per cent until `judge_at`;
    `shadow`: it is first sent copies. What is worse than the old one in the same minutes is rolled back by itself.
    """

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
    """By which one caller asks a service and nothing else. Shown once; the row has its SHA-256."""

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


class Front(models.Model):
    """One process that takes requests, as it said last, every second or so. One that has said nothing for a while is dead, and
    nobody waits for it.

    `services`: {"7": {"route": 12, "inFlight": {"31": 2}, "waiting": 0, "stable": 3.4, "panic": 8.0}} by service and replica;
    `stable` and `panic` are requests in flight on average over the last minute and the last six seconds, those that wait
    included.
    """

    name = models.CharField(max_length=80, unique=True)
    seen_at = models.DateTimeField()
    services = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.name


class ServiceMinute(models.Model):
    """What one front counted of one revision in one minute (UTC). It writes the whole row anew, so writing it twice changes
    nothing. `mirrored` are requests that were copies.

    `latency` counts answers by bucket, as clusters/front/counts.py says; `errors` are answers of 500 and more and those that
    never came, `refused` those of 400 to 499 by the model's server.
    """

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="minutes")
    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="minutes")
    front = models.CharField(max_length=80)
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
                fields=["service", "minute", "revision", "front", "mirrored"], name="service_minute_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.service} at {self.minute:%H:%M}"


class RevisionDrift(models.Model):
    """What the replicas of a revision saw of its inputs and outputs in one hour, beside its training sample: `columns` as
    model_registry/drift.py has them. `alerted`: an alert began in this hour, or went on."""

    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="drift")
    hour = models.DateTimeField()
    rows = models.PositiveBigIntegerField(default=0)
    columns = models.JSONField(default=list)
    alerted = models.BooleanField(default=False)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["revision", "hour"], name="revision_drift_once")]

    def __str__(self) -> str:
        return f"{self.revision} at {self.hour:%Y-%m-%d %H}"
