"""Dashboards: the sums equal those of the segments, whether usage is posted, open or about to be corrected."""

from __future__ import annotations

import csv
import datetime as dt
import io
import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from django.db import connection, transaction
from django.utils import timezone

from billing import periods
from billing.efficiency import capacity, waste
from billing.efficiency.capacity import Share
from billing.ledger import posting
from billing.ledger.models import Group
from billing.metering import record
from billing.metering.segments import PodState
from billing.models import (
    CapacityRecord,
    Discount,
    Due,
    LedgerEntry,
    MonthlySpending,
    MonthlyUsage,
    Outcome,
    Price,
    UsageSegment,
    Waste,
    Watermark,
)
from billing.money import UNIT, Used
from billing.periods import Range, midnight
from billing.prices.book import price_book
from billing.prices.rates import charge
from billing.sums import over_time
from portal.errors import Invalid
from portal.models import Appcode

pytestmark = pytest.mark.django_db

NOW = timezone.now().replace(microsecond=0)
TODAY = NOW.date()
HOUR = dt.timedelta(hours=1)
FIRST = midnight(TODAY.replace(day=1))
LAST = midnight((TODAY.replace(day=1) - dt.timedelta(days=1)).replace(day=1))


def pod(appcode: Appcode, begin: dt.datetime, end: dt.datetime | None, **facts: object) -> PodState:
    labels = {
        name: str(facts.pop(name, default))
        for name, default in {
            "cluster": "show1", "run": "1", "role": "worker", "index": "0", "attempt": "0", "user": "bob",
            "framework": "tensorflow",
        }.items()
    }  # fmt: skip
    # Clusters set this label on parameter servers.
    if labels["role"] == "ps":
        labels["serves"] = "yes"
    if kind := str(facts.pop("kind", "")):
        labels["class"] = kind
    uid = str(
        facts.pop(
            "uid", f"{appcode.code}-{labels['cluster']}-{labels['run']}-{labels['role']}-{labels['index']}-{begin:%s}"
        )
    )
    consumer = str(facts.pop("consumer", f"run {labels['cluster']}-{labels['run']}"))
    state = PodState(uid, "local", appcode.pk, consumer, labels, "Running", started_at=begin, **({"gpus": 1} | facts))  # type: ignore[arg-type]
    return (
        state
        if end is None
        else replace(state, phase=state.phase if state.phase != "Running" else "Succeeded", finished_at=end)
    )


def tell(*states: PodState) -> None:
    with transaction.atomic():
        record.record(states)


def expected(range_: Range, group: Group, where: dict[Group, str]) -> dict[tuple[dt.date, str], tuple[int, Fraction]]:
    """Returns the expected sums from pure functions alone: segments cut at the columns and priced by `prices.rates`. By
    GPU model, a segment's GPUs count under their model and its other resources under none."""
    prices = price_book()
    found: dict[tuple[dt.date, str], tuple[int, Fraction]] = {}
    for row in UsageSegment.objects.select_related("appcode"):
        segment = row.segment
        for since, until in range_.columns:
            part = segment.within(midnight(since), min(midnight(until), NOW + dt.timedelta(seconds=1)))
            if part is None:
                continue
            held = part.resources
            pieces = [
                (held.gpu_model, replace(held, cpu_milli=0, memory_mb=0, storage_mb=0)),
                ("", replace(held, gpus=0, gpu_model="")),
            ]
            for model, resources in pieces:
                names: dict[Group, str] = {
                    "appcode": str(row.appcode_id), "user": str(row.labels.get("user", "")),
                    "cluster": str(row.labels.get("cluster", "")),
                    "framework": str(row.labels.get("framework", "")), "model": model, "line": row.appcode.org_node.path,
                }  # fmt: skip
                if any(names[name] != value for name, value in where.items()):
                    continue
                seconds, money = found.get((since, names[group]), (0, Fraction(0)))
                this = replace(part, resources=resources)
                more = this.seconds(NOW) * resources.gpus, charge(this, prices, NOW)
                found[since, names[group]] = seconds + more[0], money + more[1]
    return {key: value for key, value in found.items() if value != (0, 0)}


