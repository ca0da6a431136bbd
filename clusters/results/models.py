"""The numbers of runs in short, and the views of the table that people keep."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from clusters.runs.models import Run
from portal.models import Appcode, User


class Metric(models.Model):
    """The name of something that runs of an appcode report. Rows stay when no run has it any more: names come back."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="+", db_index=False)
    name = models.CharField(max_length=200)

    class Meta:
        constraints: ClassVar = [
            # Its index also finds those of an appcode, in order.
            models.UniqueConstraint(fields=["appcode", "name"], name="metric_name_once"),
        ]

    def __str__(self) -> str:
        return self.name


class RunMetric(models.Model):
    """What one metric came to in one run, as in `values.Summary`. NaN is stored as such; extremes are NULL if no value is
    finite. results/numbers.py writes it."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="numbers", db_index=False)
    metric = models.ForeignKey(Metric, on_delete=models.CASCADE, related_name="+", db_index=False)
    last = models.FloatField()
    step = models.BigIntegerField()
    low = models.FloatField(null=True)
    low_step = models.BigIntegerField(null=True)
    high = models.FloatField(null=True)
    high_step = models.BigIntegerField(null=True)

    class Meta:
        constraints: ClassVar = [
            # Its index also finds those of a run.
            models.UniqueConstraint(fields=["run", "metric"], name="run_metric_once"),
        ]
        indexes: ClassVar = [
            # All by which runs are sorted and filtered, so that no row is read for it.
            models.Index(fields=["metric", "run"], include=["last", "low", "high"], name="run_metric_values"),
        ]

    def __str__(self) -> str:
        return f"{self.run}: {self.metric}"


class ResultsView(models.Model):
    """A view of results, as the query of their address: what a person chose for a table, or one of the appcode (`person` is
    NULL), which has a name, or none if others begin with it. One with a text is a report. `scope` is the table: "" that of
    the appcode, "clusters/train" or "sweeps/lr" of a part. With "metrics" the query is how the person likes the charts of
    Metrics (clusters/cluster/pages/panels.py)."""

    # The constraints have its index.
    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="+", db_index=False)
    person = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="+")
    scope = models.CharField(max_length=80, blank=True, default="")
    name = models.CharField(max_length=60, blank=True, default="", db_default="")
    query = models.TextField(help_text="As after the ? of the address.")
    text = models.TextField(blank=True, default="", db_default="", help_text="Markdown.")
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "person", "scope"], name="results_view_once"),
            models.UniqueConstraint(
                fields=["appcode", "name"], condition=Q(person=None), name="results_view_named_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}: {self.name or self.person or 'all'}"
