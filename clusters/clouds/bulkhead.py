"""Limits how many threads of a process one cloud may hold, so that a silent cloud does not block the others.

Each cloud has a circuit breaker (`portal.network.breaker`). If a cloud counts as away, by its watch or after slow unanswered
calls, one thread of the process probes it; SILENT_AT_ONCE threads probe all such clouds together. Other callers get PutOff at
once. The sweep retries them: a few while the cloud is away, all when it answers again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from clusters.clouds.drivers.base import CloudError, CloudRefused, Unanswered
from clusters.clouds.models import CloudState
from portal.network.breaker import Breaker, Busy, NotCalled

# Half of a worker process's threads.
MOST = 4
SILENT_AT_ONCE = 2
# Seconds. Callers do not queue behind calls older than this, and a call that fails after it means that the cloud is away.
SLOW = 3.0
# Seconds for which an answer outweighs trouble of the watch: perhaps only listing is forbidden.
LASTS = 30.0
AWAY = "Its cloud does not answer at the moment; this is tried again when it does."
BUSY = "Its cloud takes long to answer; this follows when others there have been dealt with."


class PutOff(CloudError):
    """The cloud was not called: enough threads of this process wait for its answer already."""


def _answered(error: BaseException, seconds: float) -> bool | None:
    if isinstance(error, CloudRefused):
        return True
    return False if isinstance(error, Unanswered) and seconds > SLOW else None


class Lanes:
    """The breakers of one process."""

    def __init__(self) -> None:
        self._tries = threading.Semaphore(SILENT_AT_ONCE)
        self._of: dict[str, Breaker] = {}

    def __getitem__(self, cloud: str) -> Breaker:
        return self._of.setdefault(cloud, Breaker(_answered, most=MOST, slow=SLOW, tries=self._tries))

    @contextmanager
    def taken(self, cloud: str, *, trouble: bool) -> Iterator[None]:
        """Guards calls to a cloud. `trouble`: its watch is failing. Raises PutOff."""
        breaker = self[cloud]
        try:
            with breaker.call(doubtful=trouble and time.monotonic() - breaker.answered_at > LASTS):
                yield
        except NotCalled as refused:
            raise PutOff(BUSY if isinstance(refused, Busy) else AWAY) from refused


_of_this_process = Lanes()


@contextmanager
def lane(cloud: str) -> Iterator[None]:
    """Guards calls to `cloud`. Raises PutOff at once while it is away. One query."""
    trouble = CloudState.objects.filter(name=cloud).exclude(trouble="").exists()
    with _of_this_process.taken(cloud, trouble=trouble):
        yield