def told(range_: Range, group: Group, where: dict[Group, str]) -> dict[tuple[dt.date, str], tuple[int, Fraction]]:
    found = over_time.read(range_, group, NOW, where=where)
    return {
        (since, name): (used.gpu_seconds, Fraction(used.charge) / UNIT)
        for since, column in found.by_group.items()
        for name, used in column.items()
    }


@pytest.fixture
def prices(db):
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    for sku, per_hour in (
        ("gpu", "1.5"),
        ("gpu:A100", "2.4"),
        ("spare-gpu", "0.9"),
        ("cpu", "0.03"),
        ("memory", "0.004"),
    ):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=long_ago)
    Price.objects.create(sku="gpu", per_hour=Decimal("1.7"), valid_from=LAST + dt.timedelta(days=12, seconds=17))


RANGES = [
    Range(LAST.date(), TODAY + dt.timedelta(days=1), "day"),
    Range(LAST.date(), TODAY + dt.timedelta(days=1), "month"),
    Range((LAST - dt.timedelta(days=40)).date(), TODAY + dt.timedelta(days=1), "month"),
    Range(LAST.date() + dt.timedelta(days=3), LAST.date() + dt.timedelta(days=9), "month"),
    Range(TODAY - dt.timedelta(days=400), TODAY + dt.timedelta(days=1), "month"),
]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_was_posted_and_whatever_was_not_the_sums_are_those_of_the_segments(people, prices, seed):
    """Segments are posted, open, changed after posting, or never processed."""
    chance = random.Random(seed)

    def some(count: int) -> Iterator[PodState]:
        for n in range(count):
            begin = NOW - dt.timedelta(seconds=chance.randrange(70 * 86400))
            end = begin + dt.timedelta(seconds=chance.randrange(1, 9 * 86400))
            yield pod(
                chance.choice([people.ops, people.flight]), begin, None if end > NOW else end, index=f"{seed}{count}{n}",
                cluster=chance.choice(["one", "two"]), user=chance.choice(["bob", "ann", ""]), gpus=chance.randrange(3),
                gpu_model=chance.choice(["", "A100", "H200"]), cpu_milli=chance.choice([0, 1500]),
                memory_mb=chance.choice([0, 2048]),
                framework=chance.choice(["tensorflow", "pytorch"]), kind=chance.choice(["", "spare"]),
            )  # fmt: skip

    first = list(some(25))
    tell(*first)
    posting.post(NOW - dt.timedelta(days=chance.randrange(40)))
    tell(*some(12))
    # True ends replace some estimated ones, and one appcode gets a price of its own from the middle of the month.
    tell(
        *(replace(each, phase="Failed", finished_at=each.started_at + HOUR) for each in first[::3] if each.finished_at)
    )
    Price.objects.create(
        sku="cpu", per_hour=Decimal("0.02"), valid_from=LAST + dt.timedelta(days=4), appcode=people.ops
    )
    Discount.objects.create(
        sku="gpu", percent=Decimal("12.5"), valid_from=LAST + dt.timedelta(days=20), appcode=people.flight
    )
    if seed % 2:
        posting.post(NOW)
        tell(*some(5))
    assert Due.objects.exists()
    for range_ in RANGES:
        for group in ("line", "appcode", "user", "model", "framework", "cluster"):
            assert told(range_, group, {}) == expected(range_, group, {}), (range_, group)
    narrow: dict[Group, str] = {"appcode": str(people.ops.pk), "user": "bob", "model": "A100"}
    assert told(RANGES[0], "cluster", narrow) == expected(RANGES[0], "cluster", narrow)


