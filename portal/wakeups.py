"""Wake-ups: hints by Celery that a loop may have work. Losing one costs time until the loop's next round, nothing else.

Sent by name, so that whoever changes a row need not know the loops that look at it. All wake-ups of a process go through
`send`, whoever they are of: when the broker does not answer, only the first waits for it.
"""

from __future__ import annotations

import logging

from celery import current_app
from django.core.cache import cache
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from portal.breaker import Breaker, NotCalled

log = logging.getLogger(__name__)

# Seconds; as long as it takes until the sweep comes by itself.
QUIET = 5.0
# Seconds for which one wake-up stands for all at most. Who is woken looks for everything that is due, and first takes the key
# in the cache away.
ONE_FOR_ALL = 5
WEBHOOKS = "webhooks:woken"
# Behind what the clock asks for, and what looks for everything that is due: those are few, and hundreds of rows may wait.
BEHIND = 6
UNANSWERED = (OperationalError, RedisError)
_broker = Breaker(lambda error, _: False if isinstance(error, UNANSWERED) else None, rest=QUIET)


def wake_webhooks() -> None:
    """Asks for deliveries to be sent soon. Called after a commit."""
    send("portal.tasks.send_webhooks", once=WEBHOOKS)


def waiting() -> int:
    """How many wake-ups wait for a worker; 0 where the broker does not say."""
    try:
        with _broker.call(), current_app.connection_or_acquire() as broker:
            queue = current_app.conf.task_default_queue
            return int(broker.default_channel.queue_declare(queue).message_count)
    except NotCalled:
        return 0
    except UNANSWERED as error:
        log.warning("the broker is out of reach: %s", error)
        return 0


def heard(once: str) -> None:
    """From here on another wake-up of that key is sent."""
    cache.delete(once)


def send(task: str, *keys: int | str, once: str = "") -> None:
    """Asks for `task` to be run soon; where `once` is given, only if no wake-up of that key waits to be run.

    What is woken under a key says that it `heard` it before it looks.

    Never waits twice for a broker that does not answer: after a failure the sweeps alone are trusted for a while.
    """
    try:
        with _broker.call():
            if not once or cache.add(once, 1, timeout=ONE_FOR_ALL):
                current_app.send_task(task, keys, expires=60, retry=False, priority=BEHIND if keys else 0)
    except NotCalled:
        return
    except UNANSWERED as error:
        log.warning("the broker is out of reach, %s %s waits for its next round: %s", task, keys, error)
