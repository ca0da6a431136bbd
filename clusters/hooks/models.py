"""Hooks of appcodes, and the hooks that runs have to do."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from clusters.runs.models import Run
from portal.models import Appcode, User


class HookRun(models.Model):
    """A hook due for a run, written together with the run's end or, for a hook `before` it, once nothing else holds the
    run back. `did` is the run of the hook's cluster, None until it is created. `message` is why that is impossible or
    why no model version was registered; `waits`, why there is none yet."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="hook_runs")
    name = models.CharField(max_length=20)
    before = models.BooleanField(default=False)
    did = models.OneToOneField(Run, on_delete=models.CASCADE, null=True, related_name="does")
    message = models.TextField(blank=True)
    model = models.CharField(max_length=80, blank=True, help_text="Of which a version is still to be registered.")
    waits = models.TextField(blank=True, default="", db_default="")

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "name"], name="hook_run_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(did=None, message=""), name="hook_run_due"),
            models.Index(fields=["id"], condition=Q(message="") & ~Q(model=""), name="hook_run_model"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.run}"


class Hook(models.Model):
    """A hook that clusters of an appcode may use. `spec` is a `HookWork` as JSON; runs keep a copy of it."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="hooks")
    name = models.CharField(max_length=20)
    description = models.CharField(max_length=200, blank=True)
    spec = models.JSONField()
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="hook_once_in_appcode"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"
