"""Times as text, and time zones by IANA name. Everything is stored and computed in UTC."""

from __future__ import annotations

import datetime as dt
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


def zone_named(typed: str) -> str:
    """The zone that somebody means by "shanghai", "new york" or "asia/shanghai"; what was typed if that is none, or several."""
    wanted = typed.strip().replace(" ", "_").lower()
    found = [name for name in zones() if name.lower() == wanted] or [
        name for name in zones() if name.lower().endswith(f"/{wanted}")
    ]
    return found[0] if len(found) == 1 else typed.strip()


@cache
def _known() -> frozenset[str]:
    return frozenset(available_timezones())


def zone_of(name: str) -> ZoneInfo:
    """The zone called `name` (browsers may send any alias); UTC if there is none."""
    return ZoneInfo(name if name in _known() else UTC)


def utc_text(moment: dt.datetime) -> str:
    """As in 2026-01-31T18:00:00Z."""
    return f"{moment.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
