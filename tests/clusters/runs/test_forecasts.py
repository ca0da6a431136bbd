"""When runs that wait are told that they start, how that is judged once they have, and who reads it. On a real database."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from clusters import tasks
from clusters.admission.foretold import ENOUGH, FIRST, QUEUE, UNKNOWN
from clusters.runs.models import Forecast, Run
from clusters.runs.placing import forecasts
from portal.models import Appcode
from tests.api.client import api_of
from tests.clusters.gangs import Told, nodes
from tests.clusters.runs.placing import gone, place, pods, see, started, submit, tell, told_by

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def cloud(training: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    """16 GPUs on two nodes."""
    see(*nodes(2))
    Appcode.objects.update(gpu_quota=100)
    return told_by(monkeypatch)


def running(people: Any, name: str, size: int, **spec: Any) -> Run:
    run = started(people, name, size, **spec)
    tell(
        run,
        *pods(
            run, *[node for held in run.layout.values() for node, count in held.items() for _ in range(count)][:size]
        ),
    )
    return run


def lasted(run: Run, *hours: int) -> None:
    """Earlier runs of its cluster that held their places so long."""
    for number, each in enumerate(hours, start=100):
        Run.objects.create(
            cluster=run.cluster, number=number, cloud=run.cloud, namespace=run.namespace, spec=run.spec, resources=run.resources,
            gpus=run.gpus, phase="Succeeded", gone=True, placed_at=now() - (each + 1) * HOUR, finished_at=now() - HOUR,
        )  # fmt: skip


def judged(run: Run, starts: int, kept: int) -> None:
    """Starts that were foretold on its cloud, the last `starts - kept` of them too early."""
    at = now()
    for number in range(starts):
        other = Run.objects.create(
            cluster=run.cluster, number=1000 + number, cloud=run.cloud, namespace=run.namespace, spec=run.spec,
            resources=run.resources, gpus=1, phase="Stopped", gone=True,
        )  # fmt: skip
        begun = at - HOUR if number < kept else at
        Forecast.objects.create(
            run=other, cloud=run.cloud, as_of=at, first_at=at - 3 * HOUR, first_p50=at - HOUR, first_p90=at - HOUR / 2,
            started_at=begun,
        )  # fmt: skip


def renew() -> None:
    tasks.forecast_cloud("training")


def read(people: Any, name: str) -> dict[str, Any]:
    status, answer = api_of(people.bob).get(f"/appcodes/ops-demo/clusters/{name}")
    assert status == 200
    found: dict[str, Any] = answer["status"]["admission"]
    return found


def test_a_run_is_told_when_it_starts_and_judged_by_that_once_it_has(cloud: Told, people: Any) -> None:
    first = running(people, "first", 16)
    lasted(first, *range(1, 11))
    run = place(submit(people, "second", 16))
    assert forecasts.clouds() == ["training"]
    assert read(people, "second")["forecastWhy"] == UNKNOWN
    renew()
    row = Forecast.objects.get(run=run)
    assert row.p50
    assert row.p90
    assert first.placed_at
    # Those before it lasted 1 to 10 hours: half of them 5, nine of ten 10 at most. Decisions are less frequent later.
    assert 4.9 * HOUR <= row.p50 - first.placed_at <= 6.4 * HOUR
    assert 8.9 * HOUR <= row.p90 - first.placed_at <= 10.6 * HOUR
    assert (row.values["runs"], row.values["replays"], row.first_p90) == (10, 32, row.p90)
    found = read(people, "second")
    assert (found["forecast"], found["forecastWhy"].split(":")[1]) == (
        None, f" 0 of {ENOUGH} starts are known by which they can be judged.",
    )  # fmt: skip
    judged(run, ENOUGH, 27)
    renew()
    found = read(people, "second")
    assert (found["forecastWhy"], found["forecast"]["basis"]) == (
        "", "32 replays of the queue, with the run times of 10 runs that ended there",
    )  # fmt: skip
    told = Forecast.objects.get(run=run).p90  # Of other replays than before.
    assert told
    assert dt.datetime.fromisoformat(found["forecast"]["p90"]) >= told
    tell(first, gone(first))
    Run.objects.filter(pk=first.pk).update(gone=True, phase="Succeeded", finished_at=now(), desired="ended")
    assert place(run).placed_at
    assert (read(people, "second")["forecast"], read(people, "second")["forecastWhy"]) == (None, "")
    later = place(submit(people, "third", 16))
    renew()
    renew()  # A repeated task counts nothing twice.
    row.refresh_from_db()
    assert row.started_at == run.placed_at
    assert Forecast.objects.get(run=later).values["starts"] == ENOUGH + 1
    assert Forecast.objects.get(run=later).values["kept"] == 28
    assert forecasts.errors()["training"] > 600


@pytest.mark.parametrize(("kept", "how"), [(23, "early"), (30, "cautious"), (27, "")])
def test_forecasts_are_shown_only_while_nine_of_ten_hold(
    cloud: Told, people: Any, client: Client, kept: int, how: str
) -> None:
    lasted(running(people, "first", 16), *range(1, 11))
    run = place(submit(people, "second", 16))
    judged(run, 30, kept)
    renew()
    found = read(people, "second")
    assert (found["forecast"] is None) == bool(how)
    assert how in found["forecastWhy"]
    client.force_login(people.bob)
    page = client.get("/clusters/ops-demo/second/head").content.decode()
    assert ("It probably starts by" in page) != bool(how)


def test_what_became_later_is_explained_without_names(cloud: Told, people: Any) -> None:
    lasted(running(people, "first", 16), *range(1, 11))
    run = place(submit(people, "second", 16))
    judged(run, 30, 27)
    renew()
    Forecast.objects.filter(run=run).update(first_p90=now() + HOUR)
    renew()
    assert read(people, "second")["forecast"]["slipped"] == (
        "Later than was told first: runs before it last longer than such runs did."
    )
    urgent = place(submit(people, "urgent", 16, priorityClass="urgent"))
    Forecast.objects.filter(run=run).update(first_gpus=24)
    renew()
    assert urgent.placed_at is None
    assert read(people, "second")["forecast"]["slipped"] == (
        "Later than was told first: 1 run of its appcode, which came later, goes before it by more right; 8 fewer GPUs are "
        "there."
    )


def test_forecasts_that_nobody_needs_are_forgotten_and_few_queries_are_made(
    cloud: Told, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "LAST", 3)
    lasted(running(people, "first", 16), *range(1, 11))
    run = place(submit(people, "second", 16))
    judged(run, 5, 5)
    renew()
    assert Forecast.objects.filter(started_at__isnull=False).count() == 3
    with CaptureQueriesContext(
        connection,
    ) as one:
        renew()
    for name in ("third", "fourth", "fifth"):
        place(submit(people, name, 16))
    with CaptureQueriesContext(connection) as several:
        renew()
    assert len(several) == len(one) < 40
    Run.objects.filter(pk=run.pk).update(desired="ended")
    renew()
    assert not Forecast.objects.filter(run=run).exists()
    with CaptureQueriesContext(connection) as reading:
        assert len(forecasts.forecasts_of(Run.objects.filter(wait_reason="WaitingForGPUs"))) == 3
    assert len(reading) == 2
    waiting = Run(wait_reason="QuotaExceeded", desired="running", phase="Queued", pk=1)
    elsewhere = Run(admitted_at=now(), desired="running", phase="Queued", pk=2)
    assert [each.why for each in forecasts.forecasts_of([waiting, elsewhere]).values()] == [FIRST, QUEUE]