def test_groups_asked_for_together_add_up_to_the_same(people, prices):
    tell(pod(people.ops, LAST, LAST + 5 * HOUR), pod(people.flight, NOW - HOUR, None, gpu_model="A100"))
    posting.post(NOW)
    found = over_time.read(RANGES[1], "line", NOW, also=("appcode", "user", "model", "framework"))
    assert {group: sum(by.values(), Used()) for group, by in found.by.items()} == dict.fromkeys(found.by, found.total)
    mine = over_time.read(RANGES[1], "appcode", NOW, appcodes=[people.ops.pk])
    assert set(mine.by["appcode"]) == {str(people.ops.pk)}
    assert over_time.read(RANGES[1], "appcode", NOW, appcodes=[]).total == Used()


def test_sums_without_clusters_follow_whatever_happens_to_those_with(people, prices):
    tell(pod(people.ops, LAST, LAST + 5 * HOUR, cluster="one"), pod(people.ops, LAST, LAST + 7 * HOUR, cluster="two"))
    posting.post(NOW)

    def both() -> tuple[list[tuple[object, ...]], dict[tuple[object, ...], list[Decimal]]]:
        kept = [
            (row.month, row.appcode_id, row.user, row.gpu_model, row.gpu_seconds, row.charge)
            for row in MonthlySpending.objects.exclude(gpu_seconds=0, charge=0)
        ]
        summed: dict[tuple[object, ...], list[Decimal]] = {}
        for row in MonthlyUsage.objects.all():
            key = (row.month, row.appcode_id, row.user, row.gpu_model)
            money = row.gpu_charge + row.cpu_charge + row.memory_charge + row.storage_charge
            have = summed.setdefault(key, [Decimal(0), Decimal(0)])
            summed[key] = [have[0] + row.gpu_seconds, have[1] + money]
        return kept, summed

    for _ in range(2):
        kept, summed = both()
        assert {row[:4]: list(row[4:]) for row in kept} == summed
        assert summed
        posting.rebuild_sums()
    MonthlyUsage.objects.all().delete()
    assert both() == ([], {})


def test_ranges():
    day = dt.date(2026, 11, 21)
    assert periods.parse_days("", "", "", day) == Range(dt.date(2026, 10, 23), dt.date(2026, 11, 22), "day")
    year = periods.parse_days("2026-01-01", "2026-10-31", "", day)
    assert (year.step, len(year.columns)) == ("month", 10)
    assert year.before == Range(dt.date(2025, 3, 1), dt.date(2026, 1, 1), "month")
    cut = periods.parse_days("2026-01-15", "2026-03-02", "month", day)
    assert cut.columns == [
        (dt.date(2026, 1, 15), dt.date(2026, 2, 1)),
        (dt.date(2026, 2, 1), dt.date(2026, 3, 1)),
        (dt.date(2026, 3, 1), dt.date(2026, 3, 3)),
    ]
    assert cut.before == Range(dt.date(2025, 11, 29), dt.date(2026, 1, 15), "month")
    for wrong, at in (
        (("nonsense", "", ""), "from"), (("", "2026-13-01", ""), "to"), (("2026-02-01", "2026-01-01", ""), "to"),
        (("", "", "week"), "columns"), (("2000-01-01", "2026-01-01", "day"), "columns"),
        (("2026-01-01T00:00:00", "", ""), "from"),
    ):  # fmt: skip
        with pytest.raises(Invalid) as found:
            periods.parse_days(*wrong, day)
        assert found.value.errors[0].path == (at,)


# Capacity


def test_capacity_is_noted_when_it_changes(db):
    at = LAST
    capacity.record("local", {"A100": (8, 0), "": (2, 2), "none": (0, 0)}, at)
    capacity.record("local", {"A100": (8, 0), "": (2, 2)}, at + HOUR)
    assert CapacityRecord.objects.count() == 2
    capacity.record("local", {"A100": (6, 0)}, at + 12 * HOUR)
    capacity.record("other", {"A100": (4, 0)}, at + 18 * HOUR)
    capacity.record("local", {}, at + 24 * HOUR)
    found = capacity.available(Range(at.date(), at.date() + dt.timedelta(days=2), "day"), NOW)
    assert found[at.date()] == {"A100": ((8 * 12 + 6 * 12 + 4 * 6) * 3600, 0), "": (24 * 3600, 24 * 3600)}
    assert found[at.date() + dt.timedelta(days=1)] == {"A100": (4 * 24 * 3600, 0)}
    assert capacity.available(Range(TODAY, TODAY + dt.timedelta(days=1), "day"), NOW)[TODAY]["A100"][0] == 4 * int(
        (NOW - midnight(TODAY)).total_seconds()
    )


