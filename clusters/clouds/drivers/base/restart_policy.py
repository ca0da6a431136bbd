"""When a failed task is started again. Pure, and the same for the portal's verdict and for every cloud.

One idea: a restart helps when something other than the program ended it. A task that the cloud took away (a lost node,
an eviction, a preemption) is always restarted and counts nothing. `retries` counts every other failure, as Kubernetes'
backoffLimit does. Without it, a task that was killed or ran out of memory gets one more try, and one whose program
ended with an error none.
"""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Iterable, Sequence
from typing import Protocol

# How often a task may be killed and restarted when the manifest sets no retries.
KILLS = 1
# Signals from outside: kernel out of memory, kubelet, administrator. The program itself causes SIGSEGV, SIGABRT, SIGBUS.
FROM_OUTSIDE = frozenset({128 + signal.SIGKILL, 128 + signal.SIGTERM})
KILLED = frozenset({"OOMKilled", "Evicted"})


class Ended(Protocol):
    """A failed attempt, as clouds and rows describe it."""

    @property
    def reason(self) -> str: ...
    @property
    def exit_code(self) -> int | None: ...


class Attempt(Ended, Protocol):
    @property
    def role(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def disrupted(self) -> bool: ...
    @property
    def started_at(self) -> dt.datetime | None: ...
    @property
    def finished_at(self) -> dt.datetime | None: ...


def ended_itself(attempt: Ended) -> bool:
    """True if the program of a failed attempt ended with an error. An attempt that never ran has no exit code."""
    if attempt.exit_code is None or attempt.reason in KILLED:
        return False
    return attempt.exit_code not in FROM_OUTSIDE


def lost_another(attempt: Attempt, others: Iterable[Attempt]) -> bool:
    """True if another task was taken away or killed during this attempt, which makes the programs of the remaining tasks fail."""
    return any(
        each.phase == "Failed"
        and (each.role, each.index) != (attempt.role, attempt.index)
        and (each.disrupted or not ended_itself(each))
        and _during(each.finished_at, attempt)
        for each in others
    )


def _during(at: dt.datetime | None, attempt: Attempt) -> bool:
    """True if `at` lies within the attempt. An unknown time excludes nothing."""
    start, end = attempt.started_at, attempt.finished_at
    return at is None or ((start is None or start <= at) and (end is None or at <= end))


def exhausted(own: Sequence[bool], retries: int | None) -> bool:
    """True if a task has failed too often. `own` has one entry per failure: True if only the program was at fault."""
    if retries is None:
        return any(own) or len(own) > KILLS
    return len(own) > retries
