"""The sweep: every few seconds it finds in the rows what wake-ups lost and what only time causes. It only wakes other code,
which checks again, so it may run twice or concurrently.
"""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from billing.metering.segments import MAX_SKEW
from billing.prices.book import price_book
from clusters import wakeups
from clusters.clouds.models import CloudState
from clusters.logs import collect
from clusters.runs import idle, input_listing
from clusters.runs.ending import end_by_portal, span
from clusters.runs.models import Cluster, Run, Task
from clusters.runs.placing import closing, places
from clusters.runs.quota import HELD, waits
from clusters.runs.reconcile import unsettled
from clusters.runs.status.phase import TERMINAL
from clusters.runs.status.phase_update import refresh
from clusters.volumes import lifecycle
from portal.wakeups import waiting

SWEEP_LIMIT = 500
# The wake-up of a younger run is still under way; a second one would only load busy workers.
WAKEUP_LOST = dt.timedelta(seconds=5)
# With this many waiting wake-ups, those of runs are among them. Adding one for each run every few seconds would grow the queue
# faster than it shrinks: receiving a message takes longer than seeing that a run needs nothing.
BUSY = 100
# By then the listing of an output has succeeded or failed.
LISTING_LOST = dt.timedelta(seconds=2 * input_listing.SECONDS)
# Runs of each unreachable cloud that probe whether it is back.
PROBES = 4
# A price may hold from slightly before its row is visible.
PRICE_SEEN = dt.timedelta(seconds=10)
# How long after news of a run its task times that were ahead of our clock are checked. Billing rejects times further ahead than
# MAX_SKEW, and a sweep may be late.
AHEAD = 2 * MAX_SKEW


def sweep() -> None:
    """Finds what wake-ups lost: unsettled runs, runs past their time limit or idle, quota queues, outdated rates, logs to copy,
    outputs and crashes to count, volumes, and deleted clusters with logs."""
    at = timezone.now()
    # Runs every five seconds forever; without live runs this is its only query about them.
    if Run.objects.filter(gone=False).exists():
        _sweep_runs(at)
    if Task.objects.filter(collect.is_due(at)).exists():
        wakeups.wake_logs()
    alive = Exists(Run.objects.filter(cluster=OuterRef("pk"), gone=False))
    dead = Cluster.objects.filter(~alive, deleted_at__isnull=False, purged=False)
    for cluster_id in dead.values_list("pk", flat=True).order_by("pk")[:SWEEP_LIMIT]:
        wakeups.wake_purge(cluster_id)
    wanted = Cluster.objects.filter(next_by__isnull=False, current_run__phase__in=TERMINAL)
    for cluster_id in wanted.values_list("pk", flat=True)[:SWEEP_LIMIT]:
        wakeups.wake_next(cluster_id)
    unlisted = Run.objects.filter(wrote__isnull=True, phase_since__lt=at - LISTING_LOST)
    for run_id in unlisted.values_list("pk", flat=True)[:SWEEP_LIMIT]:
        wakeups.wake_output(run_id)
    uncounted = Run.objects.filter(crashes__isnull=True, phase_since__lt=at - LISTING_LOST)
    # One wake-up for each appcode: its worker counts all runs of it.
    uncounted = uncounted.order_by("cluster__appcode_id").distinct("cluster__appcode_id")
    for run_id in uncounted.values_list("pk", flat=True)[:SWEEP_LIMIT]:
        wakeups.wake_crashes(run_id)
    for volume_id in lifecycle.unsettled(at).values_list("pk", flat=True)[:SWEEP_LIMIT]:
        wakeups.wake_volume(volume_id)


def _sweep_runs(at: dt.datetime) -> None:
    overdue = Run.objects.filter(deadline__lt=at, desired="running", verdict="", gone=False)
    for run_id in overdue.values_list("pk", flat=True)[:SWEEP_LIMIT]:
        _end_overdue(run_id)
    idle.turn(at)
    _renew_costs(at)
    free = Q(claimed_until=None) | Q(claimed_until__lt=at)
    # Least recently tried first, so that many stuck runs do not hide one that can go on.
    longest_ago = F("claimed_until").asc(nulls_first=True)
    away = list(CloudState.objects.exclude(trouble="").values_list("name", flat=True))
    lost = Run.objects.filter(unsettled(at), free, created_at__lt=at - WAKEUP_LOST).order_by(longest_ago, "pk")
    if lost.exists() and waiting() > BUSY:
        lost = lost.none()
    for run_id in lost.exclude(cloud__in=away).values_list("pk", flat=True)[:SWEEP_LIMIT]:
        wakeups.wake(run_id)
    if away:
        place = Window(RowNumber(), partition_by="cloud", order_by=[longest_ago, "pk"])
        probes = lost.filter(cloud__in=away).annotate(place=place).filter(place__lte=PROBES)
        for run_id in probes.values_list("pk", flat=True)[:SWEEP_LIMIT]:
            wakeups.wake(run_id)
    rows = Run.objects.filter(gone=False, desired="running").filter(
        Q(placed_at=None, wait_reason__in=places.HELD) | places.LACK
    )
    for name in {*rows.order_by().values_list("cloud", flat=True).distinct(), *closing.due(at)}:
        wakeups.wake_places(name)
    queues = Run.objects.filter(waits(at), wait_reason__in=HELD).order_by("cluster__appcode")
    for appcode_id in queues.values_list("cluster__appcode", flat=True).distinct():
        wakeups.wake_waiting(appcode_id)


@transaction.atomic
def _renew_costs(at: dt.datetime) -> None:
    """Recomputes usage and cost of live runs with outdated rates: a price changed since, or a task began or ended since by its
    node's clock, which was ahead in the last news. There may be no more news of it."""
    since = OuterRef("usage_as_of")
    overtaken = Q(began_at__gt=since, began_at__lte=at) | Q(finished_at__gt=since, finished_at__lte=at)
    # The time is checked first: nearly all live runs are quiet, and their tasks need not be read.
    stale = Q(usage_as_of__gt=at - AHEAD) & Q(Exists(Task.objects.filter(overtaken, run=OuterRef("pk"))))
    if changed := price_book().last_change(at):
        stale |= Q(usage_as_of__lt=changed + PRICE_SEEN)
    rows = Run.objects.filter(stale, gone=False).order_by("pk")
    rows = rows.select_for_update(of=("self",), no_key=True, skip_locked=True).select_related("cluster__appcode")
    refresh(list(rows[:SWEEP_LIMIT]), timezone.now())


@transaction.atomic
def _end_overdue(run_id: int) -> None:
    run = Run.objects.select_for_update(of=("self",), no_key=True).select_related("cluster__appcode").get(pk=run_id)
    if run.desired == Run.Desired.RUNNING and not run.verdict:
        end_by_portal(run, "TimeLimit", f"It reached its time limit of {span(run.spec['timeLimit'])}.")
