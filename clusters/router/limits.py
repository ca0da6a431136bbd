"""Rate limits of one token: requests per second and requests in flight. Pure: callers pass the time, from a monotonic clock.

Each router keeps its own account. With several routers each grants its share, because the load balancer spreads requests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Over:
    """The reason for a refusal, and the seconds after which a retry makes sense."""

    sentence: str
    after: float


class Account:
    """Leaky bucket of one token: one second's worth of requests may come as a burst, then `per_second`."""

    def __init__(self, now: float) -> None:
        self.at_once = 0
        self._spent = 0.0
        self._at = now

    def enter(self, per_second: int | None, at_once: int | None, now: float, routers: int = 1) -> Over | None:
        """Returns None if the request may enter; `leave` must follow once it is answered. A refused request costs nothing."""
        if at_once is not None and self.at_once >= -(-at_once // routers):
            return Over(f"This token may have {_requests(at_once)} in flight at one time.", 1.0)
        if per_second is not None:
            rate = per_second / routers
            self._spent = max(0.0, self._spent - max(0.0, now - self._at) * rate)
            self._at = max(self._at, now)
            most = max(1.0, rate)
            if self._spent + 1 > most + 1e-9:
                return Over(f"This token may send {_requests(per_second)} a second.", (self._spent + 1 - most) / rate)
            self._spent += 1
        self.at_once += 1
        return None

    def leave(self) -> None:
        self.at_once -= 1

    def is_old(self, now: float) -> bool:
        """True if the account holds no more than a new one would."""
        return self.at_once == 0 and now - self._at > 60


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
