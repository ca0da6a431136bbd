"""The model registry: models, their versions, and the history of their aliases.

A version records where its files are and pins them with a version of that datastore (`frozen`), so nothing is copied. An
alias is its history: one row per move, and the row without an end is current.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from clusters.hooks.models import HookRun
from clusters.runs.models import Run
from datastores.models import Version
from portal.models import Appcode, User


class RegisteredModel(models.Model):
    """A name under which an appcode keeps versions. A deleted model keeps its row: a later model of the same name
    continues its version numbers and alias history."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="registered_models")
    name = models.CharField(max_length=30)
    description = models.CharField(max_length=200, blank=True)
    version_count = models.PositiveIntegerField(default=0, help_text="The highest number that was given.")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="model_once"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"


class ModelVersion(models.Model):
    """The result of one training. Its number, files and origin never change. `state` describes its files: Pending while
    they are read, Ready once all were, Changed when the datastore now holds something else, Failed when they cannot be
    read. A deleted version keeps its row and releases its files."""

    class State(models.TextChoices):
        PENDING = "Pending"
        READY = "Ready"
        CHANGED = "Changed"
        FAILED = "Failed"

    model = models.ForeignKey(RegisteredModel, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    description = models.CharField(max_length=500, blank=True)
    frozen = models.OneToOneField(Version, on_delete=models.PROTECT, null=True, related_name="model_version")
    datastore = models.CharField(max_length=63)
    folder = models.CharField(max_length=2000, blank=True)
    files = models.JSONField(help_text='[{"path", "size", "sha256"}]; the last is "" until it has been read.')
    size = models.BigIntegerField()
    format = models.CharField(max_length=20)
    signature = models.JSONField(null=True, help_text='{"inputs": [{"name", "dtype", "shape"}], "outputs": […]}')
    sample = models.JSONField(null=True, help_text="A request that it answers.")
    metrics = models.JSONField(default=dict, help_text='By name; null for NaN: {"accuracy": 0.97}')
    lineage = models.JSONField(default=dict, help_text='{"run": "train/3", "image", "environment", "code", "input"}')
    run = models.ForeignKey(Run, on_delete=models.SET_NULL, null=True, related_name="model_versions")
    hook_run = models.OneToOneField(HookRun, on_delete=models.SET_NULL, null=True, related_name="model_version")
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    message = models.TextField(blank=True)
    asked_at = models.DateTimeField(default=timezone.now, help_text="When it was asked last to read its files.")
    tried_at = models.DateTimeField(null=True)
    checked_at = models.DateTimeField(null=True, help_text="When they were read last.")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "number"], name="model_version_once"),
            models.CheckConstraint(
                condition=Q(deleted_at=None, frozen__isnull=False) | Q(deleted_at__isnull=False, frozen=None),
                name="model_version_kept",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(state="Pending", deleted_at=None), name="model_version_pending"),
        ]

    def __str__(self) -> str:
        return f"version {self.number} of the model {self.model.name}"


class ModelAlias(models.Model):
    """The version that an alias named from `since` until `until` (None: now). `version` is None for a removed alias."""

    model = models.ForeignKey(RegisteredModel, on_delete=models.CASCADE, related_name="aliases")
    name = models.CharField(max_length=40)
    version = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, null=True, related_name="aliases")
    since = models.DateTimeField()
    until = models.DateTimeField(null=True)
    reason = models.CharField(max_length=300, blank=True)
    moved_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "name"], condition=Q(until=None), name="model_alias_one_now"),
            models.UniqueConstraint(fields=["model", "name", "since"], name="model_alias_since_once"),
            models.CheckConstraint(
                condition=Q(until=None) | Q(until__gt=models.F("since")), name="model_alias_not_backwards"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ModelRetention(models.Model):
    """The rule by which versions of a model are deleted (which: model_registry/retention.py, when: rules.py). It is
    applied at `due_at`; `versions` and `bytes` are what was deleted at `applied_at`."""

    model = models.OneToOneField(RegisteredModel, on_delete=models.CASCADE, related_name="retention")
    keep = models.PositiveIntegerField()
    days = models.PositiveIntegerField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField()
    due_at = models.DateTimeField(default=timezone.now, db_index=True)
    applied_at = models.DateTimeField(null=True)
    versions = models.PositiveIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(keep__gte=1), name="model_retention_keeps"),
        ]

    def __str__(self) -> str:
        return f"the retention rule of {self.model}"
