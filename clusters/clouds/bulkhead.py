"""How many threads of a process one cloud may hold, so that one that does not answer takes none from the others.

Whoever tells a cloud something takes its lane first. A cloud that answers has MOST threads; who finds them taken waits for a
moment, as long as any of their calls is young. Of one that is known to be away, by its watch or by calls that nobody answered
for a long time, one thread of a process tries whether it is back, and SILENT_AT_ONCE threads try all such clouds together.
Everybody else is put off at once and comes again by the sweep, which wakes few for a cloud that is away, and all when it is
heard again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from clusters.clouds.drivers.base import CloudError, CloudRefused, Unanswered
from clusters.models import CloudState

# Half of a worker's threads.
MOST = 4
SILENT_AT_ONCE = 2
# Seconds. A call that has taken so long is not waited for, and says that its cloud is away when it ends without an answer.
SLOW = 3.0
# For how long a failure or an answer says how the next calls will fare.
LASTS = 30.0
AWAY = "Its cloud does not answer at the moment; this is tried again when it does."
BUSY = "Its cloud takes long to answer; this follows when others there have been dealt with."


class PutOff(CloudError):
    """Nothing was asked of the cloud: enough others of this process wait for its answer already."""


@dataclass(eq=False)
class _Call:
    began: float
    silent: bool


@dataclass
class _Lane:
    calls: set[_Call] = field(default_factory=set)
    answered: float = float("-inf")
    failed: float = float("-inf")

    def is_silent(self, trouble: bool, now: float) -> bool:
        if now - self.failed < LASTS:
            return True
        # Somebody may be kept from listing only.
        return trouble and now - self.answered > LASTS


class Lanes:
    """Those of one process. Safe in many threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lanes: dict[str, _Lane] = {}
        self._silent = 0

    @contextmanager
    def taken(self, cloud: str, *, trouble: bool) -> Iterator[None]:
        """Around calls to a cloud; `trouble` is whether its watch is in trouble. Raises PutOff."""
        call = self._enter(cloud, trouble)
        # None for what says nothing about the cloud.
        answers: bool | None = None
        try:
            yield
            answers = True
        except CloudRefused:
            answers = True
            raise
        except Unanswered:
            answers = False if time.monotonic() - call.began > SLOW else None
            raise
        finally:
            self._leave(cloud, call, answers)

    def _enter(self, cloud: str, trouble: bool) -> _Call:
        with self._changed:
            lane = self._lanes.setdefault(cloud, _Lane())
            while True:
                now = time.monotonic()
                if silent := lane.is_silent(trouble, now):
                    if lane.calls or self._silent >= SILENT_AT_ONCE:
                        raise PutOff(AWAY)
                    break
                if len(lane.calls) < MOST:
                    break
                # A slow one among them says nothing: of a cloud that is silent, all get old.
                left = max(call.began for call in lane.calls) + SLOW - now
                if left <= 0:
                    raise PutOff(BUSY)
                self._changed.wait(left)
            call = _Call(now, silent)
            lane.calls.add(call)
            self._silent += silent
            return call

    def _leave(self, cloud: str, call: _Call, answers: bool | None) -> None:
        with self._changed:
            lane = self._lanes[cloud]
            lane.calls.remove(call)
            self._silent -= call.silent
            if answers:
                lane.answered, lane.failed = time.monotonic(), float("-inf")
            elif answers is False:
                lane.answered, lane.failed = float("-inf"), time.monotonic()
            self._changed.notify_all()


_of_this_process = Lanes()


@contextmanager
def lane(cloud: str) -> Iterator[None]:
    """Around calls that tell `cloud` something. Raises PutOff at once while it is away. One query."""
    trouble = CloudState.objects.filter(name=cloud).exclude(trouble="").exists()
    with _of_this_process.taken(cloud, trouble=trouble):
        yield