def test_what_was_there_is_not_known_before_it_was_noted():
    assert Share(10, 40).percent == 25
    assert Share(0, 40).free == 40
    assert Share(10, 0).percent is None
    assert Share(10, 5).percent is None
    assert capacity.total([Share(10, 40), Share(7, 0)]) == Share(10, 40)


def test_a_cloud_that_tells_its_machines_leaves_a_trace(db):
    from clusters.clouds.drivers.base import Capacity, Node
    from clusters.runs.status.observe import save_capacity

    nodes = [Node(f"n{n}", "A100", 8, 8, 64000, 1000, simulated=n == 0) for n in range(3)]
    for free in (8, 3):
        save_capacity("training", Capacity(tuple(replace(node, gpus_free=free) for node in nodes)))
    assert [(row.gpus, row.simulated) for row in CapacityRecord.objects.all()] == [(24, 8)]
    save_capacity("training", Capacity(tuple(nodes[:1])))
    assert [(row.gpus, row.simulated) for row in CapacityRecord.objects.order_by("pk")] == [(24, 8), (8, 8)]


# Waste


def reckoned() -> dict[tuple[str, str], tuple[int, int, Decimal]]:
    waste.look()
    return {
        (row.kind, row.consumer): (row.seconds, row.gpu_seconds, Decimal(row.charge) / UNIT)
        for row in Waste.objects.all()
    }


def test_waste(people, prices):
    """Four runs: failed with two workers; with a parameter server that outlived its workers; slow image pull; fine."""
    at = LAST + dt.timedelta(days=15)
    tell(
        *(pod(people.ops, at, at + HOUR, cluster="bad", index=n) for n in range(2)),
        pod(people.ops, at, at + HOUR, cluster="served", gpus=2),
        pod(people.ops, at, at + 4 * HOUR, cluster="served", role="ps", gpus=0, cpu_milli=2000),
        pod(people.ops, at, at + HOUR, cluster="slow", gpus=4, scheduled_at=at - dt.timedelta(minutes=30)),
        pod(people.ops, at, at + HOUR, cluster="fine"),
        pod(people.ops, at, at + HOUR + dt.timedelta(seconds=30), cluster="fine", role="ps", gpus=0),
    )
    waste.note_outcome("run bad-1", people.ops.pk, "Failed", "Error", at + HOUR)
    waste.note_outcome("run fine-1", people.ops.pk, "Succeeded", "", at + HOUR)
    posting.post(NOW)
    found = reckoned()
    assert found == {
        ("failed", "run bad-1"): (7200, 7200, Decimal("3.4")),
        ("outlived", "run served-1"): (3 * 3600, 0, Decimal("0.18")),
        ("reserved", "run slow-1"): (1800, 7200, Decimal("3.4")),
    }
    assert waste.look() == 0
    # Late facts recompute a run as a whole, and outdated rows are deleted.
    tell(pod(people.ops, at, at + 4 * HOUR, cluster="served", index=1))
    waste.note_outcome("run bad-1", people.ops.pk, "Succeeded", "", at + HOUR)
    posting.post(NOW)
    assert set(reckoned()) == {("reserved", "run slow-1")}
    range_ = Range(LAST.date(), TODAY + dt.timedelta(days=1), "day")
    assert waste.total(range_)["reserved"].used.gpu_seconds == 7200
    report = waste.report(range_, NOW, appcodes=[people.ops.pk])
    assert report.columns[at.date()]["reserved"] == waste.total(range_)["reserved"]
    assert waste.report(range_, NOW, appcodes=[people.flight.pk]).dearest == []


