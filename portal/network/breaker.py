"""A circuit breaker: a silent server does not make every caller wait and holds few threads.

    closed      calls go through, `most` at a time; further callers wait while the youngest call is not slow
    open        for `rest` seconds after a failure no call is made
    half-open   then one call at a time tries, until one is answered

The libraries pybreaker, circuitbreaker and purgatory do not limit calls in progress; pybreaker makes one at a time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class NotCalled(Exception):
    """No call was made. Its cause is the failure that opened the breaker, if there was one."""


class Busy(NotCalled):
    """The maximum number of calls is in progress, and they are slow."""


@dataclass(eq=False)
class _Call:
    began: float
    tries: bool


class Breaker:
    """Guards the calls of one process to one server. Thread-safe. `answered(error, seconds)` tells whether the server
    answered a failed call; None if that is unclear. Breakers may share `tries`, which limits how many of them are
    half-open at a time. Times are in seconds."""

    def __init__(
        self,
        answered: Callable[[BaseException, float], bool | None],
        *,
        rest: float = 0.0,
        most: int = sys.maxsize,
        slow: float = 0.0,
        tries: threading.Semaphore | None = None,
    ) -> None:
        self.rest, self.most, self.slow = rest, most, slow
        self.answered_at = self.failed_at = float("-inf")
        self._answered, self._tries = answered, tries or threading.Semaphore(sys.maxsize)
        self._changed = threading.Condition()
        self._calls: set[_Call] = set()
        self._failure: BaseException | None = None

    @contextmanager
    def call(self, *, doubtful: bool = False) -> Iterator[None]:
        """Context of one call. `doubtful` makes it a half-open try even without a failure. Raises NotCalled."""
        call = self._enter(doubtful)
        failure: BaseException | None = None
        answered: bool | None = True
        try:
            yield
        except BaseException as error:
            failure, answered = error, self._answered(error, time.monotonic() - call.began)
            raise
        finally:
            self._leave(call, answered, failure)

    def _enter(self, doubtful: bool) -> _Call:
        with self._changed:
            while True:
                now = time.monotonic()
                if tries := doubtful or self._failure is not None:
                    if now < self.failed_at + self.rest or self._calls or not self._tries.acquire(blocking=False):
                        raise NotCalled from self._failure
                    break
                if len(self._calls) < self.most:
                    break
                # Only the youngest call counts: with a silent server every call gets old, while one slow call proves nothing.
                left = max(call.began for call in self._calls) + self.slow - now
                if left <= 0:
                    raise Busy
                self._changed.wait(left)
            call = _Call(now, tries)
            self._calls.add(call)
            return call

    def _leave(self, call: _Call, answered: bool | None, failure: BaseException | None) -> None:
        with self._changed:
            self._calls.remove(call)
            if call.tries:
                self._tries.release()
            if answered:
                self._failure, self.answered_at = None, time.monotonic()
            elif answered is False:
                self._failure, self.failed_at = failure, time.monotonic()
            self._changed.notify_all()
