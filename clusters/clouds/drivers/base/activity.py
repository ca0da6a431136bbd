"""Whether a task works: pure, from what its program says of itself, look by look. Every cloud reckons with it.

A program says so at the path `Endpoint.activity`, as JSON; `busy` is all that it has to say:

    {"busy": "A cell runs.", "count": 12, "cpu_seconds": 87.4, "network_bytes": 1200}

`busy` says in a sentence why it works at this moment, "" when it does not. The others only grow: what was ever begun, so that
work between two looks is seen; CPU time of all its processes; bytes to and from other machines. What grows by more than an idle
program's own share is work, too. Open connections say nothing: editors keep theirs busy all day.

The clock begins with the first look, and anew after each that failed: what cannot be known is unknown, never idle, and no time
of the program's own is ever believed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

from clusters.clouds.drivers.base.seen import ActivityState

# Shares of an idle program with its page open: of one core, and bytes a second.
CPU_SHARE, NETWORK_RATE = 0.1, 64 * 1024
# So many looks that show nothing come before a task is called idle (since the first of them): who tries one cell after the other
# is busy all the while, and nobody is told of each.
QUIET_LOOKS = 4
# No counter of a program is larger; with numbers of any length cannot be reckoned.
LARGEST = 2**63
NOT_ASKED, NO_ANSWER = "It is being looked at.", "It does not say whether it works."


@dataclass(frozen=True)
class Look:
    """What was seen at `at` (seconds): what the program said, and how busy its GPUs are (0 to 100), None where they are not
    measured although it has some."""

    at: float
    busy: str = ""
    count: int = 0
    cpu_seconds: float = 0.0
    network_bytes: int = 0
    gpu_percent: int | None = 0


@dataclass(frozen=True)
class Activity:
    """What is known after some looks. `quiet` counts those at the end that showed no work, the first at `quiet_since`."""

    state: ActivityState = "unknown"
    since: float = 0.0
    why: str = NOT_ASKED
    last: Look | None = None
    quiet: int = 0
    quiet_since: float = 0.0


def after(known: Activity, look: Look | None, at: float, why: str = NO_ANSWER) -> Activity:
    """What is known after another look, at `at`; None is one that failed, `why` in a sentence."""
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
    """Why a task works, or worked since the look before; "" when nothing shows it."""
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
    # What shrinks was counted of processes that are gone with their share: nobody knows what the others did.
    if cpu < 0 or cpu / seconds > CPU_SHARE:
        return "Its processes compute."
    sent = now.network_bytes - before.network_bytes
    return "It sends or receives data." if sent < 0 or sent / seconds > NETWORK_RATE else ""


def read(body: bytes, at: float, gpu_percent: int | None) -> Look | None:
    """What a program says, None when it is none of this: whatever it answers does no harm."""
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
