"""The clouds that runs can be placed on, and what the controller knows of each."""

from __future__ import annotations

from typing import ClassVar

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from encrypted_fields.fields import EncryptedTextField

from portal.models import OrgNode

# Where a run is made of which nobody said where: the portal's own machine.
LOCAL = "local"

cloud_name = RegexValidator(
    r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?\Z", "Use at most 40 lower-case letters, digits and '-', and start with a letter."
)


class Cloud(models.Model):
    """What runs can be placed on: Kubernetes clusters, this machine, … `name` is kept with everything that was seen there.

    `kind` says which driver reaches it (clouds/kinds.py) and never changes. `credentials` are what that made of those that were
    given, encrypted at rest and never shown again; None stands for those of the place where the portal runs. `settings` are the
    driver's, as JSON. `revision` counts how often any of these has changed: processes that use the cloud look at it. `uid` tells
    the installation itself from others, where it has something that does. A disabled one takes no new runs; those that live
    there go on. `given_up_at` is set while a disabled one counts as lost.
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
    given_up_at = models.DateTimeField(null=True, help_text="Since when it counts as lost; see runs/decommission.py.")
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
    """Where a business line runs. Lines without one go to the default."""

    org_node = models.OneToOneField(OrgNode, on_delete=models.CASCADE, related_name="placement")
    cloud = models.ForeignKey(Cloud, on_delete=models.PROTECT, related_name="placements")

    def __str__(self) -> str:
        return f"{self.org_node} on {self.cloud}"


class CloudState(models.Model):
    """What the controller knows of one cloud: where its watch stands, when it last heard anything, and the capacity it saw.

    Pages and forms read the capacity here: no request waits for a cloud. `trouble` is why it cannot be followed at the
    moment, "" when all is well; until it can, everything that is shown is from `heard_at`. What every page says of the
    machines is kept apart, because the capacity of a thousand nodes is long: `simulated` GPUs, and `notes` in sentences.

    `asked_at`: whether its runs work was asked of each of them since then (runs/asking.py); not of this machine, which tells it.
    """

    name = models.CharField(max_length=40, primary_key=True)
    position = models.CharField(max_length=1000, blank=True)
    heard_at = models.DateTimeField(null=True)
    asked_at = models.DateTimeField(null=True)
    trouble = models.TextField(blank=True, db_default="")
    capacity = models.JSONField(default=dict)
    simulated = models.PositiveIntegerField(default=0, db_default=0)
    notes = models.JSONField(default=list, db_default=[])

    def __str__(self) -> str:
        return self.name
