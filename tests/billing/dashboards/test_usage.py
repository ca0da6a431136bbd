"""Usage and price pages and REST: right sums for the right people, in a constant number of queries."""

import csv
import datetime as dt
import io
from dataclasses import replace
from decimal import Decimal

import pytest
from django.db import transaction
from django.utils import timezone

from billing import periods
from billing.dashboards import reconciliation
from billing.metering import record
from billing.metering.segments import PodState
from billing.models import Price
from billing.periods import Range
from billing.sums import access
from billing.sums.totals import totals
from portal.models import Appcode, Event

# Two past months, so that the tests do not depend on the hour at which they run.
THIS = periods.month(timezone.now())
MONTH = periods.month_before(THIS)
LAST = periods.month_before(MONTH)
HOUR = 3600


def use(
    appcode: Appcode,
    begin: dt.datetime,
    seconds: int | None,
    *,
    cluster: str = "show1",
    run: int = 1,
    role: str = "worker",
    index: int = 0,
    kind: str = "",
    **held: object,
) -> None:
    """Records a task of `appcode` that holds one GPU from `begin` for `seconds`, or still holds it."""
    uid = f"{appcode.code}-{cluster}-{run}-{role}-{index}-{begin:%s}"
    labels = {"cluster": cluster, "run": run, "role": role, "index": index, "attempt": 0}
    labels |= {"class": kind} if kind else {}
    state = PodState(
        uid, "local", appcode.pk, f"run {run}", labels, "Running", started_at=begin, **({"gpus": 1} | held)
    )
    if seconds is not None:
        state = replace(state, phase="Succeeded", finished_at=begin + dt.timedelta(seconds=seconds))
    with transaction.atomic():
        record.record([state])


@pytest.fixture
def prices(db):
    Price.objects.create(sku="gpu", per_hour=Decimal("1.5"), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))


@pytest.fixture
def usage(prices, people):
    """OPS used 2 GPU-hours before this month and 3 in it, Flight 1; one segment crosses the start of the month."""
    use(people.ops, LAST.since, HOUR)
    use(people.ops, MONTH.since - dt.timedelta(hours=1), 4 * HOUR, cluster="edge")
    use(people.flight, MONTH.since, HOUR, cluster="wing")
    return people


def sign_in(client, user):
    client.force_login(user)
    return client


def of(period: periods.Period, **more: str) -> dict[str, str]:
    """Returns the query string of a page for these days."""
    return {"from": f"{period.since:%Y-%m-%d}", "to": f"{period.last_day:%Y-%m-%d}", **more}


