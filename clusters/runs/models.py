"""Clusters, their runs and tasks, with desired and observed state side by side.

A Cluster is a definition. A deployment creates a Run, which keeps a copy of the spec. A Task is one pod of a run (a
retry is another row). `Run.desired` is what users want; `phase` and everything on Task was observed.
`runs/reconcile.py` moves the cloud towards the first, and `runs/status/observe.py` writes the second.
"""

from __future__ import annotations

import datetime as dt
import secrets
from decimal import Decimal
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KT
from django.utils import timezone

from clusters.admission.order import PriorityClass
from clusters.clouds.models import LOCAL
from clusters.frameworks import FRAMEWORKS
from clusters.runs.status.phase import TERMINAL
from portal.models import Appcode, User

# Prefix of the `part_of` of a service's replicas.
SERVICES = "services/"


def new_proof() -> str:
    """An unguessable value."""
    return secrets.token_hex(32)


class Cluster(models.Model):
    """A definition with a name in its appcode. `spec` is a `ClusterSpec` as JSON; `current_run` is the latest run.
    `part_of` names the sweep, pipeline, … that created the cluster for itself: lists show that instead."""

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="clusters")
    name = models.CharField(max_length=63)
    spec = models.JSONField()
    # For queries only: an instance whose spec has just changed still has the old value.
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
    proof = models.CharField(
        max_length=64,
        default=new_proof,
        help_text="What requests to its endpoints carry that the gateway or a router sends.",
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
    def is_replica(self) -> bool:
        """Whether it is a replica of a service: only routers reach it, and its service ends it."""
        return self.part_of.startswith(SERVICES)

    @property
    def serves(self) -> bool:
        """Whether its definition has endpoints that users can open."""
        framework = FRAMEWORKS.get(self.spec.get("framework", ""))
        named = any(role.get("endpoints") for role in self.spec["roles"].values())
        return named or (framework is not None and framework.is_application)


class Run(models.Model):
    """One deployment of a cluster. `cloud` and `namespace` are where it was created, and never change.

    Who writes which fields. Users (actions.py): `desired`, `stop_*`. runs/reconcile.py and runs/quota.py: `wait_*`,
    `admitted_at`, `applied_at`, `release_asked_at`, `claim_*`, `refusal`. runs/idle.py: `kept_at`, `idle_announced_at`,
    `end_announced_at`, `needed_asked_at`, `look_at`. runs/checkpoints.py: `checkpoint_*`. runs/status/observe.py, phase_update.py
    and history.py: everything else. The room `results`: `tags`, `note`, `parameters`, `numbers_*`. `usage_*`,
    `gpu_*` and `cost_*` are sums over the run's segments at `usage_as_of` and their growth rates, so that a list shows
    live cost without a join.
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
        help_text="GPUs of all its tasks that there are at one time; counted against the quota while admitted."
    )
    priority_class: models.CharField[PriorityClass, PriorityClass] = models.CharField(
        max_length=6,
        default="normal",
        db_default="normal",
        help_text="As in its spec; for queries, which read no JSON.",
    )
    # The index run_news covers it.
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
    wait_code = models.CharField(
        max_length=20,
        blank=True,
        default="",
        db_default="",
        help_text="What `wait_reason` says more precisely (admission/codes.py).",
    )
    wait_values = models.JSONField(
        default=dict, db_default={}, help_text="The values of `wait_code`, from which its sentence is made."
    )
    noted = models.JSONField(
        default=dict,
        db_default={},
        help_text='Its newest Decision: {"number": 3, "at": …, "code": "Gpus", "values": {…}}. status/history.py writes it.',
    )
    admitted_at = models.DateTimeField(null=True)
    placed_at = models.DateTimeField(
        null=True, help_text="Since when it has places on the nodes in `layout`; where the portal places its tasks."
    )
    layout = models.JSONField(
        default=dict,
        db_default={},
        help_text='The most tasks by role and node: {"worker": {"node-1": 4}}. Kept for it until it is given back or gone.',
    )
    whole_at = models.DateTimeField(
        null=True,
        help_text="When all tasks that need each other first had a node; a placed run is billed from then on.",
    )
    lacks_since = models.DateTimeField(null=True, help_text="Since when tasks of a placed run have had no node.")
    given_back_at = models.DateTimeField(
        null=True, help_text="It loses its places, and waits for new ones once it is gone."
    )
    avoided = models.JSONField(
        default=list, db_default=[], help_text="Nodes on which its tasks did not start when it had places there last."
    )
    checkpoint_at = models.DateTimeField(
        null=True, help_text="When the newest file of its output was stored, beside logs; NULL if unknown."
    )
    checkpoint_seen_at = models.DateTimeField(null=True, help_text="When its output was last listed for that.")
    times_given_back = models.PositiveIntegerField(default=0, db_default=0)
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
    deadline = models.DateTimeField(
        null=True, help_text="started_at and the time limit; before that, when fetching began and the time limit."
    )
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
    crashes = models.JSONField(
        null=True,
        default=list,
        db_default=[],
        help_text="Of tasks that were started again: scalars/crashes.py; NULL once it is gone until they are counted.",
    )
    code = models.JSONField(
        default=dict,
        db_default={},
        help_text='Which program it started with, beside its image: {"digest": "ab…"} or {"commit": "ab…"}',
    )
    colour = models.PositiveSmallIntegerField(
        null=True, help_text="Of its curves, from 0: the one after that of the run before it in its appcode."
    )
    tags = ArrayField(models.CharField(max_length=40), default=list, db_default=[], help_text="Words of users.")
    note = models.TextField(blank=True, default="", db_default="", help_text="What users say about it.")
    parameters = models.JSONField(
        null=True, help_text="Its variables and options by name (results/values.py); NULL in runs of earlier releases."
    )
    numbers_at = models.DateTimeField(null=True, help_text="As of when its metrics are kept (results/models.py).")
    headline = models.JSONField(
        default=list,
        db_default=[],
        help_text='Its two metrics for lists, when they were last read: [["loss", 0.31], …]',
    )
    numbers_due = models.BooleanField(
        default=True, db_default=True, help_text="Once it is gone, its metrics are to be read for the last time."
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
            # Those that have GPUs, or places for them: few of many that wait.
            models.Index(
                fields=["cloud"],
                condition=Q(Q(placed_at__isnull=False) | Q(applied_at__isnull=False), gone=False),
                name="run_holds",
            ),
            # All by which the first of those that wait are found, so that no other row of them is read.
            models.Index(
                fields=["cloud", "id"],
                include=[
                    "cluster",
                    "created_by",
                    "priority_class",
                    "phase",
                    "admitted_at",
                    "applied_at",
                    "wait_reason",
                    "source",
                    "not_before",
                    "blocked_message",
                ],
                condition=Q(gone=False, desired="running", verdict="", refusal="", given_back_at=None, placed_at=None),
                name="run_waits",
            ),
            models.Index(fields=["deadline"], condition=Q(desired="running", verdict=""), name="run_deadline"),
            models.Index(fields=["look_at"], condition=Q(desired="running", verdict=""), name="run_look"),
            models.Index(fields=["cluster", "number"], condition=Q(stop_reason="Idle"), name="run_idle"),
            models.Index(fields=["created_by", "phase_since"], name="run_news"),
            models.Index(fields=["id"], condition=Q(wrote__isnull=True), name="run_unlisted"),
            models.Index(fields=["id"], condition=Q(crashes__isnull=True), name="run_uncounted"),
            models.Index(fields=["id"], condition=Q(gone=True, numbers_due=True), name="run_numbers_due"),
        ]

    def __str__(self) -> str:
        return f"{self.cluster}-{self.number}"

    @property
    def is_terminal(self) -> bool:
        return self.phase in TERMINAL

    @property
    def life(self) -> int:
        """How often it was taken off its cloud to be started anew, and nothing of it was left there."""
        return self.times_given_back - (self.given_back_at is not None)

    @property
    def hue(self) -> int:
        """Its colour; one by its primary key in runs of earlier releases."""
        return self.pk if self.colour is None else self.colour

    def gpu_seconds_at(self, now: dt.datetime) -> int:
        """GPU-seconds used until `now`, including what its tasks hold at the moment."""
        return self.gpu_seconds + self.gpu_rate * self._elapsed(now)

    def cost_at(self, now: dt.datetime) -> Decimal:
        """Cost until `now` in settings.CURRENCY, unrounded."""
        return self.cost + self.cost_rate * self._elapsed(now)

    def _elapsed(self, now: dt.datetime) -> int:
        return max(0, int((now - self.usage_as_of).total_seconds())) if self.usage_as_of else 0


class Decision(models.Model):
    """What was decided about a run: why it waited, which places it got, and when it lost them. status/history.py adds rows, and
    removes the oldest where there are too many; nothing changes one."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="decisions", db_index=False)
    number = models.PositiveIntegerField(help_text="From 1.")
    at = models.DateTimeField()
    code = models.CharField(max_length=20, help_text="One of admission/codes.py.")
    values = models.JSONField(default=dict)

    class Meta:
        ordering: ClassVar = ["run_id", "number"]
        constraints: ClassVar = [
            # Its index also finds those of a run, in order.
            models.UniqueConstraint(fields=["run", "number"], name="decision_number_once"),
        ]
        indexes: ClassVar = [
            # Runs that lost their places, which the bell and browsers tell.
            models.Index(fields=["at"], condition=Q(code__in=["TakenBack", "GivenBack"]), name="decision_lost"),
        ]

    def __str__(self) -> str:
        return f"{self.run}: {self.number}"


class Forecast(models.Model):
    """By when a run that waits for places will probably start: half of the replays (admission/forecast.py) have started it by
    `p50`, nine of ten by `p90`; NULL where they do not within a week. placing/forecasts.py writes all of it. `first_…`: what was
    told first, the GPUs of the cloud then, and the newest run. Rows of runs that have started are kept for a while, to judge the
    next ones by."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="forecast")
    cloud = models.CharField(max_length=40)
    p50 = models.DateTimeField(null=True)
    p90 = models.DateTimeField(null=True)
    as_of = models.DateTimeField()
    values = models.JSONField(
        default=dict, help_text="What it is based on, and why it became later: admission/foretold.py."
    )
    first_at = models.DateTimeField(null=True)
    first_p50 = models.DateTimeField(null=True)
    first_p90 = models.DateTimeField(null=True)
    first_gpus = models.PositiveIntegerField(default=0)
    first_newest = models.BigIntegerField(default=0)
    started_at = models.DateTimeField(null=True, help_text="When it first got its places after that.")

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["cloud", "-started_at"], name="forecast_started"),
        ]

    def __str__(self) -> str:
        return f"{self.run}"


class Task(models.Model):
    """One pod of a run, as last seen. `attempt` counts the pods of one (role, index) from 0. logs/collect.py writes
    `log_*`: the progress of the log's copy, for clouds that lose logs with their pods."""

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
    began_at = models.DateTimeField(null=True, help_text="It is billed from here on: its data have come.")
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
        """For users. A task that was ended with its run died by a signal, which is not its own failure."""
        was_ended = self.phase == "Failed" and self.reason == "Stopped" and self.run.verdict
        return "Ended with the run." if was_ended else self.message
