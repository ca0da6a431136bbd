"""Time zones by IANA name: those that users may choose, and lookup by name. Everything is stored and computed in UTC."""

from __future__ import annotations

from functools import cache
from zoneinfo import ZoneInfo, available_timezones

UTC = "UTC"


@cache
def zones() -> list[str]:
    """UTC and every zone of a place ("Asia/Shanghai"), without the legacy aliases."""
    places = {
        name for name in available_timezones() if "/" in name and not name.startswith(("Etc/", "posix/", "right/"))
    }
    return [UTC, *sorted(places)]


@cache
def _known() -> frozenset[str]:
    return frozenset(available_timezones())


def zone_of(name: str) -> ZoneInfo:
    """The zone called `name` (browsers may send any alias); UTC if there is none."""
    return ZoneInfo(name if name in _known() else UTC)
