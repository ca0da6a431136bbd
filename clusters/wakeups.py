"""Wake-ups: hints by Celery that a row may need work. Losing one costs time until the next sweep, nothing else.

Sent by name, so that whoever changes a row need not know the loops that look at it (`tasks.py`).
"""

from __future__ import annotations

import logging
import time

from celery import current_app
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

# Seconds; as long as it takes until the sweep comes by itself.
QUIET = 5.0
_quiet_until = 0.0


def wake(run_id: int) -> None:
    """Asks for `run_id` to be reconciled soon. Called after a commit; without a broker the sweep does it later."""
    _send("clusters.tasks.reconcile_run", run_id)


def wake_waiting(appcode_id: int) -> None:
    """Asks for the runs of an appcode that wait for quota to be looked at again."""
    _send("clusters.tasks.admit_waiting", appcode_id)


def wake_purge(cluster_id: int) -> None:
    """Asks for the logs of a deleted cluster to be removed once its runs are over."""
    _send("clusters.tasks.purge_cluster", cluster_id)


def wake_logs() -> None:
    """Asks for logs of tasks that have ended to be copied."""
    _send("clusters.tasks.copy_logs")


def wake_volume(volume_id: int) -> None:
    """Asks for a cloud to be told what is wanted of a volume."""
    _send("clusters.tasks.settle_volume", volume_id)


def _send(task: str, *keys: int) -> None:
    """Never waits twice for a broker that does not answer: after a failure the sweep alone is trusted for a while."""
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    try:
        current_app.send_task(task, keys, expires=60, retry=False)
    except (OperationalError, RedisError) as error:
        _quiet_until = time.monotonic() + QUIET
        log.warning("the broker is out of reach, the sweep will find %s %s: %s", task, keys, error)
