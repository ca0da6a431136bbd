"""Clusters, their runs and tasks, and the catalogue they choose from. Desired state and observed state stand side by side.

A Cluster is a definition; deploying it makes a Run, which keeps a copy of the spec that it ran with. A Task is one pod of
a run (a retry is another row). `Run.desired` is what people want, `phase` and everything on Task is what was seen;
`runs/reconcile.py` moves the cloud towards the first and `runs/observe.py` writes the second.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import ClassVar, Literal

from django.contrib.postgres.fields import ArrayField
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KT
from django.utils import timezone
from encrypted_fields.fields import EncryptedTextField

from clusters.frameworks import FRAMEWORKS
from clusters.phase import TERMINAL
from portal.models import Appcode, OrgNode, User

# Where a run is made of which nobody said where: the portal's own machine.
LOCAL = "local"

cloud_name = RegexValidator(
    r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?\Z", "Use at most 40 lower-case letters, digits and '-', and start with a letter."
)


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


class Cluster(models.Model):
    """A definition with a name in its appcode. `spec` is a `ClusterSpec` as JSON; the latest run is `current_run`.

    One that something made for itself, a trial of a sweep or a stage of a pipeline, is a `part_of` that: lists show the whole.
    """

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="clusters")
    name = models.CharField(max_length=63)
    spec = models.JSONField()
    # For finding only: of a row whose spec has just been changed it is the old one.
    framework = models.GeneratedField(
        expression=KT("spec__framework"), output_field=models.CharField(max_length=40), db_persist=True
    )
    part_of = models.CharField(
        max_length=80, blank=True, default="", db_default="", help_text='What made it, in its appcode: "sweeps/lr".'
    )
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    deleted_at = models.DateTimeField(null=True)
    purged = models.BooleanField(default=False, help_text="Deleted, and its logs are gone too.")
    origins = models.JSONField(
        default=dict, db_default={}, help_text="Where its endpoints are opened: labels as in `Origin`, or whole names"
    )
    run_count = models.PositiveIntegerField(default=0)
    next_by = models.ForeignKey(
        User,
        on_delete=models.SET_NULL,
        null=True,
        related_name="+",
        help_text="Who wants a run as soon as this is over.",
    )
    current_run = models.OneToOneField("Run", on_delete=models.SET_NULL, null=True, related_name="current_of")

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], condition=Q(deleted_at=None), name="cluster_name_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["-id"], condition=Q(deleted_at=None, part_of=""), name="cluster_alive"),
            models.Index(fields=["framework", "-id"], condition=Q(deleted_at=None), name="cluster_by_framework"),
            models.Index(fields=["appcode", "part_of", "id"], condition=~Q(part_of=""), name="cluster_parts"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"

    @property
    def serves(self) -> bool:
        """Whether its definition has something that people open."""
        framework = FRAMEWORKS.get(self.spec.get("framework", ""))
        named = any(role.get("endpoints") for role in self.spec["roles"].values())
        return named or (framework is not None and framework.is_application)


class Sweep(models.Model):
    """One definition, trained many times with other parameters. `spec` is a `SweepSpec` as JSON; its clusters are `part_of`
    "sweeps/<name>" and made in the name of `acts_for`, who made it or resumed it last.

    `settled` means that its loop (sweeps/loop.py) has nothing to do before somebody asks for more.
    """

    class Phase(models.TextChoices):
        RUNNING = "Running"
        PAUSED = "Paused"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="sweeps")
    name = models.CharField(max_length=30)
    spec = models.JSONField()
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.RUNNING)
    message = models.TextField(blank=True)
    best = models.JSONField(
        null=True, help_text='The best point so far: {"number": 7, "value": 0.31, "sd": 0.02, "parameters": {…}}'
    )
    settled = models.BooleanField(default=False)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    acts_for = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    finished_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True, help_text="Its clusters are being deleted, and then it goes, too.")

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="sweep_name_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(settled=False), name="sweep_unsettled"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"

    @property
    def part_of(self) -> str:
        """What its clusters say."""
        return f"sweeps/{self.name}"


class Trial(models.Model):
    """One training of a sweep, which is a cluster: a point, or with k-fold one fold of it (from 1; 0 where there are none).

    `phase` is empty while it lives, and what it comes to is the phase of its cluster's run till then.
    """

    class Phase(models.TextChoices):
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        PRUNED = "Pruned"
        STOPPED = "Stopped"

    sweep = models.ForeignKey(Sweep, on_delete=models.CASCADE, related_name="trials")
    number = models.PositiveIntegerField()
    fold = models.PositiveIntegerField(default=0)
    parameters = models.JSONField()
    cluster = models.OneToOneField(Cluster, on_delete=models.SET_NULL, null=True, related_name="trial")
    attempt = models.PositiveIntegerField(default=0, help_text="How often its failed run was started anew.")
    phase = models.CharField(max_length=10, choices=Phase.choices, blank=True)
    value = models.FloatField(null=True)
    step = models.BigIntegerField(null=True, help_text="Of a sweep that stops early: the last one that was compared.")
    compared = models.JSONField(default=dict, help_text="What the pruner remembers of it (sweeps/stopping.py).")
    message = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["number", "fold"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["sweep", "number", "fold"], name="trial_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["sweep", "id"], condition=Q(phase=""), name="trial_living"),
        ]

    def __str__(self) -> str:
        return f"{self.sweep}-{self.number}" + (f"-{self.fold}" if self.fold else "")


class Cloud(models.Model):
    """What runs can be placed on: Kubernetes clusters, this machine, … `name` is kept with everything that was seen there.

    `kind` says which driver reaches it (clouds/kinds.py) and never changes. `credentials` are what that made of those that were
    given, encrypted at rest and never shown again; None stands for those of the place where the portal runs. `settings` are the
    driver's, as JSON. `revision` counts how often any of these has changed: processes that use the cloud look at it. `uid` tells
    the installation itself from others, where it has something that does. A disabled one takes no new runs; those that live
    there go on. `given_up_at` is set while a disabled one counts as lost.
    """

    name = models.CharField(max_length=40, unique=True, validators=[cloud_name])
    kind = models.CharField(max_length=40)
    title = models.CharField(max_length=100)
    credentials = EncryptedTextField(null=True)
    server = models.CharField(max_length=300, blank=True, help_text="Its address, which is no secret.")
    settings = models.JSONField(default=dict)
    prometheus_token = EncryptedTextField(null=True, help_text="Never shown; goes when the address changes.")
    revision = models.PositiveIntegerField(default=1)
    uid = models.CharField(max_length=80, blank=True)
    enabled = models.BooleanField(default=True)
    is_default = models.BooleanField(default=False)
    given_up_at = models.DateTimeField(null=True, help_text="Since when it counts as lost; see runs/decommission.py.")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    tested_at = models.DateTimeField(null=True)
    test = models.JSONField(default=dict, help_text="What the last test of the connection found.")

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(name__regex=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$"), name="cloud_name"),
            models.CheckConstraint(condition=Q(enabled=True) | Q(is_default=False), name="cloud_default_enabled"),
            models.UniqueConstraint(fields=["is_default"], condition=Q(is_default=True), name="cloud_one_default"),
        ]

    def __str__(self) -> str:
        return self.name


class Placement(models.Model):
    """Where a business line runs. Lines without one go to the default."""

    org_node = models.OneToOneField(OrgNode, on_delete=models.CASCADE, related_name="placement")
    cloud = models.ForeignKey(Cloud, on_delete=models.PROTECT, related_name="placements")

    def __str__(self) -> str:
        return f"{self.org_node} on {self.cloud}"


class Run(models.Model):
    """One deployment of a cluster. `cloud` and `namespace` say where it was made, and where it stays.

    Written by people (actions.py): `desired`, `stop_*`. By runs/reconcile.py and runs/quota.py: `wait_*`, `admitted_at`,
    `applied_at`, `release_asked_at`, `claim_*`, `refusal`. By runs/idle.py: `kept_at`, `idle_announced_at`,
    `end_announced_at`, `needed_asked_at`, `look_at`. By runs/observe.py and runs/status.py: everything else. `usage_*`,
    `gpu_*` and `cost_*` are sums over the run's segments at `usage_as_of` and how fast they grow, so that a list shows live
    cost without a join.
    """

    class Desired(models.TextChoices):
        RUNNING = "running"
        ENDED = "ended"

    class Phase(models.TextChoices):
        QUEUED = "Queued"
        STARTING = "Starting"
        RUNNING = "Running"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="runs")
    number = models.PositiveIntegerField()
    cloud = models.CharField(max_length=40, default=LOCAL, db_default=LOCAL)
    namespace = models.CharField(max_length=63, default="default", db_default="default")
    spec = models.JSONField()
    resources = models.JSONField(
        help_text='What one task holds, by role, copied from the flavors: {"worker": {"gpus": 1, …}}'
    )
    gpus = models.PositiveIntegerField(
        help_text="GPUs of all its tasks together; counted against the quota while admitted."
    )
    # Found by the index run_news.
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+", db_index=False)
    created_at = models.DateTimeField(auto_now_add=True)
    source = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        related_name="readers",
        help_text="The run whose output it reads; it waits until that has succeeded.",
    )
    not_before = models.DateTimeField(
        null=True, help_text="The cloud is not told to start it, or put it right, earlier."
    )

    desired = models.CharField(max_length=10, choices=Desired.choices, default=Desired.RUNNING)
    stop_reason = models.CharField(max_length=40, blank=True)
    stop_message = models.TextField(blank=True)

    wait_reason = models.CharField(max_length=40, blank=True)
    wait_message = models.TextField(blank=True)
    admitted_at = models.DateTimeField(null=True)
    applied_at = models.DateTimeField(null=True)
    release_asked_at = models.DateTimeField(null=True)
    logs_asked_at = models.DateTimeField(null=True, help_text="Since when it waits to be ended for logs to be opened.")
    refusal = models.TextField(blank=True)
    claim_token = models.UUIDField(null=True)
    claimed_until = models.DateTimeField(null=True)

    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.QUEUED)
    reason = models.CharField(max_length=40, blank=True)
    message = models.TextField(blank=True)
    phase_since = models.DateTimeField(default=timezone.now)
    verdict = models.CharField(max_length=10, choices=Phase.choices, blank=True)
    verdict_reason = models.CharField(max_length=40, blank=True)
    verdict_message = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True)
    deadline = models.DateTimeField(null=True, help_text="started_at and the time limit.")
    finished_at = models.DateTimeField(null=True)
    storage_state = models.CharField(max_length=10, blank=True)
    storage_message = models.TextField(blank=True)
    data_warning = models.TextField(
        blank=True, default="", db_default="", help_text="Data that is there and hardly what was meant: empty input."
    )
    read = models.JSONField(
        default=dict,
        db_default={},
        help_text='What was copied as input: {"digest": "ab…", "files": 3, "bytes": 12, "changed_since": 2}',
    )
    wrote = models.JSONField(
        null=True,
        default=dict,
        db_default={},
        help_text='What lay in its output folder when it was gone, as in `read`, and "complete"; NULL until that is listed.',
    )
    code = models.JSONField(
        default=dict,
        db_default={},
        help_text='Which program it started with, beside its image: {"digest": "ab…"} or {"commit": "ab…"}',
    )
    blocked_reason = models.CharField(max_length=40, blank=True, default="", db_default="")
    blocked_message = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="What keeps the cloud from making its tasks: a quota, admission, a queue.",
    )
    gone = models.BooleanField(default=False)
    stored = models.BooleanField(default=True)
    gone_message = models.TextField(blank=True)
    roles = models.JSONField(default=dict, help_text='{"worker": {"ready": 2, "count": 2}}')
    endpoints = models.JSONField(
        default=dict,
        db_default={},
        help_text='Those that answer: {"notebook": {"address": "127.0.0.1:20123", "since": …, "routed": true}}',
    )

    activity = models.CharField(
        max_length=10, blank=True, default="", db_default="", help_text="busy, idle or unknown; empty: nobody tells."
    )
    activity_since = models.DateTimeField(null=True)
    activity_why = models.CharField(max_length=300, blank=True, default="", db_default="")
    kept_at = models.DateTimeField(null=True, help_text="When somebody said last that it is still needed.")
    idle_announced_at = models.DateTimeField(null=True, help_text="Its end for idleness stands announced since then.")
    idle_stops_at = models.DateTimeField(null=True, help_text="As was announced then; none where it is only announced.")
    end_announced_at = models.DateTimeField(null=True, help_text="The end by its time limit was announced.")
    needed_asked_at = models.DateTimeField(null=True, help_text="The last mail that asked whether it is needed.")
    look_at = models.DateTimeField(null=True, help_text="When one of these is to be looked at next.")

    usage_as_of = models.DateTimeField(null=True)
    gpu_seconds = models.BigIntegerField(default=0)
    gpu_rate = models.IntegerField(default=0, help_text="GPUs held at usage_as_of.")
    cost = models.DecimalField(max_digits=20, decimal_places=9, default=Decimal(0))
    cost_rate = models.DecimalField(max_digits=20, decimal_places=12, default=Decimal(0), help_text="Per second.")

    class Meta:
        ordering: ClassVar = ["-number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["cluster", "number"], name="run_number_once"),
            models.UniqueConstraint(
                fields=["cluster"], condition=~Q(phase__in=["Succeeded", "Failed", "Stopped"]), name="run_one_live"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(gone=False), name="run_not_gone"),
            models.Index(fields=["cloud"], condition=Q(gone=False), name="run_not_gone_cloud"),
            models.Index(fields=["deadline"], condition=Q(desired="running", verdict=""), name="run_deadline"),
            models.Index(fields=["look_at"], condition=Q(desired="running", verdict=""), name="run_look"),
            models.Index(fields=["cluster", "number"], condition=Q(stop_reason="Idle"), name="run_idle"),
            models.Index(fields=["created_by", "phase_since"], name="run_news"),
            models.Index(fields=["id"], condition=Q(wrote__isnull=True), name="run_unlisted"),
        ]

    def __str__(self) -> str:
        return f"{self.cluster}-{self.number}"

    @property
    def is_terminal(self) -> bool:
        return self.phase in TERMINAL

    def gpu_seconds_at(self, now: dt.datetime) -> int:
        """GPU-seconds used until `now`, including what its tasks hold at this moment."""
        return self.gpu_seconds + self.gpu_rate * self._elapsed(now)

    def cost_at(self, now: dt.datetime) -> Decimal:
        """Money used until `now` in settings.CURRENCY, unrounded."""
        return self.cost + self.cost_rate * self._elapsed(now)

    def _elapsed(self, now: dt.datetime) -> int:
        return max(0, int((now - self.usage_as_of).total_seconds())) if self.usage_as_of else 0


class Task(models.Model):
    """One pod of a run, as last seen. `attempt` counts the pods of one (role, index) from 0.

    `log_*` belong to logs/collect.py: how far the copy of its log is, for clouds that lose logs with their pods.
    """

    class LogState(models.TextChoices):
        DUE = "due"
        OPEN = "open"
        KEPT = "kept"
        LOST = "lost"

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="tasks")
    role = models.CharField(max_length=12)
    index = models.PositiveIntegerField()
    attempt = models.PositiveIntegerField(default=0)
    uid = models.CharField(max_length=80, unique=True)
    phase = models.CharField(max_length=12)
    reason = models.CharField(max_length=40, blank=True)
    message = models.TextField(blank=True)
    node = models.CharField(max_length=253, blank=True)
    gpus = models.JSONField(default=list)
    gpu_model = models.CharField(max_length=60, blank=True)
    scheduled_at = models.DateTimeField(null=True)
    began_at = models.DateTimeField(null=True, help_text="Its first container ran: from here it is billed.")
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    disrupted = models.BooleanField(default=False)
    log_tail = models.TextField(blank=True)
    log_state = models.CharField(max_length=10, choices=LogState.choices, blank=True, default="", db_default="")
    log_size = models.BigIntegerField(null=True, help_text="Bytes of the copy.")
    log_message = models.TextField(
        blank=True, default="", db_default="", help_text="Why there is no copy, or none yet, or not all."
    )
    log_claimed_until = models.DateTimeField(null=True)
    observed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["role", "index", "-attempt"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "role", "index", "attempt"], name="task_attempt_once"),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["log_claimed_until", "id"], condition=Q(log_state__in=["due", "open"]), name="task_log_due"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run}-{self.role}-{self.index}"

    @property
    def sentence(self) -> str:
        """For people. What is ended because its run is over ends by a signal, which is no failure of its own."""
        was_ended = self.phase == "Failed" and self.reason == "Stopped" and self.run.verdict
        return "Ended with the run." if was_ended else self.message


class HookRun(models.Model):
    """That a hook of a run is to be done, written with the end of that run. `did` is the run of its own cluster that does it,
    None until that is made; `message` says why it cannot be."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="hook_runs")
    name = models.CharField(max_length=20)
    did = models.OneToOneField(Run, on_delete=models.CASCADE, null=True, related_name="does")
    message = models.TextField(blank=True)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "name"], name="hook_run_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(did=None, message=""), name="hook_run_due"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.run}"


