"""What makes runs by itself: sweeps, hooks, pipelines, schedules, benchmarks. Trials, stages and so on are clusters
`part_of` them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from clusters.models.runs import Cluster, Run
from clusters.phase import TERMINAL
from portal.models import Appcode, User


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
    """One training of a sweep: a point, or with k-fold one fold of it (from 1; 0 where there are none). It is a cluster, or one
    copy of the run of a cluster that it shares with others.

    `phase` is empty while it lives, and what it comes to is the phase of its cluster's run till then, or of its task. One that
    lives without a cluster waits for a run to share.
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
    cluster = models.ForeignKey(Cluster, on_delete=models.SET_NULL, null=True, related_name="trials")
    index = models.PositiveIntegerField(null=True, help_text="Which copy it is of a run that it shares.")
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


class HookRun(models.Model):
    """That a hook of a run is to be done, written with the end of that run, or, of one `before` it, when nothing else holds the
    run back. `did` is the run of its own cluster that does it, None until that is made; `message` says why it cannot be,
    or why no version came of it, and `waits` why there is none yet."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="hook_runs")
    name = models.CharField(max_length=20)
    before = models.BooleanField(default=False)
    did = models.OneToOneField(Run, on_delete=models.CASCADE, null=True, related_name="does")
    message = models.TextField(blank=True)
    model = models.CharField(max_length=80, blank=True, help_text="Of which a version is still to be registered.")
    waits = models.TextField(blank=True, default="", db_default="")

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "name"], name="hook_run_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(did=None, message=""), name="hook_run_due"),
            models.Index(fields=["id"], condition=Q(message="") & ~Q(model=""), name="hook_run_model"),
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
        PAUSED = "Paused"
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


class Benchmark(models.Model):
    """How far machines scale: measurements, one after the other. `spec` is a `BenchmarkSpec` as JSON; its clusters are `part_of`
    "benchmarks/<name>" and made in the name of who created it."""

    class Phase(models.TextChoices):
        RUNNING = "Running"
        PAUSED = "Paused"
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="benchmarks")
    name = models.CharField(max_length=40)
    spec = models.JSONField()
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.RUNNING)
    message = models.TextField(blank=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="benchmark_name_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(finished_at=None), name="benchmark_living"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"

    @property
    def part_of(self) -> str:
        """What its clusters say."""
        return f"benchmarks/{self.name}"


class Measurement(models.Model):
    """One measurement of a benchmark, which is a cluster; `count` tasks compute. `phase` is empty while it lives.

    `result` is a `benchmarks.measured.Result` as JSON. `cloud` is where it was made, kept for comparing later ones with it.
    """

    class Phase(models.TextChoices):
        SUCCEEDED = "Succeeded"
        FAILED = "Failed"
        STOPPED = "Stopped"

    benchmark = models.ForeignKey(Benchmark, on_delete=models.CASCADE, related_name="measurements")
    number = models.PositiveIntegerField()
    strategy = models.CharField(max_length=20)
    data = models.CharField(max_length=20)
    count = models.PositiveIntegerField()
    cluster = models.OneToOneField(Cluster, on_delete=models.SET_NULL, null=True, related_name="measurement")
    phase = models.CharField(max_length=10, choices=Phase.choices, blank=True)
    message = models.TextField(blank=True)
    result = models.JSONField(null=True)
    cloud = models.CharField(max_length=40, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["benchmark", "number"], name="measurement_once"),
        ]

    def __str__(self) -> str:
        return f"{self.benchmark}-{self.number}"