def test_portions_of_the_ledger_lead_to_the_same(people, prices):
    at = LAST + dt.timedelta(days=15)
    tell(*(pod(people.ops, at, at + HOUR, cluster=f"bad-{n}", cpu_milli=1000) for n in range(5)))
    for n in range(5):
        waste.note_outcome(f"run bad-{n}-1", people.ops.pk, "Failed", "Error", at + HOUR)
    posting.post(NOW)
    waste.look(portion=3)
    assert sum(Decimal(row.charge) / UNIT for row in Waste.objects.all()) == 5 * (Decimal("1.7") + Decimal("0.03"))
    assert not Outcome.objects.filter(looked_at=False).exists()


def test_portions_are_of_lines_whatever_their_numbers(people, prices, django_assert_max_num_queries):
    at = LAST + dt.timedelta(days=15)
    for n in range(3):
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval(pg_get_serial_sequence('billing_ledgerentry', 'id'))")
            (last,) = cursor.fetchone()
            cursor.execute("SELECT setval(pg_get_serial_sequence('billing_ledgerentry', 'id'), %s)", [last + 1_000_000])
        tell(pod(people.ops, at, at + HOUR, cluster=f"far-{n}", cpu_milli=1000))
        waste.note_outcome(f"run far-{n}-1", people.ops.pk, "Failed", "Error", at + HOUR)
        posting.post(NOW)
    # Six lines in portions of two.
    with django_assert_max_num_queries(60):
        waste.look(portion=2)
    assert Waste.objects.count() == 3
    assert Watermark.objects.get().entry == LedgerEntry.objects.latest("pk").pk
    with django_assert_max_num_queries(20):
        assert waste.look(portion=2) == 0


def test_parameter_servers_that_outlive_their_workers_are_told_while_they_do(people, prices):
    began = NOW - 5 * HOUR
    tell(
        pod(people.ops, began, NOW - 2 * HOUR, cluster="left", index=0),
        pod(people.ops, began, None, cluster="left", role="ps", gpus=0),
        pod(people.ops, began, None, cluster="busy", index=0),
        pod(people.ops, began, None, cluster="busy", role="ps", gpus=0),
        pod(people.ops, began, None, cluster="alone", role="ps", gpus=0),
    )
    (one,) = waste.report(RANGES[0], NOW).outliving
    assert (one.cluster, one.run, one.pods, one.over) == ("left", "1", 1, NOW - 2 * HOUR)
    assert waste.report(RANGES[0], NOW, appcodes=[people.flight.pk]).outliving == []


# Pages


def table(response) -> list[dict[str, str]]:
    assert response["Content-Type"].startswith("text/csv"), response.content[:500]
    return list(csv.DictReader(io.StringIO(response.content.decode())))


PAGES = ("/dashboard", "/dashboard/utilisation", "/dashboard/waste", "/dashboard/reconciliation")


def test_members_see_their_own_and_administrators_everything(client, people, prices):
    tell(
        pod(people.ops, NOW - 5 * HOUR, NOW - HOUR), pod(people.flight, NOW - 5 * HOUR, NOW - 3 * HOUR, cluster="wing")
    )
    posting.post(NOW)
    for person, codes in (
        (people.alice, {"ops-demo"}),
        (people.mallory, {"flight-demo"}),
        (people.root, {"ops-demo", "flight-demo"}),
    ):
        client.force_login(person)
        rows = table(client.get("/dashboard?by=appcode&format=csv&table=appcode"))
        assert {row["appcode"] for row in rows} == codes
        for page in PAGES:
            text = client.get(page).content.decode()
            assert ("flight-demo" in text) <= ("flight-demo" in codes)
            assert ("wing" in text) <= ("flight-demo" in codes)
    client.force_login(people.alice)
    assert table(client.get("/dashboard?appcode=flight-demo&format=csv")) == []
    assert client.get("/dashboard/reconciliation?format=csv&table=quarantine").status_code == 404


