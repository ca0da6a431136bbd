"""Credentials for container registries, by business line and host."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from encrypted_fields.fields import EncryptedTextField

from portal.models import OrgNode, User


class PullSecret(models.Model):
    """A business line's credentials for pulling from a registry. `host` includes the port unless it is the default."""

    line = models.ForeignKey(OrgNode, on_delete=models.CASCADE, related_name="pull_secrets")
    host = models.CharField(max_length=255)
    username = models.CharField(max_length=200)
    password = EncryptedTextField(help_text="Never shown.")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["line__path", "host"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["line", "host"], name="pull_secret_once")]

    def __str__(self) -> str:
        return f"{self.line.path} {self.host}"
