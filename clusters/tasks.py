"""Celery tasks: wake-ups, never facts. Each names a row to look at; losing one costs time until the next sweep, nothing else."""

from __future__ import annotations

import datetime as dt
import logging
import time

from celery import shared_task
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

# Seconds; as long as it takes until the sweep comes by itself.
QUIET = 5.0
_quiet_until = 0.0


def now() -> dt.datetime:
    """The one clock of this app: UTC, aware."""
    return dt.datetime.now(dt.UTC)


def wake(run_id: int) -> None:
    """Asks for `run_id` to be reconciled soon. Called after a commit; without a broker the sweep does it later."""
    _send(reconcile_run, run_id)


def wake_waiting(appcode_id: int) -> None:
    """Asks for the runs of an appcode that wait for quota to be looked at again."""
    _send(admit_waiting, appcode_id)


def wake_purge(cluster_id: int) -> None:
    """Asks for the logs of a deleted cluster to be removed once its runs are over."""
    _send(purge_cluster, cluster_id)


def _send(task: object, key: int) -> None:
    """Never waits twice for a broker that does not answer: after a failure the sweep alone is trusted for a while."""
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    try:
        task.apply_async((key,), expires=60, retry=False)  # type: ignore[attr-defined]
    except (OperationalError, RedisError) as error:
        _quiet_until = time.monotonic() + QUIET
        log.warning("the broker is out of reach, the sweep will find %s: %s", key, error)


@shared_task(name="clusters.tasks.reconcile_run")
def reconcile_run(run_id: int) -> None:
    from clusters.reconcile import reconcile

    reconcile(run_id)


@shared_task(name="clusters.tasks.admit_waiting")
def admit_waiting(appcode_id: int) -> None:
    from clusters import reconcile

    for run_id in reconcile.admit_waiting(appcode_id):
        wake(run_id)


@shared_task(name="clusters.tasks.purge_cluster")
def purge_cluster(cluster_id: int) -> None:
    from clusters.reconcile import purge

    purge(cluster_id)


@shared_task(name="clusters.tasks.sweep")
def sweep() -> None:
    from clusters.reconcile import sweep

    sweep()
