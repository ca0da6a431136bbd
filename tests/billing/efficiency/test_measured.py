"""GPU utilisation: a minute counts once however often it is reported, and measured time never exceeds held time."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections import defaultdict
from decimal import Decimal

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.efficiency import measured
from billing.efficiency.measured import Measured, Use
from billing.metering import record
from billing.metering.segments import PodState
from billing.models import MeasuredDay, MeasuredHour, Ownership, Price, UsageSegment
from billing.periods import Range
from portal.models import Appcode

pytestmark = pytest.mark.django_db

BEGIN = dt.datetime(2026, 3, 4, 21, 0, tzinfo=dt.UTC)
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)
DAYS = Range(BEGIN.date(), BEGIN.date() + dt.timedelta(days=3), "day")


def hold(
    appcode: Appcode,
    uid: str,
    begin: dt.datetime = BEGIN,
    end: dt.datetime | None = None,
    *,
    gpus: int = 2,
    model: str = "H200",
    **labels: str,
) -> None:
    named = {
        "cluster": "show1",
        "run": "1",
        "role": "worker",
        "index": "0",
        "user": "bob",
        "framework": "pytorch",
        **labels,
    }
    state = PodState(
        uid, "local", appcode.pk, f"run {uid}", named, "Running", gpus=gpus, gpu_model=model, started_at=begin
    )
    with transaction.atomic():
        record.record([state])
        if end:
            record.record([PodState(**{**vars(state), "phase": "Succeeded", "finished_at": end})])


def minute(uid: str, at: dt.datetime, busy: float, seconds: float = 60.0, memory: int | None = None) -> Use:
    return Use(uid, at, at + MINUTE, seconds, busy, memory)


TOLD = st.lists(
    st.builds(
        lambda uid, n, busy, seconds: minute(uid, BEGIN + n * MINUTE, busy / 1000, seconds, n),
        st.sampled_from(["pod-a", "pod-b", "nobody's"]),
        st.integers(0, 200),
        st.integers(0, 1000),
        st.sampled_from([15.0, 45.0, 60.0]),
    ),
    max_size=40,
    unique_by=lambda use: (use.uid, use.since),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(told=TOLD, data=st.data())
def test_told_twice_late_and_in_any_order_is_told_once(people, told: list[Use], data: st.DataObject):
    batches = data.draw(st.lists(st.lists(st.sampled_from(told)) if told else st.just([]), max_size=4))
    shuffled = data.draw(st.permutations(told))
    cut = data.draw(st.integers(0, len(told)))
    with transaction.atomic():
        hold(people.flight, "pod-a", end=BEGIN + 3 * HOUR, gpus=2)
        hold(people.ops, "pod-b", end=BEGIN + 3 * HOUR, gpus=1)
        for batch in [*batches, shuffled[:cut], shuffled, shuffled[cut:], *batches]:
            measured.record(batch)
        expected: defaultdict[tuple[str, dt.datetime], Measured] = defaultdict(Measured)
        days: defaultdict[tuple[dt.date, int], Measured] = defaultdict(Measured)
        for use in told:
            # The pods had ended before the last minutes.
            if use.uid == "nobody's" or use.since >= BEGIN + 3 * HOUR:
                continue
            gpus, code = (2, people.flight.pk) if use.uid == "pod-a" else (1, people.ops.pk)
            ms = round(gpus * use.seconds * 1000)
            one = Measured(ms, round(ms * use.busy), use.memory_mb)
            expected[use.uid, use.since.replace(minute=0)] += one
            days[use.since.date(), code] += Measured(one.measured_ms, one.busy_ms)
        found = {
            (row.uid, row.hour): Measured(row.measured_ms, row.busy_ms, row.memory_mb)
            for row in MeasuredHour.objects.all()
        }
        assert found == expected
        assert {
            (row.day, row.appcode_id): Measured(row.measured_ms, row.busy_ms) for row in MeasuredDay.objects.all()
        } == days
        transaction.set_rollback(True)


def test_no_more_is_measured_than_was_held(people):
    hold(people.flight, "pod-a", BEGIN + dt.timedelta(seconds=40), BEGIN + 2 * MINUTE + dt.timedelta(seconds=6))
    measured.record([minute("pod-a", BEGIN + n * MINUTE, 0.5) for n in range(-1, 5)])
    (row,) = MeasuredHour.objects.all()
    assert (row.measured_ms, row.busy_ms) == (2 * 86_000, 86_000)
    assert measured.of_pods(["pod-a", "other"]) == {"pod-a": Measured(172_000, 86_000, None)}


@pytest.mark.parametrize(
    "use",
    [
        minute("pod-a", BEGIN, 1.2),
        minute("pod-a", BEGIN, -0.1),
        minute("pod-a", BEGIN, float("nan")),
        minute("pod-a", BEGIN, 0.5, 0.0),
        minute("pod-a", BEGIN, 0.5, float("inf")),
        Use("pod-a", BEGIN, BEGIN + 2 * HOUR, 60.0, 0.5),
        Use("pod-a", BEGIN + MINUTE, BEGIN, 60.0, 0.5),
    ],
)
def test_what_makes_no_sense_is_left_out(people, use: Use):
    hold(people.flight, "pod-a")
    measured.record([use])
    assert not MeasuredHour.objects.exists()


def test_by_model_and_by_what_dashboards_narrow_to(people):
    Ownership.objects.filter(appcode=people.flight).delete()
    Ownership.objects.create(appcode=people.flight, business_line="old", valid_from=BEGIN - HOUR)
    Ownership.objects.create(appcode=people.flight, business_line="new", valid_from=BEGIN + HOUR)
    hold(people.flight, "pod-a", user="ana")
    hold(people.ops, "pod-b", gpus=1, model="L4")
    for at in (BEGIN, BEGIN + HOUR, BEGIN + 5 * HOUR):
        measured.record([minute("pod-a", at, 0.25), minute("pod-b", at, 1.0)])
    first, second, third = (since for since, _ in DAYS.columns)
    both = {"H200": Measured(240_000, 60_000), "L4": Measured(120_000, 120_000)}
    assert measured.by_model(DAYS) == {
        first: both, second: {"H200": Measured(120_000, 30_000), "L4": Measured(60_000, 60_000)}, third: {},
    }  # fmt: skip
    assert measured.by_model(DAYS, appcodes=[people.ops.pk])[first] == {"L4": both["L4"]}
    assert measured.by_model(DAYS, where={"user": "ana"})[first] == {"H200": both["H200"]}
    assert measured.by_model(DAYS, where={"line": "old"})[first] == {"H200": Measured(120_000, 30_000)}
    whole = Measured(240_000, 60_000)
    assert (whole.busy_percent, whole.idle_percent, whole.covered_percent(300)) == (25, 75, 80)
    assert (Measured().idle_percent, Measured().covered_percent(0)) == (None, 0)


def test_hours_in_which_gpus_were_held_idle_and_what_they_cost(people):
    Price.objects.filter(sku__startswith="gpu").delete()
    Price.objects.create(sku="gpu:H200", per_hour=Decimal("3.6"), valid_from=BEGIN - HOUR)
    Price.objects.create(sku="gpu:H200", per_hour=Decimal("7.2"), valid_from=BEGIN + HOUR)
    hold(people.flight, "pod-a", gpus=2)
    hold(people.ops, "pod-b", gpus=1, model="H200")
    Price.objects.create(sku="spare-gpu", per_hour=1, valid_from=BEGIN)
    hold(people.flight, "pod-c", gpus=3, **{"class": "spare"})
    for n in range(60):
        measured.record([minute("pod-c", BEGIN + n * MINUTE, 0.0)])
    for n in range(120):
        # pod-a is idle in both hours, pod-b only in the second; 5 % counts as busy.
        measured.record(
            [minute("pod-a", BEGIN + n * MINUTE, 0.04), minute("pod-b", BEGIN + n * MINUTE, 0.05 if n < 60 else 0.0)]
        )
    for n in range(measured.IDLE_MINUTES - 1):
        measured.record([minute("pod-b", BEGIN + (120 + n) * MINUTE, 0.0)])
    found = measured.idle(DAYS)
    assert (found.hours, found.used.gpu_seconds, found.used.cost) == (
        4,
        8 * 3600,
        Decimal("7.2") + Decimal("14.4") + Decimal("7.2") + 3,
    )
    assert [(task.uid, task.hours, task.used.cost, task.cluster, task.task) for task in found.tasks] == [
        ("pod-a", 2, Decimal("21.6"), "show1", "worker-0"), ("pod-b", 1, Decimal("7.2"), "show1", "worker-0"),
        ("pod-c", 1, Decimal(3), "show1", "worker-0"),
    ]  # fmt: skip
    assert [hours for hours, _ in found.columns.values()] == [4, 0, 0]
    measured.record([minute("pod-b", BEGIN + 134 * MINUTE, 0.0)])
    assert measured.idle(DAYS, appcodes=[people.ops.pk]).hours == 2
    assert measured.idle(DAYS, appcodes=[]).hours == 0


# Pages and REST


@pytest.fixture
def idle_task(people, settings) -> str:
    """Two GPUs of ops-demo for three hours: idle in the first, half busy in the second, not measured in the third."""
    # The dates are fixed, so keep measurements of any age.
    settings.MEASURED_MEMORY = dt.timedelta(days=36500)
    Price.objects.create(sku="gpu:H200", per_hour=Decimal(10), valid_from=BEGIN - HOUR)
    hold(people.ops, "pod-a", end=BEGIN + 3 * HOUR)
    for n in range(120):
        measured.record([minute("pod-a", BEGIN + n * MINUTE, 0.0 if n < 60 else 0.5, memory=2048)])
    return f"from={BEGIN:%F}&to={BEGIN:%F}"


def table(response) -> list[dict[str, str]]:
    assert response["Content-Type"].startswith("text/csv"), response.content[:500]
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_pages_say_how_busy_gpus_were_and_of_how_much_of_the_time_that_is(client, people, idle_task: str):
    client.force_login(people.victor)
    page = client.get(f"/dashboard/utilisation?{idle_task}").content.decode()
    assert "75.0 %" in page
    assert "measured for 67 % of the held time" in page
    (row,) = table(client.get(f"/dashboard/utilisation?{idle_task}&format=csv&table=models"))
    assert (row["measured_gpu_seconds"], row["busy_gpu_seconds"]) == ("14400.000", "3600.000")
    assert (row["idle_while_held_percent"][:4], row["measured_percent_of_held"][:4]) == ("75.0", "66.6")
    page = client.get(f"/dashboard/waste?{idle_task}").content.decode()
    segment = f"/billing/ops-demo/show1/1/{UsageSegment.objects.get().pk}"
    assert segment in page
    assert "1 hour of tasks" in page
    (row,) = table(client.get(f"/dashboard/waste?{idle_task}&format=csv&table=idle"))
    assert (row["hours"], row["cost"], row["pod"]) == ("1", "20.000000", "pod-a")
    assert [
        each["cases"]
        for each in table(client.get(f"/dashboard/waste?{idle_task}&format=csv&table=columns"))
        if each["kind"] == "idle"
    ] == ["1"]
    page = client.get(f"/billing/ops-demo/show1/1?{idle_task}").content.decode()
    assert "GPUs 25 % busy, 2.0 GiB used at most" in page
    assert "measured for 67 % of the held time" in page
    (row,) = table(client.get(f"/billing/ops-demo/show1/1?{idle_task}&format=csv"))
    assert (row["measured_gpu_seconds"], row["busy_gpu_seconds"]) == ("14400", "3600")
    client.force_login(people.mallory)
    assert segment not in client.get(f"/dashboard/waste?{idle_task}").content.decode()
    assert table(client.get(f"/dashboard/waste?{idle_task}&format=csv&table=idle")) == []
    assert "nothing was measured in this time" in client.get(f"/dashboard/utilisation?{idle_task}").content.decode()


def test_rest_says_the_same(client, people, idle_task: str):
    client.force_login(people.alice)
    use = client.get(f"/api/v1/dashboard/utilisation?{idle_task}").json()
    assert (use["idleWhileHeld"], use["measuredOfHeld"]) == ("0.7500", "0.6667")
    assert [(each["measuredGpuSeconds"], each["busyGpuSeconds"]) for each in use["items"] if each["gpuModel"]] == [
        (14400, 3600)
    ]
    idle = client.get(f"/api/v1/dashboard/waste?{idle_task}").json()["idle"]
    assert (idle["hours"], idle["gpuSeconds"], idle["cost"]["amount"]) == (1, 7200, "20.000000")
    assert [(each["pod"], each["busy"], each["appcode"]) for each in idle["tasks"]] == [("pod-a", "0.0000", "ops-demo")]
    segment = client.get(f"/api/v1/segments/{idle['tasks'][0]['segment']}").json()
    assert (segment["measuredGpuSeconds"], segment["busyGpuSeconds"]) == (14400, 3600)
    client.force_login(people.mallory)
    assert client.get(f"/api/v1/dashboard/waste?{idle_task}").json()["idle"]["tasks"] == []


def test_old_hours_are_forgotten_and_what_is_left_is_right(client, people, idle_task: str, settings, monkeypatch):
    monkeypatch.setattr(measured, "PORTION", 2)
    hold(people.ops, "pod-b", begin=BEGIN - 9 * HOUR)
    # Reported late: these minutes are old and come after newer ones.
    measured.record([minute("pod-b", BEGIN - n * HOUR, 0.5) for n in range(1, 6)])
    days = list(MeasuredDay.objects.order_by("pk").values())
    now = BEGIN + settings.MEASURED_MEMORY
    assert measured.forget_hours(now + HOUR - MINUTE) == 0
    assert measured.forget_hours(now + HOUR) == 6
    assert measured.forget_hours(now + HOUR) == 0
    (left,) = MeasuredHour.objects.values_list("uid", "hour")
    assert left == ("pod-a", BEGIN + HOUR)
    assert list(MeasuredDay.objects.order_by("pk").values()) == days
    assert measured.of_pods(["pod-a", "pod-b"]).keys() == {"pod-a"}
    client.force_login(people.root)
    page = client.get(f"/dashboard/waste?{idle_task}").content.decode()
    assert "not known any more" not in page
    settings.MEASURED_MEMORY = dt.timedelta(days=1)
    page = client.get(f"/dashboard/waste?{idle_task}").content.decode()
    assert "are not known any more" in page
    assert "<dd>not known</dd>" in page
