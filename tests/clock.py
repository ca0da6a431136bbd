"""A fixed time, so that tests that look hours ahead or back give the same result at the edge of a month as in its middle."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone


def stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> dt.datetime:
    """Fixes Django's clock at noon on the 15th of last month for this test. PostgreSQL's clock goes on."""
    first = timezone.now().astimezone(dt.UTC).replace(day=1, hour=12, minute=0, second=0, microsecond=0)
    now = (first - dt.timedelta(days=1)).replace(day=15)
    monkeypatch.setattr(timezone, "now", lambda: now)
    return now
