"""Wake-ups: hints by Celery that a loop may have work. A lost one only costs the time until the loop's next round.

They are sent by name, so that code that changes a row need not import the loops that read it. All wake-ups of a process
go through `send`, so only the first waits for a broker that does not answer.
"""

from __future__ import annotations

import logging

from celery import current_app
from django.core.cache import cache
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from portal.network.breaker import Breaker, NotCalled

log = logging.getLogger(__name__)

# Seconds without wake-ups after a broker failure; the sweep comes as often.
QUIET = 5.0
# Seconds for which one wake-up at most stands for all later ones of its key. The woken task first deletes the key from
# the cache, then looks for everything that is due.
ONE_FOR_ALL = 5
WEBHOOKS = "webhooks:woken"
# A lower priority than tasks of the clock and tasks that find all due work: those are few, while hundreds of rows may wait.
BEHIND = 6
UNANSWERED = (OperationalError, RedisError)
_broker = Breaker(lambda error, _: False if isinstance(error, UNANSWERED) else None, rest=QUIET)


def wake_webhooks() -> None:
    """Schedules sending deliveries soon. Call it after the commit."""
    send("portal.tasks.send_webhooks", once=WEBHOOKS)


def waiting() -> int:
    """The number of wake-ups that wait for a worker; 0 if the broker does not answer."""
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
    """Lets the next wake-up of that key be sent again."""
    cache.delete(once)


def woken(once: str) -> bool:
    """Whether a wake-up of that key was sent that nobody has heard."""
    return cache.get(once) is not None


def send(task: str, *keys: int | str, once: str = "") -> None:
    """Schedules `task` soon; with `once`, only if no wake-up of that key is waiting. A task woken with a key calls `heard`
    before it looks for work. After a broker failure nothing is sent for QUIET seconds: the sweeps find the work."""
    try:
        with _broker.call():
            if not once or cache.add(once, 1, timeout=ONE_FOR_ALL):
                current_app.send_task(task, keys, expires=60, retry=False, priority=BEHIND if keys else 0)
    except NotCalled:
        return
    except UNANSWERED as error:
        log.warning("the broker is out of reach, %s %s waits for its next round: %s", task, keys, error)
