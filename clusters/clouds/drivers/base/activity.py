"""Decides whether a task works, poll by poll, from its program's own reports. Pure; used by every cloud.

A program reports as JSON at the path `Endpoint.activity`; only `busy` is required:

    {"busy": "A cell runs.", "count": 12, "cpu_seconds": 87.4, "network_bytes": 1200}

`busy` is a sentence on why it works at this moment, or "". The other values only grow: the number of things ever begun, which
reveals work between two polls; CPU time of all its processes; bytes exchanged with other machines. Growth beyond an idle
program's share counts as work, too. Open connections do not: editors keep theirs busy all day.

The clock starts with the first poll, and again after each failed one: without data the state is unknown, never idle. Times
reported by a program are never used.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

from clusters.clouds.drivers.base.observations import ActivityState

# Limits for an idle program with its page open: share of one core, and bytes per second.
CPU_SHARE, NETWORK_RATE = 0.1, 64 * 1024
# Polls without work before a task counts as idle (since the first of them). Somebody who runs cell after cell stays busy, and
# the gaps cause no events.
QUIET_LOOKS = 4
# Larger counters are rejected: integers of arbitrary length break arithmetic.
LARGEST = 2**63
NOT_ASKED, NO_ANSWER = "It is being looked at.", "It does not say whether it works."


@dataclass(frozen=True)
class Look:
    """One poll at `at` (seconds): the report, and GPU utilization (0 to 100), None if GPUs are not measured."""

    at: float
    busy: str = ""
    count: int = 0
    cpu_seconds: float = 0.0
    network_bytes: int = 0
    gpu_percent: int | None = 0


@dataclass(frozen=True)
class Activity:
    """The state after some polls. `quiet`: number of latest polls without work, the first at `quiet_since`."""

    state: ActivityState = "unknown"
    since: float = 0.0
    why: str = NOT_ASKED
    last: Look | None = None
    quiet: int = 0
    quiet_since: float = 0.0


def after(known: Activity, look: Look | None, at: float, why: str = NO_ANSWER) -> Activity:
    """Returns the state after another poll at `at`. `look` None: the poll failed, for the reason `why`."""
    if look is not None and look.gpu_percent is None:
        look, why = None, "Nobody measures its GPUs."
    if look is None:
        return Activity("unknown", known.since if known.state == "unknown" else at, why)
    if work := worked(known.last, look):
        return Activity("busy", *((known.since, known.why) if known.state == "busy" else (at, work)), last=look)
    since = known.quiet_since if known.quiet else at
    quiet = known.quiet + 1
    if quiet >= QUIET_LOOKS:
        return Activity("idle", since, "", look, quiet, since)
    return replace(known, last=look, quiet=quiet, quiet_since=since)


def worked(before: Look | None, now: Look) -> str:
    """Returns why a task works, or worked since the previous poll; "" if nothing shows it."""
    if now.busy:
        return now.busy
    if now.gpu_percent:
        return "Its GPUs work."
    if before is None:
        return ""
    if now.count != before.count:
        return "It has worked a moment ago."
    seconds = max(now.at - before.at, 1e-3)
    cpu = now.cpu_seconds - before.cpu_seconds
    # A smaller sum means that processes ended and took their CPU time along, which hides the work of the others.
    if cpu < 0 or cpu / seconds > CPU_SHARE:
        return "Its processes compute."
    sent = now.network_bytes - before.network_bytes
    return "It sends or receives data." if sent < 0 or sent / seconds > NETWORK_RATE else ""


def read(body: bytes, at: float, gpu_percent: int | None) -> Look | None:
    """Parses a program's report, which is untrusted. Returns None if it is invalid."""
    try:
        said = json.loads(body)
        busy, count = said["busy"], said.get("count", 0)
        cpu, sent = float(said.get("cpu_seconds", 0)), said.get("network_bytes", 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    if not isinstance(busy, str) or not math.isfinite(cpu):
        return None
    if not all(isinstance(each, int) and abs(each) < LARGEST for each in (count, sent)):
        return None
    return Look(at, busy[:200], count, cpu, sent, gpu_percent)
