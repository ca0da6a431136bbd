"""Datastores: an abstraction of data, decoupled from compute. A row says where data lives; a cluster mounts it by name."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from encrypted_fields.fields import EncryptedTextField

from portal.models import Appcode, User


class AllowedFolder(models.Model):
    """A folder of this machine that a platform administrator opened for datastores of kind `local`."""

    path = models.CharField(max_length=500, unique=True, help_text="An absolute path; datastores may lie in it or below.")
    read_only = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.path


class Datastore(models.Model):
    """Where data lives. `spec` is the manifest's spec without secrets; `secret` is encrypted at rest and never shown again."""

    class Kind(models.TextChoices):
        S3 = "s3", "S3"
        NFS = "nfs", "NFS"
        LOCAL = "local", "Folder of this machine"

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="datastores")
    name = models.CharField(max_length=63)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    spec = models.JSONField()
    secret = EncryptedTextField(blank=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    tested_at = models.DateTimeField(null=True)
    test_ok = models.BooleanField(null=True)
    test_message = models.TextField(blank=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="datastore_name_once"),
            models.CheckConstraint(condition=Q(kind__in=["s3", "nfs", "local"]), name="datastore_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"
