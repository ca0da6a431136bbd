"""Templates: clusters that were saved to start from."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from portal.models import Appcode, User


class Template(models.Model):
    """A cluster definition to start from, owned by an appcode (for all its members) or by one user (for any appcode).
    `spec` is a `ClusterSpec` as JSON. The images, flavors and datastores that it names may no longer exist."""

    # The owner part of a personal template's address. Appcodes are longer, so it cannot clash.
    ME = "me"

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, null=True, related_name="templates")
    owner = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="templates")
    name = models.CharField(max_length=40)
    description = models.CharField(max_length=200, blank=True)
    spec = models.JSONField()
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(appcode=None, owner__isnull=False) | Q(appcode__isnull=False, owner=None),
                name="template_of_one",
            ),
            models.UniqueConstraint(fields=["appcode", "name"], name="template_once_in_appcode"),
            models.UniqueConstraint(fields=["owner", "name"], name="template_once_of_person"),
        ]

    def __str__(self) -> str:
        return f"{self.whose}/{self.name}"

    @property
    def whose(self) -> str:
        """The code of its appcode, or ME."""
        return self.appcode.code if self.appcode else self.ME
