"""How many threads of a process one cloud may hold, so that one that does not answer takes none from the others.

Each cloud has a circuit breaker (`portal.breaker`). Of one that is known to be away, by its watch or by calls that nobody
answered for a long time, one thread of a process tries whether it is back, and SILENT_AT_ONCE threads try all such clouds
together. Everybody else is put off at once and comes again by the sweep, which wakes few for a cloud that is away, and all
when it is heard again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from clusters.clouds.drivers.base import CloudError, CloudRefused, Unanswered
from clusters.models import CloudState
from portal.breaker import Breaker, Busy, NotCalled

# Half of a worker's threads.
MOST = 4
SILENT_AT_ONCE = 2
# Seconds. A call that has taken so long is not waited for, and says that its cloud is away when it ends without an answer.
SLOW = 3.0
# For how long an answer counts for more than trouble of the watch: somebody may be kept from listing only.
LASTS = 30.0
AWAY = "Its cloud does not answer at the moment; this is tried again when it does."
BUSY = "Its cloud takes long to answer; this follows when others there have been dealt with."


class PutOff(CloudError):
    """Nothing was asked of the cloud: enough others of this process wait for its answer already."""


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
        """Around calls to a cloud; `trouble` is whether its watch is in trouble. Raises PutOff."""
        breaker = self[cloud]
        try:
            with breaker.call(doubtful=trouble and time.monotonic() - breaker.answered_at > LASTS):
                yield
        except NotCalled as refused:
            raise PutOff(BUSY if isinstance(refused, Busy) else AWAY) from refused


_of_this_process = Lanes()


@contextmanager
def lane(cloud: str) -> Iterator[None]:
    """Around calls that tell `cloud` something. Raises PutOff at once while it is away. One query."""
    trouble = CloudState.objects.filter(name=cloud).exclude(trouble="").exists()
    with _of_this_process.taken(cloud, trouble=trouble):
        yield
