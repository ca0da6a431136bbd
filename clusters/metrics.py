"""Prometheus metrics of clusters: runs by phase and cause, GPUs by cloud and model, and the age of each cloud's news."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from django.db.models import Count, Sum
from django.utils import timezone
from prometheus_client.core import Metric

from clusters.clouds.models import Cloud, CloudState
from clusters.runs.models import Run
from clusters.runs.placing.forecasts import errors
from clusters.runs.placing.known import capacity_from
from clusters.runs.status.phase import TERMINAL
from portal.monitoring.metrics import gauge


def metrics() -> Iterator[Metric]:
    """The current aliases. Five queries."""
    now = timezone.now()
    living = Run.objects.filter(gone=False).exclude(phase__in=TERMINAL).order_by()
    runs = living.values_list("phase", "reason").annotate(count=Count("pk")).order_by("phase", "reason")
    yield gauge(
        "portal_runs", "Runs that have not ended, by phase and by what they wait for.", ("phase", "cause"),
        [((phase, cause), count) for phase, cause, count in runs],
    )  # fmt: skip
    unused = Run.objects.filter(gone=False, placed_at__isnull=False, whole_at=None).order_by()
    kept = unused.values_list("cloud").annotate(gpus=Sum("gpus")).order_by("cloud")
    # Not a sum of seconds: its next placement overwrites what a run gave back, and a sum over all runs grows with the years.
    yield gauge(
        "portal_gpus_held_unused", "GPUs kept for runs of which not all tasks have a node; nobody pays for them.", ("cloud",),
        [((cloud,), gpus) for cloud, gpus in kept],
    )  # fmt: skip
    yield gauge(
        "portal_forecast_error_seconds",
        "Mean distance of the last starts from when they were probable, as was told first.", ("cloud",),
        [((cloud,), error) for cloud, error in errors().items()],
    )  # fmt: skip
    there: Counter[tuple[str, str, str]] = Counter()
    free: Counter[tuple[str, str, str]] = Counter()
    # A cloud that was given up has no news to expect.
    lost = Cloud.objects.filter(given_up_at__isnull=False).values("name")
    states = list(CloudState.objects.exclude(name__in=lost).order_by("name"))
    for state in states:
        for node in capacity_from(state.capacity).nodes:
            key = (state.name, node.gpu_model, "true" if node.simulated else "false")
            if node.gpus:
                there[key] += node.gpus
                free[key] += node.gpus_free
    labels = ("cloud", "gpu_model", "simulated")
    yield gauge("portal_gpus_available", "GPUs that a cloud has.", labels, sorted(there.items()))
    held = {key: count - free[key] for key, count in there.items()}
    yield gauge(
        "portal_gpus_held", "GPUs that somebody holds, of those that a cloud has.", labels, sorted(held.items())
    )
    heard = [(state.name, state.heard_at) for state in states if state.heard_at]
    yield gauge(
        "portal_watch_age_seconds", "Time since the controller heard of a cloud; it hears every 5 s.", ("cloud",),
        [((name,), max(0.0, (now - at).total_seconds())) for name, at in heard],
    )  # fmt: skip
    yield gauge(
        "portal_watch_up", "Whether a cloud can be followed: 1, or 0 while there is trouble.", ("cloud",),
        [((state.name,), 0 if state.trouble else 1) for state in states],
    )  # fmt: skip