def table(response) -> list[dict[str, str]]:
    assert response["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_a_month_ends_where_the_next_begins(client, usage):
    sign_in(client, usage.alice)
    now, before = (table(client.get("/billing", of(month, format="csv"))) for month in (MONTH, LAST))
    assert [(row["appcode"], row["gpu_seconds"], row["cost"]) for row in now] == [
        ("ops-demo", str(3 * HOUR), "4.500000")
    ]
    assert [row["gpu_seconds"] for row in before] == [str(2 * HOUR)]


def test_running_tasks_count_until_this_second(client, usage):
    use(usage.ops, timezone.now() - dt.timedelta(hours=2), None, cluster="live", gpus=2)
    sign_in(client, usage.alice)
    rows = {row["cluster"]: row for row in table(client.get("/billing/ops-demo?format=csv"))}
    live = rows["live"]
    assert (live["running_gpus"], live["cost_per_hour"]) == ("2", "3.000000")
    page = client.get("/billing/ops-demo").content.decode()
    assert "data-live" in page
    assert "/billing/ops-demo/live" in page


def test_volumes_are_no_tasks(client, people, prices):
    """An appcode with only a volume has costs but no tasks."""
    now = timezone.now().replace(microsecond=0)
    Price.objects.create(sku="storage", per_hour=Decimal("0.001"), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    begin = now - dt.timedelta(hours=2)
    held = PodState(
        "volume-1-20480", "gpu-a", people.ops.pk, "volume 1", {"volume": "scratch"}, "Running", storage_mb=20480,
        started_at=begin,
    )  # fmt: skip
    with transaction.atomic():
        record.record([held])
    client.force_login(people.alice)
    for address in ("/billing", "/billing/ops-demo"):
        answer = client.get(address)
        assert (answer.context["total"].pods, answer.context["total"].cost_per_hour) == (0, Decimal("0.02"))
        page = answer.content.decode()
        assert " task" not in page.partition("Running now")[2].partition("</div>")[0]
        assert 'hx-trigger="every 15s"' not in page, "nothing changes that somebody would wait for"
    (row,) = access.usage_by_cluster(people.ops, periods.month(now), now)
    assert row.name == "Volumes and buckets"
    assert "<b>Volumes and buckets</b>" in page
    assert "/billing/ops-demo/Volumes" not in page
    assert "\nVolumes and buckets,0," in client.get("/billing/ops-demo?format=csv").content.decode().replace("\r", "")
    use(people.ops, begin, None)
    assert access.usage_by_cluster(people.ops, periods.month(now), now)[0].amount.pods == 1
    (whole,) = access.usage_by_appcode(Appcode.objects.filter(pk=people.ops.pk), periods.month(now), now)
    assert (whole.amount.pods, whole.amount.gpus) == (1, 1)
    range_ = Range(now.date(), now.date() + dt.timedelta(days=1), "day")
    assert reconciliation.report(range_, now, appcodes=None, quarantine=True).open == 1


def test_down_to_the_segment(client, usage):
    sign_in(client, usage.victor)
    query = of(LAST)
    assert "/billing/ops-demo?" in client.get("/billing", query).content.decode()
    assert "/billing/ops-demo/edge?" in client.get("/billing/ops-demo", query).content.decode()
    assert "/billing/ops-demo/edge/1?" in client.get("/billing/ops-demo/edge", query).content.decode()
    page = client.get("/billing/ops-demo/edge/1", query).content.decode()
    assert "worker-0" in page
    (row,) = table(client.get("/billing/ops-demo/edge/1", query | {"format": "csv"}))
    assert (row["role"], row["seconds"], row["cost"], row["gpus"]) == ("worker", str(HOUR), "1.500000", "1")
    (day,) = [row for row in table(client.get("/billing", query | {"by": "time"})) if row["gpu_seconds"] != "0"][1:]
    assert day["from"] == f"{LAST.last_day:%Y-%m-%d}"


def test_days_add_up_to_the_month(client, usage):
    sign_in(client, usage.root)
    days = table(client.get("/billing", of(MONTH, by="time")))
    codes = table(client.get("/billing", of(MONTH, format="csv")))
    lines = table(client.get("/billing", of(MONTH, by="line")))
    for column in ("gpu_seconds", "cost"):
        assert len({sum(Decimal(row[column]) for row in rows) for rows in (days, codes, lines)}) == 1
    assert {row["business_line"]: row["gpu_seconds"] for row in lines} == {"OPS": str(3 * HOUR), "FLIGHT": str(HOUR)}


def test_strangers_see_nothing_and_learn_nothing(client, usage):
    sign_in(client, usage.mallory)
    assert [row["appcode"] for row in table(client.get("/billing", of(MONTH, format="csv")))] == ["flight-demo"]
    assert "ops-demo" not in client.get("/billing").content.decode()
    for path in ("/billing/ops-demo", "/billing/ops-demo/edge", "/billing/ops-demo/edge/1", "/billing/nobody-here"):
        assert client.get(path).status_code == 404
    for path in ("/admin/prices", "/api/v1/appcodes/ops-demo/usage"):
        assert client.get(path).status_code == 404
    assert client.post("/admin/prices", {"sku": "gpu", "per_hour": "0"}).status_code == 404
    assert client.post(f"/admin/prices/{Price.objects.get().pk}/withdraw").status_code == 404


def test_nobody_gets_in_without_signing_in(client, db):
    assert client.get("/billing").status_code == 302
    assert client.get("/api/v1/appcodes/ops-demo/usage").status_code == 401


def test_queries_do_not_grow_with_tenants(client, usage, make_appcode, django_assert_num_queries):
    def queries() -> int:
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert client.get("/billing", of(MONTH)).status_code == 200
        return len(seen)

    sign_in(client, usage.root)
    queries()
    few = queries()
    for n in range(30):
        code = make_appcode(f"tenant-{n}", org=f"corp.line{n % 5}.team{n}", namespace=f"line{n}", owner=usage.alice)
        use(code, MONTH.since, 60 + n)
    assert queries() == few


def test_without_days_it_is_this_month(client, usage):
    use(usage.ops, timezone.now() - dt.timedelta(seconds=90), None, cluster="live")
    page = sign_in(client, usage.alice).get("/billing").content.decode()
    assert f"{timezone.now():%B %Y}" in page
    assert "1 GPU" in page


@pytest.mark.parametrize(
    ("query", "field"), [("from=yesterday", "from"), ("to=2026-02-30", "to"), ("from=1900-01-01", "from")]
)
def test_bad_dates_are_told_beside_their_field(client, usage, query, field):
    sign_in(client, usage.alice)
    page = client.get(f"/billing?{query}").content.decode()
    assert f'id="{field}-error"' in page


def test_an_empty_time_says_so(client, usage):
    sign_in(client, usage.alice)
    assert "Nothing was used" in client.get("/billing?from=2024-01-01&to=2024-01-31").content.decode()
    assert "Nothing was used" in client.get("/billing/ops-demo/edge/1?from=2024-01-01&to=2024-01-31").content.decode()


def test_a_long_time_is_shown_by_month(client, usage):
    sign_in(client, usage.root)
    year = table(
        client.get(
            "/billing?by=time",
            {"by": "time", "from": f"{MONTH.since.year - 1}-01-01", "to": f"{MONTH.last_day:%Y-%m-%d}"},
        )
    )
    assert [row["gpu_seconds"] for row in year[-2:]] == [str(2 * HOUR), str(4 * HOUR)]


# REST


def test_rest_tells_total_and_rows(client, usage):
    sign_in(client, usage.bob)
    use(usage.ops, MONTH.since, HOUR, cluster="edge", run=1, role="ps", gpus=0, cpu_milli=1000)
    body = client.get("/api/v1/appcodes/ops-demo/usage", of(MONTH)).json()
    assert body["kind"] == "usage"
    assert body["metadata"]["appcode"] == "ops-demo"
    assert body["total"]["gpuSeconds"] == 3 * HOUR
    assert body["total"]["cost"] == {"amount": "4.500000", "currency": "USD"}
    assert [(row["consumer"], row["cluster"], row["run"], row["role"], row["gpuSeconds"]) for row in body["items"]] == [
        ("run 1", "edge", "1", "ps", 0),
        ("run 1", "edge", "1", "worker", 3 * HOUR),
    ]


def test_rest_takes_days_and_exact_times(client, usage):
    sign_in(client, usage.bob)
    start = f"{MONTH.since:%Y-%m-%dT%H:%M:%SZ}"
    end = f"{MONTH.since + dt.timedelta(seconds=100):%Y-%m-%dT%H:%M:%SZ}"
    body = client.get("/api/v1/appcodes/ops-demo/usage", {"from": start, "to": end}).json()
    assert body["total"]["gpuSeconds"] == 100
    assert (body["metadata"]["from"], body["metadata"]["to"]) == (start, end)
    day = f"{LAST.last_day:%Y-%m-%d}"
    body = client.get("/api/v1/appcodes/ops-demo/usage", {"from": day, "to": day}).json()
    assert body["total"]["gpuSeconds"] == HOUR


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ({"from": "soon"}, "from"),
        ({"to": "2026-13-01"}, "to"),
        ({"from": "2026-02-01T00:00:00"}, "from"),
        ({"from": "2026-02-02", "to": "2026-02-01"}, "to"),
        ({"to": "9999-12-31"}, "to"),
        ({"from": "2026-01-01\0"}, "from"),
    ],
)
def test_rest_refuses_bad_dates_at_the_right_path(client, usage, query, path):
    sign_in(client, usage.bob)
    answer = client.get("/api/v1/appcodes/ops-demo/usage", query)
    assert answer.status_code == 422
    assert answer["Content-Type"] == "application/problem+json"
    assert [error["path"] for error in answer.json()["errors"]] == [path]


