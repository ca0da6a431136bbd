"""Cron times, in zones with daylight saving time."""

from __future__ import annotations

import datetime as dt

import pytest

from clusters.schedules.manifest import ScheduleManifest, ScheduleSpec
from portal.errors import Invalid
from portal.manifests import parse


def after(cron, at, *, zone="Europe/Berlin", count=3):
    times = ScheduleSpec(cron=cron, time_zone=zone, cluster="train").times(dt.datetime.fromisoformat(at))
    return [f"{next(times):%m-%d %H:%M}" for _ in range(count)]


def test_half_past_two_comes_once_on_every_day_also_where_clocks_change():
    # On 2026-03-29 clocks go from 02:00 to 03:00: 02:30 falls right after the gap.
    assert after("30 2 * * *", "2026-03-28T00:00Z") == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    # On 2026-10-25 they go from 03:00 back to 02:00: it falls on the first 02:30 only …
    assert after("30 2 * * *", "2026-10-24T00:00Z") == ["10-24 00:30", "10-25 00:30", "10-26 01:30"]
    # … and does not repeat when asked during the second of the two hours.
    assert after("30 2 * * *", "2026-10-25T01:10Z", count=1) == ["10-26 01:30"]
    assert after("*/30 * * * *", "2026-10-25T00:01Z") == ["10-25 00:30", "10-25 01:00", "10-25 01:30"]
    assert after("0 0 29 2 *", "2026-01-01T00:00Z", zone="UTC", count=1) == ["02-29 00:00"]


@pytest.mark.parametrize(
    ("spec", "field", "sentence"),
    [
        ({"cron": "* * * * * *"}, "spec.cron", "Give five fields"),
        ({"cron": "61 * * * *"}, "spec.cron", "This is no cron expression: Bad minute."),
        ({"cron": "0 0 30 2 *"}, "spec.cron", "This is no cron expression: Bad day-of-month."),
        ({"timeZone": "Berlin"}, "spec.timeZone", "“Berlin” is no time zone; write it like Europe/Berlin, or UTC."),
        ({"pipeline": "nightly"}, "spec.cluster", "Name a cluster or a pipeline."),
    ],
)
def test_what_is_wrong_is_said_at_its_field(spec, field, sentence):
    body = {"metadata": {"name": "night"}, "spec": {"cron": "0 2 * * *", "cluster": "train", **spec}}
    with pytest.raises(Invalid) as caught:
        parse(ScheduleManifest, body, appcode="ops-demo")
    [error] = caught.value.errors
    assert ".".join(error.path) == field
    assert error.message.startswith(sentence)