def test_down_from_a_column_to_the_sighting(client, people, prices):
    began = (NOW - dt.timedelta(days=3)).replace(hour=10, minute=0, second=0)
    tell(pod(people.ops, began, began + HOUR))
    posting.post(NOW)
    client.force_login(people.victor)
    day = f"from={began:%F}&amp;to={began:%F}"
    assert day in client.get("/dashboard").content.decode()
    assert "by=cluster" in client.get(f"/dashboard?from={began:%F}&to={began:%F}&by=appcode").content.decode()
    page = client.get(f"/dashboard?from={began:%F}&to={began:%F}&appcode=ops-demo&by=cluster").content.decode()
    assert f"/billing/ops-demo/show1?{day}" in page
    row = UsageSegment.objects.get()
    assert (
        f"/billing/ops-demo/show1/1/{row.pk}"
        in client.get(f"/billing/ops-demo/show1/1?from={began:%F}&to={began:%F}").content.decode()
    )
    page = client.get(f"/billing/ops-demo/show1/1/{row.pk}").content.decode()
    assert row.uid in page
    (seen,) = table(client.get(f"/billing/ops-demo/show1/1/{row.pk}?format=csv"))
    assert (seen["phase"], seen["cloud"]) == ("Succeeded", "local")
    lines = table(client.get(f"/billing/ops-demo/show1/1/{row.pk}?format=csv&table=ledger"))
    assert [(line["sku"], line["quantity"], line["amount"]) for line in lines] == [("gpu", "3600", "1.700000")]
    for wrong in (
        f"/billing/ops-demo/show2/1/{row.pk}",
        f"/billing/ops-demo/show1/2/{row.pk}",
        "/billing/ops-demo/show1/1/999999",
    ):
        assert client.get(wrong).status_code == 404
    client.force_login(people.mallory)
    assert client.get(f"/billing/ops-demo/show1/1/{row.pk}").status_code == 404


def test_columns_add_up_to_groups(client, people, prices):
    tell(
        *(
            pod(people.ops, NOW - n * 9 * HOUR, NOW - n * 9 * HOUR + HOUR / 2, index=n, gpu_model="A100")
            for n in range(1, 9)
        )
    )
    posting.post(NOW)
    client.force_login(people.root)
    sums = {
        sum(Decimal(row["cost"]) for row in table(client.get(f"/dashboard?format=csv&by={by}&table={kind}")))
        for by in ("line", "appcode", "user", "model", "framework") for kind in ("columns", by, "")
    }  # fmt: skip
    assert sums == {Decimal("9.6")}


def test_bad_input_is_told_at_its_field(client, people):
    client.force_login(people.alice)
    for page in PAGES:
        text = client.get(f"{page}?from=yesterday&columns=week&by=%00&user=%00").content.decode()
        assert "Give a day between" in text
        assert "Choose day or month" in text


def test_a_page_costs_the_same_however_much_there_is(client, people, prices, django_assert_max_num_queries):
    client.force_login(people.root)
    for n in range(2):
        tell(*(pod(people.ops, NOW - HOUR * 3, NOW - HOUR, index=f"{n}-{i}", cluster=f"c{i}") for i in range(30)))
        posting.post(NOW)
        waste.look()
        for page in PAGES:
            with django_assert_max_num_queries(30):
                assert client.get(page).status_code == 200


