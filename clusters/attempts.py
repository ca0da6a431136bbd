"""When a task that has failed is started again. Pure, and the same for the portal's verdict and for every cloud.

One idea: starting a program again helps when something other than the program ended it. What the cloud took away (a lost node, an
eviction, a preemption) is always started again and counts nothing. A number of retries counts every other failure, as
Kubernetes' backoffLimit does. Where a manifest gives none, a task that was killed or ran out of memory has one more try, and one
whose program ended with an error has none.
"""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Iterable, Sequence
from typing import Protocol

# Of a manifest that says nothing: how often a task may be killed and started again.
KILLS = 1
# The signals that come from outside: the kernel out of memory, a kubelet, an administrator. SIGSEGV, SIGABRT, SIGBUS and the like
# are the program's own.
FROM_OUTSIDE = frozenset({128 + signal.SIGKILL, 128 + signal.SIGTERM})
KILLED = frozenset({"OOMKilled", "Evicted"})


class Ended(Protocol):
    """An attempt that has failed, as clouds and rows say it."""

    @property
    def reason(self) -> str: ...
    @property
    def exit_code(self) -> int | None: ...


class Attempt(Ended, Protocol):
    """Any attempt."""

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
    """Whether the program of a failed attempt ended with an error. What never ran has no exit code."""
    if attempt.exit_code is None or attempt.reason in KILLED:
        return False
    return attempt.exit_code not in FROM_OUTSIDE


def lost_another(attempt: Attempt, others: Iterable[Attempt]) -> bool:
    """Whether another task was taken away or killed while this attempt ran: the programs of the others end with errors then."""
    return any(
        each.phase == "Failed"
        and (each.role, each.index) != (attempt.role, attempt.index)
        and (each.disrupted or not ended_itself(each))
        and _during(each.finished_at, attempt)
        for each in others
    )


def _during(at: dt.datetime | None, attempt: Attempt) -> bool:
    """Times that nobody knows exclude nothing."""
    start, end = attempt.started_at, attempt.finished_at
    return at is None or ((start is None or start <= at) and (end is None or at <= end))


def exhausted(own: Sequence[bool], retries: int | None) -> bool:
    """Whether a task has failed too often. `own` says of each failure whether the program alone is to blame for it."""
    if retries is None:
        return any(own) or len(own) > KILLS
    return len(own) > retries
