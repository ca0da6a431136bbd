"""Who may open the endpoints of runs, and at which address."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from encrypted_fields.fields import EncryptedTextField

from clusters.runs.models import Cluster
from portal.models import Appcode, User


class Origin(models.Model):
    """The address of an endpoint: the label before `.apps.<domain>`. Browsers keep data under it, so it is reserved for
    this endpoint for good: a cluster of another appcode never gets it, even after deletions."""

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
    """Permission of one browser to open one origin during the user's portal session. Holds the hashes of a ticket,
    which can be exchanged once, and of the cookie issued for it."""

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
    """Lets programs open the endpoints of one cluster. Encrypted, not hashed: users who may run the cluster can see it."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="access_token")
    token = EncryptedTextField()
    made_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    made_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"Token of {self.cluster}"
