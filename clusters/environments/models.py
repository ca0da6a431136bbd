"""Saved environments, and plugins of images."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from clusters.catalog.models import Image
from portal.models import Appcode, User


class Environment(models.Model):
    """Packages saved on top of an image: one version of a name, immutable. `digest` covers all its contents: image,
    Python, `lock` (requirements with hashes) and `script`, which runs once after them. `packages` lists the differences
    from the image. A deleted one keeps its number only."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="environments")
    name = models.CharField(max_length=40)
    version = models.PositiveIntegerField()
    image = models.CharField(max_length=63)
    python = models.CharField(max_length=20)
    platform = models.CharField(max_length=40)
    packages = models.JSONField(
        default=list, help_text='[{"name", "version", "was"}]; "was" is "" where the image has none.'
    )
    lock = models.TextField(blank=True)
    script = models.TextField(blank=True)
    digest = models.CharField(max_length=64)
    application = models.CharField(max_length=63, help_text="Where it was saved.")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name", "version"], name="environment_version_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name}:{self.version}"


class Plugin(models.Model):
    """An extension that users may add to the JupyterLab of an image: one version of a name. `lock` has the packages
    that the image lacks, as requirements with hashes. It never changes; `digest` covers it, and `packages` lists it.
    Changed requirements make the next version; title and description are changed in place."""

    image = models.ForeignKey(Image, on_delete=models.PROTECT, related_name="plugins")
    name = models.CharField(max_length=40)
    version = models.PositiveIntegerField()
    title = models.CharField(max_length=60)
    description = models.CharField(max_length=500, blank=True)
    requirements = models.JSONField(default=list, help_text='As they were asked for: ["jupyter-archive>=3"]')
    packages = models.JSONField(default=list, help_text='[{"name", "version"}]')
    lock = models.TextField()
    digest = models.CharField(max_length=64)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["image", "name", "-version"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["image", "name", "version"], name="plugin_version_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name}:{self.version}"
