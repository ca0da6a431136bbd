"""The clouds that runs can be placed on, and the controller's state of each."""

from __future__ import annotations

from typing import ClassVar

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from encrypted_fields.fields import EncryptedTextField

from portal.models import Appcode, OrgNode, User

# Default cloud: the portal's own machine.
LOCAL = "local"

cloud_name = RegexValidator(
    r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?\Z", "Use at most 40 lower-case letters, digits and '-', and start with a letter."
)


class Cloud(models.Model):
    """A cloud: a Kubernetes cluster, this machine, … Observations refer to it by `name`.

    `kind` selects its driver (clouds/kinds.py) and never changes. `credentials` are stored as the driver converted
    them, encrypted and never shown; None means those of the portal's own environment. `settings` are the driver's, as
    JSON. `revision` counts changes of these: processes that use the cloud compare it. `uid` identifies the
    installation, if it has an identity. A disabled cloud takes no new runs but keeps its live ones. `given_up_at` is
    set while it counts as lost.
    """

    name = models.CharField(max_length=40, unique=True, validators=[cloud_name])
    kind = models.CharField(max_length=40)
    title = models.CharField(max_length=100)
    credentials = EncryptedTextField(null=True)
    server = models.CharField(max_length=300, blank=True, help_text="Its address, which is no secret.")
    settings = models.JSONField(default=dict)
    prometheus_token = EncryptedTextField(null=True, help_text="Never shown; goes when the address changes.")
    revision = models.PositiveIntegerField(default=1)
    uid = models.CharField(max_length=80, blank=True)
    enabled = models.BooleanField(default=True)
    is_default = models.BooleanField(default=False)
    given_up_at = models.DateTimeField(
        null=True, help_text="Since when it counts as lost; see cloud_admin/decommission.py."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    tested_at = models.DateTimeField(null=True)
    test = models.JSONField(default=dict, help_text="What the last test of the connection found.")

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(name__regex=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$"), name="cloud_name"),
            models.CheckConstraint(condition=Q(enabled=True) | Q(is_default=False), name="cloud_default_enabled"),
            models.UniqueConstraint(fields=["is_default"], condition=Q(is_default=True), name="cloud_one_default"),
        ]

    def __str__(self) -> str:
        return self.name


class Placement(models.Model):
    """The cloud of a business line. Lines without a placement use the default."""

    org_node = models.OneToOneField(OrgNode, on_delete=models.CASCADE, related_name="placement")
    cloud = models.ForeignKey(Cloud, on_delete=models.PROTECT, related_name="placements")

    def __str__(self) -> str:
        return f"{self.org_node} on {self.cloud}"


class CloudState(models.Model):
    """The controller's state of one cloud: its watch position, when it last heard of it, and the capacity then.

    Pages and forms read the capacity here, so no request waits for a cloud. `trouble` is why the cloud cannot be
    followed, "" if all is well; meanwhile everything shown is from `heard_at`. `simulated` (GPUs) and `notes`
    (sentences) are separate columns because every page shows them and the capacity of a thousand nodes is long.
    `asked_at`: every run's activity was polled since then (runs/probes.py). This machine reports it instead.
    `unmeasured`: sentences on what is not known of what tasks do there (machine/sampler.py).
    """

    name = models.CharField(max_length=40, primary_key=True)
    position = models.CharField(max_length=1000, blank=True)
    heard_at = models.DateTimeField(null=True)
    asked_at = models.DateTimeField(null=True)
    trouble = models.TextField(blank=True, db_default="")
    capacity = models.JSONField(default=dict)
    simulated = models.PositiveIntegerField(default=0, db_default=0)
    notes = models.JSONField(default=list, db_default=[])
    unmeasured = models.JSONField(default=dict, db_default={})

    def __str__(self) -> str:
        return self.name


class Window(models.Model):
    """A stretch of time on named nodes of a cloud, for nobody (maintenance), or for the runs of one appcode (a reservation).
    Where it is judged and kept: runs/placing/windows.py and closing.py. `told_at`: runs that will be taken were told for the last
    time. `begun_at`: they were taken. `repeat` moves on to the next one, which is made when this one begins."""

    class Repeat(models.TextChoices):
        NEVER = "", "never"
        DAILY = "daily", "every day"
        WEEKLY = "weekly", "every week"

    cloud = models.ForeignKey(Cloud, on_delete=models.CASCADE, related_name="windows")
    nodes = models.JSONField(help_text='Names of its nodes: ["n1", "n2"]')
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, null=True, related_name="+")
    reason = models.CharField(max_length=200)
    repeat = models.CharField(max_length=6, choices=Repeat.choices, blank=True, default="", db_default="")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    told_at = models.DateTimeField(null=True)
    begun_at = models.DateTimeField(null=True)
    cancelled_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["starts_at", "pk"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(ends_at__gt=models.F("starts_at")), name="window_ends_after_start"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["cloud", "ends_at"], condition=Q(cancelled_at=None), name="window_open"),
        ]

    def __str__(self) -> str:
        return f"{self.cloud}/{self.pk}"
