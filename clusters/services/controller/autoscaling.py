"""Decides the number of replicas from the average requests in flight over a minute and over six seconds. Pure.

The rule is that of Knative's autoscaler (knative.dev/docs/serving/autoscaling), on both clouds with our routers' counters: the
minute's average decides. If that of six seconds needs twice the current replicas, it decides, and nothing shrinks for a minute.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, replace
from typing import Any

STABLE = dt.timedelta(seconds=60)
# Ratio of needed to current replicas that starts the panic mode.
PANIC = 2


@dataclass(frozen=True)
class Range:
    least: int
    most: int
    target: int
    idle_after: dt.timedelta = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class Demand:
    """Average requests in flight over a minute (`stable`) and six seconds (`panic`), including waiting ones, and how many wait
    now. `is_known`: a router is alive. Without one the scale does not change, except that `woken` wakes a sleeping service."""

    stable: float = 0.0
    panic: float = 0.0
    waiting: int = 0
    is_known: bool = True
    woken: bool = False


@dataclass(frozen=True)
class Scale:
    """The last decision, as stored in `Service.scale`. `below`: since when fewer replicas would do. `idle`: since when there
    are no requests. `panic`: until when nothing shrinks."""

    replicas: int
    since: dt.datetime
    why: str = ""
    below: dt.datetime | None = None
    idle: dt.datetime | None = None
    panic: dt.datetime | None = None

    @classmethod
    def read(cls, kept: dict[str, Any], least: int, now: dt.datetime) -> Scale:
        """From the stored value; initially `least` replicas, but at least one."""
        times = {name: _moment(kept.get(name)) for name in ("below", "idle", "panic")}
        since = _moment(kept.get("since")) or now
        return cls(int(kept.get("replicas", max(1, least))), since, str(kept.get("why", "")), **times)

    @property
    def kept(self) -> dict[str, Any]:
        times = {"since": self.since, "below": self.below, "idle": self.idle, "panic": self.panic}
        said = {name: at.isoformat() for name, at in times.items() if at}
        return {"replicas": self.replicas, "why": self.why, **said}


def scaled(range_: Range, kept: Scale, demand: Demand, now: dt.datetime) -> Scale:
    """The new decision; `kept` itself if nothing changes. Clocks may jump: times in the future are reset to now."""
    kept = _sane(kept, now)
    if range_.least == range_.most:
        return _to(kept, range_.most, "As many as its definition says.", now)
    bounded = min(range_.most, max(range_.least, kept.replicas))
    if bounded != kept.replicas:
        return _to(kept, bounded, f"Its definition says {range_.least} to {range_.most}.", now)
    if not demand.is_known:
        return _to(kept, 1, "Somebody asks.", now) if demand.woken and not kept.replicas else kept
    if not kept.replicas:
        # In-flight averages may still include requests that were answered. Unanswered ones wait.
        if not (demand.waiting or demand.woken):
            return kept
        asked = max(demand.waiting, demand.panic)
        count = min(range_.most, max(1, math.ceil(asked / range_.target)))
        return replace(_to(kept, count, "Somebody asks.", now), idle=None, below=None)
    is_asked = demand.waiting or demand.panic or demand.woken or demand.stable
    kept = replace(kept, idle=None if is_asked else kept.idle or now)
    return _by_requests(range_, kept, demand, now)


def _by_requests(range_: Range, kept: Scale, demand: Demand, now: dt.datetime) -> Scale:
    least = max(1, range_.least)
    calm = min(range_.most, max(least, math.ceil(demand.stable / range_.target)))
    hasty = min(range_.most, max(least, math.ceil(demand.panic / range_.target)))
    said = f"{demand.stable:.1f} requests in flight over a minute, {range_.target} are meant for each."
    if hasty >= PANIC * kept.replicas:
        kept = replace(kept, panic=now + STABLE, below=None)
        if calm <= hasty:
            said = f"{demand.panic:.1f} requests in flight over six seconds, {range_.target} are meant for each."
        return _to(kept, max(calm, hasty), said, now)
    if kept.panic and now < kept.panic:
        return _to(replace(kept, below=None), max(kept.replicas, hasty, calm), said, now)
    kept = replace(kept, panic=None)
    if calm > kept.replicas:
        return _to(replace(kept, below=None), calm, said, now)
    if range_.least == 0 and kept.idle and now >= kept.idle + range_.idle_after:
        seconds = int(range_.idle_after.total_seconds())
        return replace(_to(kept, 0, f"Nobody has asked for {seconds} s.", now), below=None, idle=None)
    if calm == kept.replicas:
        return replace(kept, below=None)
    if kept.below is None:
        return replace(kept, below=now)
    return replace(_to(kept, calm, said, now), below=None) if now >= kept.below + STABLE else kept


def _to(kept: Scale, count: int, why: str, now: dt.datetime) -> Scale:
    return kept if count == kept.replicas else replace(kept, replicas=count, since=now, why=why)


def _sane(kept: Scale, now: dt.datetime) -> Scale:
    below = min(kept.below, now) if kept.below else None
    idle = min(kept.idle, now) if kept.idle else None
    panic = kept.panic if kept.panic and kept.panic <= now + STABLE else None
    return replace(kept, below=below, idle=idle, panic=panic)


def _moment(said: Any) -> dt.datetime | None:
    return dt.datetime.fromisoformat(said) if isinstance(said, str) else None
