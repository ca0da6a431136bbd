"""REST and files report, as the page does, which hours were deleted."""

from __future__ import annotations

import csv
import datetime as dt
import io
from dataclasses import dataclass, replace
from decimal import Decimal

import pytest
from django.db import transaction

from billing.efficiency import measured
from billing.efficiency.measured import Use
from billing.metering import record
from billing.metering.segments import PodState
from billing.models import Price, UsageSegment
from tests.clock import stop_the_clock

pytestmark = pytest.mark.django_db

DAY, HOUR = dt.timedelta(days=1), dt.timedelta(hours=1)


@dataclass(frozen=True)
class Days:
    """The first day of use, and the first day of which all hours are kept."""

    first: dt.datetime
    kept: dt.datetime

    @property
    def query(self) -> str:
        return f"from={self.first:%F}&to={self.first + 10 * DAY:%F}"


@pytest.fixture
def days(people, settings, monkeypatch) -> Days:
    """Two GPUs, idle for one hour on each of six days; the hours of the first three days are deleted."""
    now = stop_the_clock(monkeypatch)
    settings.MEASURED_MEMORY = 10 * DAY
    today = now.replace(hour=0)
    first, kept = today - 12 * DAY, today - 9 * DAY
    Price.objects.create(sku="gpu:H200", per_hour=Decimal(10), valid_from=first - HOUR)
    labels = {"cluster": "show1", "run": "1", "role": "worker", "index": "0", "user": "bob", "framework": "pytorch"}
    state = PodState(
        "long", "local", people.ops.pk, "run 1", labels, "Succeeded", gpus=2, gpu_model="H200", started_at=first,
        finished_at=today - DAY,
    )  # fmt: skip
    with transaction.atomic():
        record.record(
            [state, replace(state, uid="late", started_at=kept), replace(state, uid="server", gpus=0, cpu_milli=1000)]
        )
    measured.record(Use("long", first + n * DAY, first + n * DAY + HOUR, 3600, 0.0) for n in range(6))
    assert measured.forget_hours(now) == 3
    return Days(first, kept)


def rows(response) -> list[dict[str, str]]:
    assert response["Content-Type"].startswith("text/csv"), response.content[:500]
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_rest_says_from_when_on_hours_are_known(client, people, days: Days):
    client.force_login(people.alice)
    idle = client.get(f"/api/v1/dashboard/waste?{days.query}").json()["idle"]
    assert (idle["knownSince"], idle["hours"]) == (f"{days.kept:%F}", 3)
    assert (
        f"before {days.kept:%F} are not known any more" in client.get(f"/dashboard/waste?{days.query}").content.decode()
    )
    for since, known in ((days.kept - DAY, f"{days.kept:%F}"), (days.kept, None)):
        found = client.get(f"/api/v1/dashboard/waste?from={since:%F}&to={days.kept:%F}").json()["idle"]
        assert (found["knownSince"], found["hours"]) == (known, 1)
    gone = client.get(f"/api/v1/dashboard/waste?from={days.first:%F}&to={days.first:%F}").json()["idle"]
    assert (gone["knownSince"], gone["hours"]) == (f"{days.kept:%F}", 0), "nothing of it is known"
    told = {
        row.uid: client.get(f"/api/v1/segments/{row.pk}").json()["measuredKnownSince"]
        for row in UsageSegment.objects.all()
    }
    assert told == {"long": f"{days.kept:%F}", "late": None, "server": None}


def test_files_say_from_when_on_hours_are_known(client, people, days: Days):
    client.force_login(people.alice)
    page = f"/dashboard/waste?{days.query}&columns=day&format=csv"
    (row,) = rows(client.get(f"{page}&table=idle"))
    assert (row["pod"], row["hours"], row["known_from"]) == ("long", "3", f"{days.kept:%F}")
    idle = {each["day"]: each for each in rows(client.get(f"{page}&table=columns")) if each["kind"] == "idle"}
    assert {day: (each["cases"], each["known_from"]) for day, each in idle.items()} == {
        f"{days.first + n * DAY:%F}": ("1" if 3 <= n < 6 else "0", f"{days.kept:%F}" if n < 3 else "")
        for n in range(11)
    }
    assert {each["known_from"] for each in rows(client.get(f"{page}&table=columns")) if each["kind"] != "idle"} == {""}
    # If no row is left, the file name says why.
    gone = client.get(f"/dashboard/waste?from={days.first:%F}&to={days.first:%F}&format=csv&table=idle")
    assert rows(gone) == []
    assert f"idle-{days.first:%F}-{days.first:%F}-known-from-{days.kept:%F}.csv" in gone["Content-Disposition"]
    kept = client.get(f"/dashboard/waste?from={days.kept:%F}&to={days.kept:%F}&format=csv&table=idle")
    assert "known-from" not in kept["Content-Disposition"]
    of_run = rows(client.get(f"/billing/ops-demo/show1/1?{days.query}&format=csv"))
    assert {each["pod"]: each["measured_known_from"] for each in of_run} == {
        "long": f"{days.kept:%F}", "late": "", "server": "",
    }  # fmt: skip
