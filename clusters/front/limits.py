"""How much one caller may ask: so many requests a second, and so many at one time. Pure: the time is given, from a clock that
never jumps.

Each front keeps its own account. Where there are several, each gives its part, for whoever stands before them spreads requests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Over:
    """Why a request is refused, and after how many seconds it is worth another try."""

    sentence: str
    after: float


class Account:
    """Of one token. What a caller may in a second may come at once, and then no more than that, second by second."""

    def __init__(self, now: float) -> None:
        self.at_once = 0
        self._spent = 0.0
        self._at = now

    def enter(self, per_second: int | None, at_once: int | None, now: float, fronts: int = 1) -> Over | None:
        """None lets the request in; `leave` has to follow when it has been answered. A refused one costs nothing."""
        if at_once is not None and self.at_once >= -(-at_once // fronts):
            return Over(f"This token may have {_requests(at_once)} in flight at one time.", 1.0)
        if per_second is not None:
            rate = per_second / fronts
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
        """Whether it says nothing that a new one would not."""
        return self.at_once == 0 and now - self._at > 60


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
