"""Celery tasks: each is told by a wake-up which row to look at, and looks. All of them may run twice or at once."""

from __future__ import annotations

from collections.abc import Callable

from celery import shared_task

from clusters import actions
from clusters.clouds import gpu_usage
from clusters.gateway import visits
from clusters.logs import collect
from clusters.pipelines import advance as pipelines
from clusters.run_hooks import loop as run_hooks
from clusters.runs import budgets, listed, quota, reconcile, resync
from clusters.schedules import turn as schedules
from clusters.sweeps import loop as sweeps
from clusters.volumes import buckets, lifecycle
from clusters.wakeups import wake

# What makes clusters for itself, by the first word of their `part_of`; each goes on by the appcode and its name.
WHOLES: dict[str, Callable[[int, str], None]] = {
    "hooks": run_hooks.advance,
    "pipelines": pipelines.advance,
    "schedules": schedules.advance,
    "sweeps": sweeps.advance,
}


@shared_task(name="clusters.tasks.reconcile_run")
def reconcile_run(run_id: int) -> None:
    reconcile.reconcile(run_id)


@shared_task(name="clusters.tasks.admit_waiting")
def admit_waiting(appcode_id: int) -> None:
    for run_id in quota.admit_waiting(appcode_id):
        wake(run_id)


@shared_task(name="clusters.tasks.deploy_next")
def deploy_next(cluster_id: int) -> None:
    actions.deploy_next(cluster_id)


@shared_task(name="clusters.tasks.advance")
def advance(appcode_id: int, part_of: str) -> None:
    room, _, name = part_of.partition("/")
    WHOLES[room](appcode_id, name)


@shared_task(name="clusters.tasks.purge_cluster")
def purge_cluster(cluster_id: int) -> None:
    reconcile.purge(cluster_id)


@shared_task(name="clusters.tasks.copy_logs")
def copy_logs() -> None:
    collect.copy_due()


@shared_task(name="clusters.tasks.note_output")
def note_output(run_id: int) -> None:
    listed.note_output(run_id)


@shared_task(name="clusters.tasks.settle_volume")
def settle_volume(volume_id: int) -> None:
    lifecycle.settle(volume_id)


@shared_task(name="clusters.tasks.meter_buckets")
def meter_buckets() -> None:
    buckets.meter_all()


@shared_task(name="clusters.tasks.measure")
def measure() -> None:
    """A task for each cloud, so that one that does not answer holds up no other."""
    for name in gpu_usage.clouds():
        measure_cloud.apply_async((name,), expires=60)


@shared_task(name="clusters.tasks.measure_cloud")
def measure_cloud(name: str) -> None:
    gpu_usage.measure(name)


@shared_task(name="clusters.tasks.sweep")
def sweep() -> None:
    resync.sweep()
    run_hooks.resync()
    pipelines.resync()
    schedules.resync()
    sweeps.resync()


@shared_task(name="clusters.tasks.forget_visits")
def forget_visits() -> None:
    visits.forget_old()


@shared_task(name="clusters.tasks.stop_over_budget")
def stop_over_budget() -> None:
    budgets.stop()