class Pipeline(models.Model):
    """Stages that wait for each other. `spec` is a `PipelineSpec` as JSON; the latest run is `current_run`."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="pipelines")
    name = models.CharField(max_length=30)
    spec = models.JSONField()
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    run_count = models.PositiveIntegerField(default=0)
    next_by = models.ForeignKey(
        User,
        on_delete=models.SET_NULL,
        null=True,
        related_name="+",
        help_text="Who wants a run as soon as this is over.",
    )
    current_run = models.OneToOneField("PipelineRun", on_delete=models.SET_NULL, null=True, related_name="current_of")

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="pipeline_name_once"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"


class PipelineRun(models.Model):
    """One run of a pipeline, with the spec that it was started with. `fresh`: nothing is reused; `newest`: code of Git is of the
    commits that its refs have by now. Its stages are made in the name of `created_by`."""

    class Phase(models.TextChoices):
        RUNNING = "Running"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="runs")
    number = models.PositiveIntegerField()
    spec = models.JSONField()
    fresh = models.BooleanField(default=False)
    newest = models.BooleanField(default=False)
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.RUNNING)
    message = models.TextField(blank=True)
    cancelled_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pipeline", "number"], name="pipeline_run_once"),
            models.UniqueConstraint(fields=["pipeline"], condition=Q(finished_at=None), name="pipeline_run_one_live"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(finished_at=None), name="pipeline_run_live"),
        ]

    def __str__(self) -> str:
        return f"{self.pipeline}-{self.number}"


class StageRun(models.Model):
    """A stage in a run of its pipeline; each time that it is tried again is another row, and the last one counts. `run` is what
    it started, or the earlier one that it uses again (`reused`). `tries` counts since somebody has asked for it."""

    class Phase(models.TextChoices):
        WAITING = "Waiting"
        RUNNING = "Running"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"
        SKIPPED = "Skipped"

    pipeline_run = models.ForeignKey(PipelineRun, on_delete=models.CASCADE, related_name="stages")
    stage = models.CharField(max_length=30)
    attempt = models.PositiveIntegerField(default=1)
    tries = models.PositiveIntegerField(default=1)
    run = models.ForeignKey(Run, on_delete=models.SET_NULL, null=True, related_name="stages")
    sweep = models.ForeignKey("Sweep", on_delete=models.SET_NULL, null=True, related_name="stages")
    reused = models.BooleanField(default=False)
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.WAITING)
    message = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pipeline_run", "stage", "attempt"], name="stage_attempt_once"),
        ]

    def __str__(self) -> str:
        return f"{self.pipeline_run}-{self.stage}-{self.attempt}"

    @property
    def has_ended(self) -> bool:
        """Whether what it started has come to its end, noted or not."""
        return bool((self.run and self.run.is_terminal) or (self.sweep and self.sweep.phase in TERMINAL))


class Schedule(models.Model):
    """When a cluster is deployed or a pipeline run. `spec` is a `ScheduleSpec` as JSON; `next_at` is NULL while it is paused.
    What it starts is started in the name of `changed_by`, who said so last."""

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


class CloudState(models.Model):
    """What the controller knows of one cloud: where its watch stands, when it last heard anything, and the capacity it saw.

    Pages and forms read the capacity here: no request waits for a cloud. `trouble` is why it cannot be followed at the
    moment, "" when all is well; until it can, everything that is shown is from `heard_at`. What every page says of the
    machines is kept apart, because the capacity of a thousand nodes is long: `simulated` GPUs, and `notes` in sentences.

    `asked_at`: whether its runs work was asked of each of them since then (runs/asking.py); not of this machine, which tells it.
    """

    name = models.CharField(max_length=40, primary_key=True)
    position = models.CharField(max_length=1000, blank=True)
    heard_at = models.DateTimeField(null=True)
    asked_at = models.DateTimeField(null=True)
    trouble = models.TextField(blank=True, db_default="")
    capacity = models.JSONField(default=dict)
    simulated = models.PositiveIntegerField(default=0, db_default=0)
    notes = models.JSONField(default=list, db_default=[])

    def __str__(self) -> str:
        return self.name
