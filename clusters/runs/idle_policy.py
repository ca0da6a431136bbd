"""When an idle service is announced, stopped, or its owner asked: one pure function of what is known of its run.

    busy or unknown ──► idle since … ──► announced ──► stopped
          ▲                  │               │
          └──── busy again, or kept by a user

What cannot be known is unknown, never idle. A stop has always been announced for the full notice, even if the portal
was down or the cloud unreachable meanwhile. Any sign of work withdraws it. Nothing here reads a clock or a row.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

Step = Literal["", "announce", "withdraw", "stop", "announce_end", "ask"]
# Notice before an end (half of a short limit), and the interval of mails about an endless service.
NOTICE = dt.timedelta(minutes=10)
ASK_EVERY = dt.timedelta(days=14)


@dataclass(frozen=True)
class Life:
    """The facts of a run that has been running since `running_since` (None: not yet, or it is ending).

    `signal` is the framework's `idle_signal`. `idle_since` comes from its activity: None while busy or unknown.
    `used_at` is the last time that the gateway let a user in. `is_heard`: the cloud's watch is up to date. Columns of
    Run: `kept_at`, `announced_at` (idle_announced_at), `deadline`, `end_announced_at`, `asked_at` (needed_asked_at).
    """

    signal: str
    policy: str
    after: dt.timedelta
    running_since: dt.datetime | None
    idle_since: dt.datetime | None = None
    used_at: dt.datetime | None = None
    is_heard: bool = True
    kept_at: dt.datetime | None = None
    announced_at: dt.datetime | None = None
    deadline: dt.datetime | None = None
    end_announced_at: dt.datetime | None = None
    asked_at: dt.datetime | None = None

    @property
    def quiet_since(self) -> dt.datetime | None:
        """Since when the run has neither worked nor been used; None while unknown."""
        if self.running_since is None or not self.is_heard:
            return None
        if self.signal == "use":
            return _latest(self.running_since, self.used_at, self.kept_at)
        return _latest(self.running_since, self.idle_since, self.kept_at) if self.idle_since else None

    @property
    def notice(self) -> dt.timedelta:
        return min(NOTICE, self.after / 2)

    @property
    def stops_at(self) -> dt.datetime | None:
        """When the run is stopped if nothing happens; None for never. An announced stop always gets its full notice."""
        quiet = self.quiet_since
        if self.policy != "stop" or quiet is None:
            return None
        return _latest(quiet + self.after, self.announced_at and self.announced_at + self.notice)

    @property
    def ends_soon_from(self) -> dt.datetime | None:
        """When to announce the end by the time limit."""
        if self.deadline is None or self.running_since is None:
            return None
        return self.deadline - min(NOTICE, (self.deadline - self.running_since) / 2)

    @property
    def ask_at(self) -> dt.datetime | None:
        """When to ask the owner whether the run is still needed; None for a run that ends by itself."""
        if self.running_since is None or self.deadline is not None or (self.policy == "stop" and self.quiet_since):
            return None
        return _latest(self.running_since, self.kept_at, self.asked_at) + ASK_EVERY


def step(life: Life, now: dt.datetime) -> tuple[Step, dt.datetime | None]:
    """The next step ("" for none), and when to call again without further news. A step changes the facts, so the caller
    repeats until there is none. The same facts give the same result."""
    if life.running_since is None:
        return "", None
    quiet, due = life.quiet_since, []
    if life.is_heard and life.announced_at and (life.policy == "never" or quiet is None or quiet > life.announced_at):
        return "withdraw", now
    if quiet is not None and life.policy != "never":
        if life.announced_at is None:
            announce_at = quiet + life.after - life.notice
            if now >= announce_at:
                return "announce", now
            due.append(announce_at)
        elif (stops_at := life.stops_at) is not None:
            if now >= stops_at:
                return "stop", now
            due.append(stops_at)
    if life.ends_soon_from and life.end_announced_at is None:
        if now >= life.ends_soon_from:
            return "announce_end", now
        due.append(life.ends_soon_from)
    if life.ask_at:
        if now >= life.ask_at:
            return "ask", now
        due.append(life.ask_at)
    return "", min(due, default=None)


def _latest(first: dt.datetime, *others: dt.datetime | None) -> dt.datetime:
    return max(first, *(each for each in others if each is not None), first)
