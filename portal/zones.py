"""Time zones by their IANA names: what people may choose, and the zone of a name. Everything is stored and reckoned in UTC."""

from __future__ import annotations

from functools import cache
from zoneinfo import ZoneInfo, available_timezones

UTC = "UTC"


@cache
def zones() -> list[str]:
    """UTC, and every zone of a place ("Asia/Shanghai"); not the old names that stand beside them."""
    places = {
        name for name in available_timezones() if "/" in name and not name.startswith(("Etc/", "posix/", "right/"))
    }
    return [UTC, *sorted(places)]


@cache
def _known() -> frozenset[str]:
    return frozenset(available_timezones())


def zone_of(name: str) -> ZoneInfo:
    """The zone called `name`, which a browser says by any name there is; UTC for what is none."""
    return ZoneInfo(name if name in _known() else UTC)
