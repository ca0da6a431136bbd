"""Wake-ups of the portal's own loops: hints that there may be work. Losing one costs time until the next sweep, nothing else."""

from __future__ import annotations

import logging
import time

from celery import current_app
from django.core.cache import cache
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

# Seconds; as long as it takes until the sweep comes by itself.
QUIET = 5.0
# Seconds for which one wake-up stands for all: whoever is woken looks for everything that is due, and a little longer.
ONE_FOR_ALL = 1
# Seconds for which a process does not even ask whether somebody was woken: a transaction may record a thousand events.
NEAR = 0.2
_quiet_until = 0.0


def wake_webhooks() -> None:
    """Asks for deliveries to be sent soon. Called after a commit; the sender lingers for as long as this keeps quiet."""
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    _quiet_until = time.monotonic() + NEAR
    try:
        if cache.add("webhooks:woken", 1, timeout=ONE_FOR_ALL):
            current_app.send_task("portal.tasks.send_webhooks", expires=60, retry=False)
    except (OperationalError, RedisError) as error:
        _quiet_until = time.monotonic() + QUIET
        log.warning("the broker is out of reach, the sweep will send webhooks: %s", error)