def test_what_does_not_fit_is_shown(client, people, prices):
    at = NOW - dt.timedelta(days=2)
    tell(
        replace(pod(people.ops, at, at + HOUR, uid="lost"), phase="Failed", estimated=True),
        replace(pod(people.ops, at, at + HOUR, uid="changed"), phase="Failed", estimated=True),
        pod(people.ops, at, None, uid="endless", consumer="run over"),
        PodState("strange", "local", people.ops.pk, "run 1", {}, "Dancing"),
    )
    waste.note_outcome("run over", people.ops.pk, "Stopped", "", NOW - HOUR)
    posting.post(NOW)
    tell(replace(pod(people.ops, at, at + 2 * HOUR, uid="changed"), phase="Failed"))
    posting.post(NOW)
    client.force_login(people.root)

    def rows(name: str) -> list[dict[str, str]]:
        return table(client.get(f"/dashboard/reconciliation?format=csv&table={name}"))

    assert [row["pod"] for row in rows("endless")] == ["endless"]
    assert [(row["pod"], row["flags"]) for row in rows("flagged")] == [("lost", "end-estimated")]
    (correction,) = rows("corrections")
    assert (correction["pod"], correction["taken_back"], correction["instead"]) == ("changed", "-1.700000", "3.400000")
    assert "Dancing" in rows("quarantine")[0]["raw"]
    text = client.get("/dashboard/reconciliation").content.decode()
    assert all(word in text for word in ("lost", "changed", "endless", "Dancing"))
    assert LedgerEntry.objects.filter(kind="reversal").count() == 1
    client.force_login(people.mallory)
    assert [row["pod"] for row in rows("flagged")] == []


# REST


def test_rest_says_what_the_pages_say(client, people, prices):
    # All usage on one day.
    at = (NOW - dt.timedelta(days=2)).replace(hour=10, minute=0, second=0)
    capacity.record("local", {"A100": (4, 0)}, NOW - dt.timedelta(days=10))
    tell(
        pod(people.ops, at, at + HOUR, gpu_model="A100", scheduled_at=at - dt.timedelta(minutes=5)),
        pod(people.flight, at, at + HOUR, cluster="wing"),
        replace(pod(people.ops, at, at + HOUR, uid="lost"), phase="Failed", estimated=True),
    )
    waste.note_outcome("run show1-1", people.ops.pk, "Failed", "Error", at + HOUR)
    posting.post(NOW)
    tell(replace(pod(people.ops, at, at + 2 * HOUR, uid="lost"), phase="Failed"))
    posting.post(NOW)
    waste.look()
    client.force_login(people.alice)

    def get(path: str, **query: str) -> dict:
        answer = client.get(f"/api/v1{path}", query)
        assert answer.status_code == 200, answer.content
        return answer.json()

    spending = get("/dashboard/spending", by="model")
    assert {row["value"]: row["gpuSeconds"] for row in spending["totals"]} == {"A100": 3600, "": 7200}
    assert sum(row["gpuSeconds"] for row in spending["items"]) == spending["total"]["gpuSeconds"] == 10800
    assert {row["value"] for row in get("/dashboard/spending")["totals"]} == {"ops-demo"}
    assert get("/dashboard/spending", by="cluster", user="nobody")["items"] == []
    use = get("/dashboard/utilisation", **{"from": f"{at:%F}", "to": f"{at:%F}"})
    assert (use["idleWhileHeld"], use["measuredOfHeld"]) == (None, "0.0000")
    assert [(row["gpuModel"], row["utilisation"]) for row in use["items"]] == [("", None), ("A100", "0.0104")]
    found = get("/dashboard/waste")
    assert {row["kind"]: row["cases"] for row in found["totals"]} == {"failed": 1, "outlived": 0, "reserved": 1}
    assert {row["cluster"] for row in found["dearest"]} == {"show1"}
    told = get("/dashboard/reconciliation")
    assert (told["corrections"], told["quarantine"], told["takenBack"]["amount"]) == (1, None, "-1.700000")
    segment = get(f"/segments/{told['corrected'][0]['segment']}")
    assert [line["kind"] for line in segment["entries"]] == ["usage", "usage", "reversal"]
    assert [seen["estimated"] for seen in segment["observations"]] in ([True, False], [False, True])
    for path, status in (
        ("/dashboard/spending?by=colour", 422), ("/dashboard/waste?from=x", 422), ("/dashboard/waste?appcode=flight-demo", 404),
        ("/segments/999999", 404),
    ):  # fmt: skip
        assert client.get(f"/api/v1{path}").status_code == status
    client.force_login(people.mallory)
    assert client.get(f"/api/v1/segments/{segment['id']}").status_code == 404
    client.force_login(people.root)
    assert {row["value"] for row in get("/dashboard/spending")["totals"]} == {"ops-demo", "flight-demo"}