def test_usage_of_a_run_has_the_cost_of_every_segment(usage):
    now = MONTH.since + dt.timedelta(hours=1)
    rows = access.usage_of(["run 1"], now)
    assert sum(row.cost for row in rows) == totals(["run 1"], now)["run 1"].cost
    assert {row.task for row in rows} == {"worker-0"}


# Prices


def test_a_price_of_the_future_is_added_seen_and_taken_back(client, usage):
    sign_in(client, usage.root)
    start = timezone.now().replace(microsecond=0) + dt.timedelta(days=2)
    answer = client.post(
        "/admin/prices", {"sku": "gpu:A100", "per_hour": "4.25", "valid_from": f"{start:%Y-%m-%dT%H:%M:%S}"}
    )
    assert answer.status_code == 302
    price = Price.objects.get(sku="gpu:A100")
    assert (price.per_hour, price.valid_from) == (Decimal("4.25"), start)
    assert "Take back" in client.get("/admin/prices").content.decode()
    assert client.post(f"/admin/prices/{price.pk}/withdraw").status_code == 302
    assert not Price.objects.filter(sku="gpu:A100").exists()
    assert list(Event.objects.order_by("id").values_list("verb", "actor_name")) == [
        ("price.added", "root"),
        ("price.withdrawn", "root"),
    ]


def test_a_price_from_now_on_leaves_what_was_used_as_it_was(client, usage):
    before = totals(["run 1"], MONTH.since + dt.timedelta(hours=9))
    sign_in(client, usage.root).post("/admin/prices", {"sku": "gpu", "per_hour": "1000"})
    assert totals(["run 1"], timezone.now())["run 1"].cost == before["run 1"].cost
    current = Price.objects.latest("valid_from")
    assert client.post(f"/admin/prices/{current.pk}/withdraw").status_code == 302
    assert Price.objects.filter(pk=current.pk).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sku": "tpu"}, "Use gpu"),
        ({"per_hour": "-1"}, "greater than or equal to 0"),
        ({"per_hour": "NaN"}, "Enter a number"),
        ({"per_hour": "1e30"}, "digits"),
        ({"valid_from": "2020-01-01T00:00:00"}, "to come"),
        ({"valid_from": "soon"}, "valid date"),
    ],
)
def test_bad_prices_are_told_beside_their_field(client, usage, change, words):
    sign_in(client, usage.root)
    answer = client.post("/admin/prices", {"sku": "gpu", "per_hour": "1", "valid_from": ""} | change)
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert Price.objects.count() == 1


def test_the_same_price_twice_is_told(client, usage):
    sign_in(client, usage.root)
    start = f"{timezone.now() + dt.timedelta(days=1):%Y-%m-%dT%H:%M:%S}"
    for status in (302, 422):
        assert client.post("/admin/prices", {"sku": "gpu", "per_hour": "2", "valid_from": start}).status_code == status
