"""A fixed time for tests that look hours ahead or back, so that they say the same at the edge of a month as in its middle."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone


def stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> dt.datetime:
    """For this test it is noon on the 15th of the month before this one for whoever asks Django; PostgreSQL's clock goes on."""
    first = timezone.now().astimezone(dt.UTC).replace(day=1, hour=12, minute=0, second=0, microsecond=0)
    now = (first - dt.timedelta(days=1)).replace(day=15)
    monkeypatch.setattr(timezone, "now", lambda: now)
    return now
