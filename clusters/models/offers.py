"""What clusters are made from: what administrators offer, and what an appcode has saved to use again."""

from __future__ import annotations

from typing import ClassVar, Literal

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from encrypted_fields.fields import EncryptedTextField

from portal.models import Appcode, OrgNode, User


class Flavor(models.Model):
    """A size of task. `gpu_model` is empty for any model."""

    name = models.SlugField(max_length=63, unique=True)
    title = models.CharField(max_length=60, unique=True, help_text='As people say it: "Middle + 1 GPU".')
    cpu_milli = models.PositiveIntegerField(help_text="1000 is one core.")
    memory_mb = models.PositiveIntegerField()
    gpus = models.PositiveIntegerField(default=0)
    gpu_model = models.CharField(max_length=60, blank=True)
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering: ClassVar = ["gpus", "cpu_milli", "name"]

    def __str__(self) -> str:
        return self.title


class Image(models.Model):
    """An entry of the image catalogue: a container reference and a local environment; a cloud uses one of them.

    `environment` is the path of a virtual environment and `program` of a folder seen by tasks as /elearn/program.
    """

    name = models.SlugField(max_length=63, unique=True)
    title = models.CharField(max_length=100)
    description = models.TextField(blank=True)
    container = models.CharField(max_length=300, blank=True)
    environment = models.CharField(max_length=500, blank=True)
    program = models.CharField(max_length=500, blank=True)
    frameworks = ArrayField(
        models.CharField(max_length=40), default=list, db_default=[], blank=True,
        help_text="Those that it has, by the names of their drivers; empty where nobody said, and then none is refused.",
    )  # fmt: skip
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.title

    def has(self, software: Literal["environment", "container"]) -> bool:
        """Whether it can serve where tasks use that."""
        return bool(self.environment if software == "environment" else self.container)


class Environment(models.Model):
    """Packages over an image, as they were when somebody saved them: one version of a name, which never changes.

    `digest` is that of all that makes it: image, Python, `lock` (requirements with hashes) and `script`, which runs once after
    them. `packages` says what is new or another version against the image. A deleted one keeps its number and nothing else.
    """

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


class GitToken(models.Model):
    """What a Git server wants of who reads for an appcode. `host` is its name, with its port where that is not the usual one."""

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


class PullSecret(models.Model):
    """What a registry wants of who fetches images for a business line. `host` is its name, with its port where that is not the
    usual one."""

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


class Template(models.Model):
    """A cluster to start from: of an appcode, for all its members, or of one person (`owner`) for whichever appcode they choose.

    `spec` is a `ClusterSpec` as JSON. It names images, flavors and datastores that may be gone by the time it is used.
    """

    # How one's own are called where those of an appcode have its code, which is longer.
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


class Hook(models.Model):
    """What clusters of an appcode may have done after their runs. `spec` is a `HookWork` as JSON; runs have a copy of it."""

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


class Plugin(models.Model):
    """What people may add to the JupyterLab of an image: one version of a name.

    `lock` has the packages that the image lacks, requirements with hashes; it never changes, and `digest` is its. A change of the
    requirements makes the next version; words about them are changed in place. `packages` says what is in the lock.
    """

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
