"""Who may open what runs serve, and at which address."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from encrypted_fields.fields import EncryptedTextField

from clusters.models.runs import Cluster
from portal.models import Appcode, User


class Origin(models.Model):
    """The address of an endpoint: the label before `.apps.<domain>`. It stays that of this endpoint for ever, because browsers
    keep what was stored under it: a cluster of another appcode never gets it, whatever is deleted meanwhile."""

    label = models.CharField(max_length=63, unique=True)
    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="+")
    cluster_name = models.CharField(max_length=63)
    endpoint = models.CharField(max_length=15)
    used_at = models.DateTimeField(null=True, help_text="When the gateway last let somebody in, to a minute or so.")

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "cluster_name", "endpoint"], name="origin_once"),
        ]

    def __str__(self) -> str:
        return self.label


class Visit(models.Model):
    """That one browser may open one origin, as long as the person's session of the portal lasts: hashes of a ticket, which is
    good for one exchange, and of the cookie that it was exchanged for."""

    origin = models.ForeignKey(Origin, on_delete=models.CASCADE, related_name="visits")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    session_key = models.CharField(max_length=40)
    session_hash = models.CharField(
        max_length=128, help_text="Changes with the password and with a sign-out everywhere."
    )
    ticket_hash = models.CharField(max_length=64, unique=True, null=True)
    cookie_hash = models.CharField(max_length=64, unique=True, null=True)
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.user} at {self.origin}"


class AccessToken(models.Model):
    """By which programs open the endpoints of one cluster and nothing else. Shown to who may run it, so it is kept, encrypted."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="access_token")
    token = EncryptedTextField()
    made_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    made_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"Token of {self.cluster}"
