"""Tokens for Git servers, by appcode and host."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from encrypted_fields.fields import EncryptedTextField

from portal.models import Appcode, User


class GitToken(models.Model):
    """An appcode's credentials for reading from a Git server. `host` includes the port unless it is the default."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="git_tokens")
    host = models.CharField(max_length=255)
    name = models.CharField(max_length=100)
    token = EncryptedTextField(help_text="Never shown.")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["host"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "host"], name="git_token_once"),
        ]

    def __str__(self) -> str:
        return self.host
