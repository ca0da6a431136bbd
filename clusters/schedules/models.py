"""Schedules: when something is started."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from portal.models import Appcode, User


class Schedule(models.Model):
    """When to deploy a cluster or run a pipeline. `spec` is a `ScheduleSpec` as JSON; `next_at` is NULL while paused.
    Runs start as `changed_by`, the user who changed it last."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="schedules")
    name = models.CharField(max_length=40)
    spec = models.JSONField()
    next_at = models.DateTimeField(null=True)
    last_at = models.DateTimeField(null=True, help_text="The last time that came.")
    last_result = models.CharField(max_length=300, blank=True, help_text="What became of it, in a sentence.")
    changed_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="schedule_name_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["next_at"], condition=Q(next_at__isnull=False), name="schedule_next"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"
