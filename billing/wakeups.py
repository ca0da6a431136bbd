"""Wake-ups: hints that a loop may have work. Losing one costs time until its next round, nothing else."""

from __future__ import annotations

import logging

from celery import current_app
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


def wake_mail() -> None:
    """Asks for mail to be sent soon. Called after a commit."""
    _send("billing.tasks.send_mail")


def wake_closing() -> None:
    """Asks for months that are due to be closed soon."""
    _send("billing.tasks.close_months")


def _send(task: str) -> None:
    try:
        current_app.send_task(task, expires=60, retry=False)
    except (OperationalError, RedisError) as error:
        log.warning("the broker is out of reach, %s waits for its next round: %s", task, error)
