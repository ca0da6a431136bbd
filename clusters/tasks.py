"""Celery tasks. Each gets a row's id from a wake-up, reads the row and decides. All of them may run twice or concurrently."""

from __future__ import annotations

from collections.abc import Callable

from celery import shared_task
from django.utils import timezone

from clusters.benchmarks import loop as benchmarks
from clusters.clouds import credentials, gpu_usage
from clusters.cluster import actions
from clusters.gateway import visits
from clusters.hooks import loop as run_hooks
from clusters.logs import collect
from clusters.machine import loop as machine
from clusters.model_registry import loop as model_registry
from clusters.model_registry import rules as model_rules
from clusters.pipelines import loop as pipelines
from clusters.results import numbers
from clusters.runs import budgets, checkpoints, input_listing, quota, reconcile, resync
from clusters.runs.placing import closing, forecasts, places
from clusters.scalars import counted
from clusters.schedules import loop as schedules
from clusters.services import minutes
from clusters.services.controller import loop as serving
from clusters.sweeps import loop as sweeps
from clusters.volumes import buckets, lifecycle
from clusters.wakeups import numbers_key, places_key, waiting_key, wake, wake_places, whole_key
from portal.db.advisory_lock import Lock, advisory_lock
from portal.wakeups import heard, woken


def _advance_hooks(appcode_id: int, cluster: str) -> None:
    """Also registers the model version that a hook's run has just written."""
    run_hooks.advance(appcode_id, cluster)
    model_registry.advance(appcode_id)


# Owners of clusters, by the first word of `part_of`. Each function takes the appcode and the rest of `part_of`.
WHOLES: dict[str, Callable[[int, str], None]] = {
    "benchmarks": benchmarks.advance,
    "hooks": _advance_hooks,
    "models": model_registry.advance,
    "pipelines": pipelines.advance,
    "schedules": schedules.advance,
    "services": serving.advance,
    "sweeps": sweeps.advance,
}


@shared_task(name="clusters.tasks.reconcile_run")
def reconcile_run(run_id: int) -> None:
    """Also gives the run its places and starts it, which saves two ways through the broker. Dead in between, it is found by the
    sweep like any other run that waits."""
    if cloud := reconcile.reconcile(run_id):
        if _place(cloud):
            reconcile.reconcile(run_id)
        else:
            wake_places(cloud)


@shared_task(name="clusters.tasks.admit_waiting")
def admit_waiting(appcode_id: int) -> None:
    heard(waiting_key(appcode_id))
    for run_id in quota.admit_waiting(appcode_id):
        wake(run_id)


@shared_task(name="clusters.tasks.place_runs")
def place_runs(cloud: str) -> None:
    _place(cloud)


def _place(cloud: str) -> bool:
    """Makes passes over a cloud for as long as somebody asks for one. False if another worker is at it: that one looks once more,
    while this one would only wait for its lock."""
    key = places_key(cloud)
    while True:
        with advisory_lock(Lock.PASS, cloud) as is_mine:
            if not is_mine:
                return False
            heard(key)
            closing.turn(cloud)
            places.place(cloud)
        # Not before the lock is free: from then on a worker that is woken makes the pass itself.
        if not woken(key):
            return True


@shared_task(name="clusters.tasks.forecast")
def forecast() -> None:
    """Starts one task per cloud on which runs wait."""
    for name in forecasts.clouds():
        forecast_cloud.apply_async((name,), expires=60)


@shared_task(name="clusters.tasks.forecast_cloud")
def forecast_cloud(name: str) -> None:
    forecasts.renew(name)


@shared_task(name="clusters.tasks.deploy_next")
def deploy_next(cluster_id: int) -> None:
    actions.deploy_next(cluster_id)


@shared_task(name="clusters.tasks.advance")
def advance(appcode_id: int, part_of: str) -> None:
    heard(whole_key(appcode_id, part_of))
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
    input_listing.note_output(run_id)


@shared_task(name="clusters.tasks.note_checkpoints")
def note_checkpoints() -> None:
    """Starts one task per appcode, so that its slow server delays no other."""
    for appcode_id in checkpoints.appcodes():
        note_checkpoints_of.apply_async((appcode_id,), expires=60)


@shared_task(name="clusters.tasks.note_checkpoints_of")
def note_checkpoints_of(appcode_id: int) -> None:
    checkpoints.note(appcode_id)


@shared_task(name="clusters.tasks.note_crashes")
def note_crashes(run_id: int) -> None:
    counted.note_crashes(run_id)


@shared_task(name="clusters.tasks.read_numbers")
def read_numbers(appcode_id: int) -> None:
    heard(numbers_key(appcode_id))
    numbers.advance(appcode_id)


@shared_task(name="clusters.tasks.settle_volume")
def settle_volume(volume_id: int) -> None:
    lifecycle.settle(volume_id)


@shared_task(name="clusters.tasks.meter_buckets")
def meter_buckets() -> None:
    buckets.meter_all()


@shared_task(name="clusters.tasks.measure")
def measure() -> None:
    """Starts one task per cloud, so that a cloud that does not answer delays no other."""
    for name in gpu_usage.clouds():
        measure_cloud.apply_async((name,), expires=60)


@shared_task(name="clusters.tasks.measure_cloud")
def measure_cloud(name: str) -> None:
    gpu_usage.measure(name)


@shared_task(name="clusters.tasks.thin_machine_samples")
def thin_machine_samples() -> None:
    machine.thin()
    machine.forget()


@shared_task(name="clusters.tasks.sweep")
def sweep() -> None:
    resync.sweep()
    benchmarks.resync()
    run_hooks.resync()
    model_registry.resync()
    numbers.resync()
    pipelines.resync()
    schedules.resync()
    sweeps.resync()


@shared_task(name="clusters.tasks.apply_model_rules")
def apply_model_rules() -> None:
    model_rules.sweep()


@shared_task(name="clusters.tasks.forget_visits")
def forget_visits() -> None:
    visits.forget_old()
    minutes.forget_old(timezone.now())


@shared_task(name="clusters.tasks.tell_credentials_end")
def tell_credentials_end() -> None:
    credentials.tell_ends()


@shared_task(name="clusters.tasks.stop_over_budget")
def stop_over_budget() -> None:
    budgets.stop()
