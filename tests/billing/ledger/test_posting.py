"""The ledger: the database posts what the pure functions compute, whatever happened before."""

import datetime as dt
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import periods
from billing.ledger import entries, posting
from billing.metering import record as metering_record
from billing.metering.segments import Resources, Segment
from billing.models import (
    Credit,
    DailyUsage,
    Discount,
    Due,
    LedgerEntry,
    MonthlyUsage,
    Ownership,
    Price,
    UsageSegment,
)
from billing.money import UNIT, money
from billing.prices import split
from billing.prices.book import price_book
from billing.prices.rates import DatedDiscount, DatedPrice, Owner, Prices, charge, quantities
from portal.models import OrgNode
from tests.billing.pods import HOUR, T0, at, pod, record

NOW = dt.datetime(2026, 6, 10, 8, tzinfo=dt.UTC)
DAY = 86400
BOOK = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def price(sku: str, per_hour: str | None, since: dt.datetime = BOOK, **scope: object) -> Price:
    return Price.objects.create(sku=sku, per_hour=per_hour and Decimal(per_hour), valid_from=since, **scope)


def standing() -> list[entries.Entry]:
    """Returns the entries that were not reversed."""
    rows = LedgerEntry.objects.filter(kind="usage", reversals=None)
    return sorted((row.entry for row in rows), key=lambda entry: (entry.uid, entry.sku, entry.since))


def expected(now: dt.datetime) -> list[entries.Entry]:
    """Returns what the pure functions compute from the stored segments, prices and owners."""
    owners = [row.owner for row in Ownership.objects.all()]
    prices = Prices(
        tuple(row.dated for row in Price.objects.all()),
        tuple(row.dated for row in Discount.objects.all()),
        tuple(owners),
    )
    segments = [row.segment for row in UsageSegment.objects.order_by("uid")]
    return [e for s in segments for e in entries.entries_of(s, prices, owners, entries.final_until(s, now))]


def check(now: dt.datetime) -> list[entries.Entry]:
    """Asserts every invariant between segments, ledger and sums once `now` has been posted."""
    lines = expected(now)
    assert standing() == lines
    posted: Counter[str] = Counter()
    for row in LedgerEntry.objects.all():
        posted[row.sku] += row.quantity
    of_segments: Counter[str] = Counter()
    for row in UsageSegment.objects.all():
        s = row.segment
        until = entries.final_until(s, now)
        for sku, amount in quantities(s.resources).items():
            of_segments[sku] += amount * max(0, int((until - s.started).total_seconds()))
    assert +posted == +of_segments
    for table, time in ((DailyUsage, "day"), (MonthlyUsage, "month")):
        found: Counter[object] = Counter()
        for cell in table.objects.all():
            key = (getattr(cell, time), cell.appcode_id, cell.business_line, cell.cluster, cell.gpu_model)
            for name in posting.SUMMED:
                found[(*key, name)] += getattr(cell, name)
        assert {key: value for key, value in found.items() if value} == _cells(lines, time)
    assert not Due.objects.filter(due_at__lte=now).exists()
    return lines


def _cells(lines: list[entries.Entry], time: str) -> dict[object, object]:
    found: Counter[object] = Counter()
    for line in lines:
        period = periods.Period(line.since, line.until)
        family = line.sku.partition(":")[0].removeprefix("spare-").removeprefix("urgent-")
        seconds = int((line.until - line.since).total_seconds())
        edges = [line.since]
        while edges[-1] < line.until:
            midnight = edges[-1].replace(hour=0, minute=0, second=0) + dt.timedelta(days=1)
            edges.append(min(midnight, period.until))
        for since, until in pairwise(edges):
            day = since.date() if time == "day" else since.date().replace(day=1)
            share = Fraction(int((until - since).total_seconds()), seconds)
            model = line.sku.partition(":")[2]
            key = (day, line.appcode_id, line.business_line, str(line.labels.get("cluster", "")), model)
            found[(*key, posting.RESOURCES[family])] += line.quantity * share
            found[(*key, f"{family}_charge")] += Fraction(line.charge) * share
    return {key: value for key, value in found.items() if value}


@pytest.fixture
def prices(db):
    for sku, per_hour in (("gpu", "1.2"), ("cpu", "0.03"), ("memory", "0.004"), ("storage", "0.0001")):
        price(sku, per_hour)


def amounts(**where: object) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for line in LedgerEntry.objects.filter(**where):
        found[line.sku] = found.get(line.sku, Decimal(0)) + line.charge
    return {sku: money(value) for sku, value in found.items()}


# What is posted and when


def test_what_has_ended_is_posted_once(ops, prices):
    record(pod(ops.pk))
    assert posting.post(NOW) == posting.Posted(1, 3, 0)
    assert posting.post(NOW) == posting.Posted()
    lines = {line.sku: line for line in check(NOW)}
    assert {sku: line.quantity for sku, line in lines.items()} == {"gpu": 3600, "cpu": 5400000, "memory": 7372800}
    assert {sku: line.amount for sku, line in lines.items()} == {
        "gpu": Decimal("1.2"), "cpu": Decimal("0.045"), "memory": Decimal("0.008"),
    }  # fmt: skip
    assert {line.business_line for line in lines.values()} == {"qunarcorp.ops"}
    assert lines["gpu"].labels["user"] == "bob"


def test_what_lasts_is_posted_when_a_month_is_over(ops, prices):
    record(pod(ops.pk, end=None, cpu_milli=0, memory_mb=0))
    assert posting.post(at(HOUR)) == posting.Posted()
    assert posting.post(at(2 * HOUR)) == posting.Posted(1, 1, 0)
    assert [(line.since, line.until) for line in check(at(2 * HOUR))] == [(at(0), at(2 * HOUR))]
    assert posting.post(at(20 * DAY)) == posting.Posted()
    record(pod(ops.pk, end=3 * HOUR, cpu_milli=0, memory_mb=0))
    assert posting.post(NOW) == posting.Posted(1, 1, 0)
    assert [line.quantity for line in check(NOW)] == [2 * HOUR, HOUR]


def test_an_end_ahead_of_our_clock_waits_for_it(ops, prices):
    record(pod(ops.pk, end=600))
    assert posting.post(at(599)) == posting.Posted()
    assert posting.post(at(600)).added == 3
    check(at(600))


def test_a_late_end_is_a_reversal_and_a_new_line(ops, prices):
    record(pod(ops.pk, end=None))
    posting.post(at(DAY * 2))
    first = list(LedgerEntry.objects.values_list("pk", flat=True))
    record(pod(ops.pk, end=HOUR))
    assert posting.post(NOW) == posting.Posted(1, 3, 3)
    check(NOW)
    assert set(LedgerEntry.objects.filter(kind="reversal").values_list("reverses", flat=True)) == set(first)
    assert amounts()["gpu"] == Decimal("1.2")
    assert amounts(kind="reversal")["gpu"] == Decimal("-2.4")


def test_what_changes_nothing_reverses_nothing(ops, prices):
    record(pod(ops.pk))
    posting.post(NOW)
    record(replace(pod(ops.pk), started_at=at(1)))
    record(pod(ops.pk))
    assert posting.post(NOW) in (posting.Posted(), posting.Posted(1, 0, 0))
    check(NOW)


def test_a_pod_that_held_nothing_has_no_lines(ops, prices):
    record(pod(ops.pk, end=0), pod(ops.pk, "p-2", gpus=0, cpu_milli=0, memory_mb=0))
    assert posting.post(NOW) == posting.Posted(2, 0, 0)
    check(NOW)


# Boundaries


def test_months_and_years_split_exactly(ops, prices):
    eve = dt.datetime(2025, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    begin = int((eve - T0).total_seconds())
    record(pod(ops.pk, begin=begin, end=begin + 2, cpu_milli=0, memory_mb=0))
    posting.post(NOW)
    assert [(line.since, line.until, line.quantity) for line in check(NOW)] == [
        (eve, eve + dt.timedelta(seconds=1), 1),
        (eve + dt.timedelta(seconds=1), eve + dt.timedelta(seconds=2), 1),
    ]
    assert {cell.month for cell in MonthlyUsage.objects.all()} == {dt.date(2025, 12, 1), dt.date(2026, 1, 1)}


def test_a_leap_second_is_no_second(ops, prices):
    """UTC had a 61st second at the end of 2016. Computers, databases and Kubernetes do not count it (POSIX time), and neither
    does a bill: 23:59:50 to 00:00:10 is 20 seconds."""
    begin = int((dt.datetime(2016, 12, 31, 23, 59, 50, tzinfo=dt.UTC) - T0).total_seconds())
    record(pod(ops.pk, begin=begin, end=begin + 20))
    posting.post(NOW)
    assert sum(line.quantity for line in check(NOW) if line.sku == "gpu") == 20


@pytest.mark.parametrize(
    ("since", "hours"),
    [(dt.datetime(2026, 3, 29, tzinfo=dt.UTC), 24), (dt.datetime(2026, 10, 25, tzinfo=dt.UTC), 24)],
)
def test_daylight_saving_time_is_nobodys_business(ops, prices, since, hours):
    """Days with 23 or 25 hours in Europe have 24 here, because every time is UTC. Database sessions use UTC too, but nothing
    depends on that: month boundaries are computed in UTC explicitly."""
    begin = int((since - T0).total_seconds())
    record(pod(ops.pk, begin=begin, end=begin + DAY, cpu_milli=0, memory_mb=0))
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Europe/Berlin'")
    posting.post(since + dt.timedelta(days=60))
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'UTC'")
    (cell,) = DailyUsage.objects.all()
    assert (cell.day, cell.gpu_seconds) == (since.date(), hours * HOUR)
    check(since + dt.timedelta(days=60))


def test_a_change_of_price_splits_to_the_second(ops, prices):
    price("gpu", "2.4", at(1000))
    record(pod(ops.pk, end=1500, cpu_milli=0, memory_mb=0))
    posting.post(NOW)
    assert [(line.quantity, line.per_hour) for line in check(NOW)] == [(1000, Decimal("1.2")), (500, Decimal("2.4"))]


def test_a_change_of_owner_splits_to_the_second(ops, prices):
    Ownership.objects.create(appcode=ops, business_line="qunarcorp.flight", valid_from=at(100))
    record(pod(ops.pk, end=150, cpu_milli=0, memory_mb=0))
    posting.post(NOW)
    assert [(line.quantity, line.business_line) for line in check(NOW)] == [
        (100, "qunarcorp.ops"), (50, "qunarcorp.flight"),
    ]  # fmt: skip


def test_a_discount_splits_to_the_second_and_the_largest_counts(ops, prices):
    Discount.objects.create(sku="gpu", percent=10, valid_from=at(100), valid_until=at(300))
    Discount.objects.create(sku="*", percent=Decimal("33.33"), valid_from=at(200), valid_until=at(400), appcode=ops)
    Discount.objects.create(sku="cpu", percent=50, valid_from=at(0))
    record(pod(ops.pk, end=500, cpu_milli=0, memory_mb=0))
    posting.post(NOW)
    assert [(line.quantity, line.discount) for line in check(NOW)] == [
        (100, 0), (100, 10), (200, Decimal("33.33")), (100, 0),
    ]  # fmt: skip
    assert amounts()["gpu"] * HOUR == pytest.approx(
        Decimal("1.2") * (100 + 90 + 200 * Decimal("0.6667") + 100), rel=Decimal("1e-25")
    )


# Which price applies


def test_the_nearest_price_counts(ops, flight):
    scoped = {"appcode": ops}
    for sku, per_hour, since, scope in [
        ("gpu", "1", -9, {}), ("gpu:A100", "4", -9, {}), ("gpu", "3", 10, {"business_line": "qunarcorp.ops"}),
        ("gpu:A100", "2", 20, scoped), ("gpu:A100", None, 30, scoped), ("gpu", None, 40, {"business_line": "qunarcorp.ops"}),
    ]:  # fmt: skip
        price(sku, per_hour, at(since), **scope)
    book = price_book()
    for seconds, a100, any_gpu in [(0, 4, 1), (10, 3, 3), (20, 2, 3), (30, 3, 3), (40, 4, 1)]:
        assert book.at("gpu:A100", at(seconds), ops.pk) == a100
        assert book.at("gpu:T4", at(seconds), ops.pk) == any_gpu
        assert book.at("gpu:A100", at(seconds), flight.pk) == 4
    record(pod(ops.pk, end=50, gpu_model="A100", cpu_milli=0, memory_mb=0))
    posting.post(NOW)
    assert [line.per_hour for line in check(NOW)] == [4, 3, 2, 3, 4]


def test_an_appcode_takes_its_business_lines_price_along_only_while_it_belongs_to_it(ops, prices):
    price("gpu", "9", at(0), business_line="qunarcorp.ops")
    Ownership.objects.create(appcode=ops, business_line="qunarcorp.flight", valid_from=at(100))
    record(pod(ops.pk, end=200, cpu_milli=0, memory_mb=0))
    posting.post(NOW)
    assert [(line.quantity, line.per_hour) for line in check(NOW)] == [(100, 9), (100, Decimal("1.2"))]


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"sku": "gpu", "per_hour": 1}, "price_once"),
        ({"sku": "gpu", "per_hour": 1, "business_line": "a"}, "price_once"),
        ({"sku": "cpu", "per_hour": None}, "price_ends_special_only"),
        ({"sku": "cpu", "per_hour": -1}, "price_not_negative"),
    ],
)
def test_the_database_refuses_prices_that_contradict_each_other(db, facts, name):
    price("gpu", "1")
    price("gpu", "2", business_line="a")
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        Price.objects.create(valid_from=BOOK, **facts)


def test_two_scopes_are_none(ops):
    with pytest.raises(IntegrityError, match="one_scope"), transaction.atomic():
        Price.objects.create(sku="gpu", per_hour=1, valid_from=BOOK, appcode=ops, business_line="a")


def test_a_discount_that_has_begun_can_only_be_ended(ops):
    now = timezone.now().replace(microsecond=0)
    found = Discount.objects.create(sku="gpu", percent=10, valid_from=BOOK)
    for change in ({"percent": 20}, {"valid_from": now}, {"valid_until": BOOK}):
        with pytest.raises(DatabaseError, match="has been charged"), transaction.atomic():
            Discount.objects.filter(pk=found.pk).update(**change)
    with pytest.raises(DatabaseError, match="has been charged"), transaction.atomic():
        found.delete()
    Discount.objects.filter(pk=found.pk).update(valid_until=now + dt.timedelta(days=1))


# Ownership


def owners(appcode) -> list[str]:
    return list(
        Ownership.objects.filter(appcode=appcode).order_by("valid_from").values_list("business_line", flat=True)
    )


def test_an_appcode_has_an_owner_from_the_beginning(ops):
    assert owners(ops) == ["qunarcorp.ops"]


def test_whoever_moves_an_appcode_notes_it(ops, flight):
    ops.org_node = flight.org_node
    ops.save()
    assert owners(ops) == ["qunarcorp.ops", "qunarcorp.flight"]


def test_changes_of_the_organisation_are_noted(make_appcode, alice):
    deep = make_appcode("deep-demo", org="corp.a.b", namespace="b", owner=alice)
    node = OrgNode.objects.get(path="corp.a.b")
    # All within one second: the last state counts.
    OrgNode.objects.filter(pk=node.pk).update(namespace=None)
    assert owners(deep)[-1] == ""
    above = OrgNode.objects.create(path="corp.a", namespace="a")
    assert owners(deep)[-1] == "corp.a"
    OrgNode.objects.filter(pk=above.pk).update(path="corp.ab")
    assert owners(deep)[-1] == ""
    OrgNode.objects.filter(pk=above.pk).update(path="corp")
    assert owners(deep)[-1] == "corp"
    above.delete()
    assert owners(deep) == ["corp.a.b", ""]


def test_who_owned_an_appcode_that_used_something_stays_written(ops, prices):
    record(pod(ops.pk))
    for change in ("UPDATE billing_ownership SET business_line = 'x'", "DELETE FROM billing_ownership"):
        with pytest.raises(DatabaseError, match="charged"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(change)


# Append-only


@pytest.mark.parametrize("table", ["billing_ledgerentry", "billing_credit"])
@pytest.mark.parametrize("change", ["UPDATE {} SET appcode_id = 0", "DELETE FROM {}"])
def test_the_ledger_is_never_rewritten(ops, prices, table, change):
    record(pod(ops.pk))
    posting.post(NOW)
    Credit.objects.create(appcode=ops, amount=5, reason="sorry", valid_from=NOW, created_by="root")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change.format(table))


def test_a_reversal_takes_back_exactly_one_line_once(ops, prices):
    record(pod(ops.pk))
    posting.post(NOW)
    line = LedgerEntry.objects.filter(sku="gpu").get()
    facts = {field.attname: getattr(line, field.attname) for field in LedgerEntry._meta.concrete_fields}
    del facts["id"]
    whole = facts | {
        "kind": "reversal", "reverses_id": line.pk, "quantity": -line.quantity, "charge": -line.charge,
    }  # fmt: skip
    for wrong in ({"charge": -line.charge + 1}, {"reverses_id": line.pk + 10**6}, {"sku": "cpu"}):
        with pytest.raises(IntegrityError, match="refers to nothing"), transaction.atomic():
            LedgerEntry.objects.create(**whole | wrong)
    LedgerEntry.objects.create(**whole)
    with pytest.raises(IntegrityError, match="ledger_reversed_once"), transaction.atomic():
        LedgerEntry.objects.create(**whole)


def test_a_line_lies_in_one_month(ops, prices):
    record(pod(ops.pk))
    posting.post(NOW)
    line = LedgerEntry.objects.first()
    line.pk, line.until = None, line.since + dt.timedelta(days=31)
    with pytest.raises(IntegrityError, match="ledger_one_month"), transaction.atomic():
        line.save(force_insert=True)


# Terms that change after posting


def test_a_price_that_begins_before_what_was_posted_corrects_it(ops, flight, prices):
    """A price of an administrator begins now or later; only a long transaction can insert an earlier one."""
    record(pod(ops.pk), pod(flight.pk, "p-2"), pod(ops.pk, "p-3", begin=-DAY, end=-HOUR))
    posting.post(NOW)
    price("gpu", "2.4", at(1800), appcode=ops)
    assert posting.post(NOW) == posting.Posted(1, 2, 1)
    assert amounts(uid="p-1")["gpu"] == Decimal("1.8")
    check(NOW)


def test_a_move_that_was_noted_late_corrects_the_owner(ops, prices):
    record(pod(ops.pk, end=100, cpu_milli=0, memory_mb=0))
    posting.post(NOW)
    Ownership.objects.create(appcode=ops, business_line="elsewhere", valid_from=at(60))
    assert posting.post(NOW) == posting.Posted(1, 2, 1)
    assert {line.business_line: line.quantity for line in check(NOW)} == {"qunarcorp.ops": 60, "elsewhere": 40}


# The pure functions and the database agree for any terms and pods

begins = st.integers(-3 * DAY, 40 * DAY)
lengths = st.one_of(st.integers(0, 2 * HOUR), st.integers(0, 80 * DAY))
pods = st.tuples(
    begins, lengths, st.booleans(), st.booleans(),
    st.fixed_dictionaries(
        {
            "gpus": st.integers(0, 8), "gpu_model": st.sampled_from(["", "A100", "T4"]),
            "cpu_milli": st.integers(0, 9000), "memory_mb": st.integers(0, 9000), "storage_mb": st.integers(0, 3),
            "kind": st.sampled_from(["", "spare", "urgent"]),
        }
    ),
)  # fmt: skip
scopes = st.sampled_from(
    [{}, {"appcode": "ops"}, {"appcode": "flight"}, {"business_line": "x"}, {"business_line": "y"}]
)
money_of = st.decimals(min_value=0, max_value=1000, places=6)
skus = st.sampled_from(
    ["gpu", "gpu:A100", "spare-gpu", "spare-gpu:A100", "urgent-gpu", "urgent-gpu:A100", "cpu", "memory", "storage"]
)
price_rows = st.lists(st.tuples(skus, st.none() | money_of, begins, scopes), max_size=8)
discount_rows = st.lists(
    st.tuples(
        st.sampled_from(["*", "gpu", "gpu:A100", "spare-gpu", "spare-gpu:A100", "cpu", "memory"]),
        st.decimals(min_value=Decimal("0.01"), max_value=100, places=2),
        begins, st.none() | lengths, scopes,
    ),
    max_size=4,
)  # fmt: skip
owner_rows = st.lists(st.tuples(st.booleans(), begins, st.sampled_from(["x", "y", "z", ""])), max_size=5)


def set_terms(codes: dict[str, object], drawn_prices, drawn_discounts, drawn_owners) -> None:
    def scope(facts: dict[str, str]) -> dict[str, object]:
        return {name: codes[value] if name == "appcode" else value for name, value in facts.items()}

    rows = {}
    for sku, per_hour, since, facts in drawn_prices:
        if per_hour is None and not facts and sku in ("gpu", "cpu", "memory", "storage"):
            per_hour = Decimal(0)
        rows[(sku, since, *facts.items())] = Price(sku=sku, per_hour=per_hour, valid_from=at(since), **scope(facts))
    for row in rows.values():
        row.save()
    for sku, percent, since, length, facts in drawn_discounts:
        until = None if length is None else at(since + length)
        Discount.objects.create(sku=sku, percent=percent, valid_from=at(since), valid_until=until, **scope(facts))
    for mine, since, line in drawn_owners:
        code = codes["ops" if mine else "flight"]
        Ownership.objects.get_or_create(appcode=code, valid_from=at(since), defaults={"business_line": line})


@pytest.mark.timeout(600)
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(
    st.lists(pods, max_size=5), price_rows, discount_rows, owner_rows, price_rows, discount_rows, owner_rows,
    st.lists(lengths, max_size=3), st.lists(st.integers(0, 120 * DAY), min_size=1, max_size=3), st.integers(1, 3),
)  # fmt: skip
def test_the_ledger_is_what_the_pure_functions_say(
    ops, flight, drawn, prices_, discounts, owned, later_prices, later_discounts, later_owned, ends, times, size
):  # fmt: skip
    """Terms that come before and after posting, pods that end late or differently than reported, portions of any size."""
    codes = {"ops": ops, "flight": flight}
    with transaction.atomic():
        set_terms(codes, prices_, discounts, owned)
        states = [
            pod((ops if mine else flight).pk, f"d-{n}", begin=begin, end=begin + length if over else None, **held)
            for n, (begin, length, over, mine, held) in enumerate(drawn)
        ]
        metering_record.record(states)
        nows = sorted(map(at, times))
        for now in nows:
            for shard in range(posting.SHARDS):
                while posting.post_portion(now, shard, size).segments:
                    pass
            check(now)
        # Another end was seen: an end wins over none, and the latest over an earlier one.
        for state, length in zip(states, ends, strict=False):
            end = max(state.scheduled_at + dt.timedelta(seconds=length), state.finished_at or state.scheduled_at)
            metering_record.record([replace(state, phase="Succeeded", finished_at=end)])
        set_terms(codes, [row for row in later_prices if not _taken(row, prices_)], later_discounts, later_owned)
        posting.post(nows[-1])
        check(nows[-1])
        live_equals_ledger(codes, at(200 * DAY))
        transaction.set_rollback(True)


def _taken(row, rows) -> bool:
    return any((row[0], row[2], row[3]) == (sku, since, scope) for sku, _, since, scope in rows)


def live_equals_ledger(codes: dict[str, object], now: dt.datetime) -> None:
    """Asserts that once everything is posted, sums over segments equal those of the ledger to the last digit."""
    last = periods.month(now).since
    posting.post(last)
    for code in codes.values():
        rows = split.usage(
            price_book(),
            by=["appcode"],
            windows=[(periods.EARLIEST, last)],
            now=last,
            appcodes=[code.pk],
        )
        lines = LedgerEntry.objects.filter(appcode=code)
        assert sum(row.charge for row in rows) == sum(line.charge for line in lines)
        assert sum(row.gpu_seconds for row in rows) == sum(line.quantity for line in lines if "gpu" in line.sku)


@given(
    st.lists(st.tuples(skus, st.none() | money_of, begins, st.sampled_from([(None, ""), (1, ""), (None, "x")])), max_size=8),
    st.lists(st.tuples(begins, st.sampled_from(["x", "y"])), max_size=4),
    begins, lengths, st.integers(0, 100 * DAY),
)  # fmt: skip
def test_lines_adjoin_and_their_charges_are_the_segments_cost(rows, owned, begin, length, until):
    book = Prices(
        tuple(DatedPrice(sku, at(since), value, *scope) for sku, value, since, scope in rows),
        (DatedDiscount("gpu", Decimal("12.5"), at(100), at(9999)),),
        tuple(Owner(1, at(since), line) for since, line in owned),
    )
    held = Resources(2, "A100", 1500, 3000, 7)
    segment = Segment("p", 1, "run 1", {}, held, at(begin), at(begin + length))
    lines = entries.entries_of(segment, book, book.owners, at(until))
    end = min(segment.ended, at(until))
    for sku, amount in quantities(held).items():
        mine = [line for line in lines if line.sku == sku]
        assert [line.until for line in mine[:-1]] == [line.since for line in mine[1:]]
        assert all(periods.month(line.since).until >= line.until > line.since for line in mine)
        assert sum(line.quantity for line in mine) == amount * max(0, int((end - segment.started).total_seconds()))
    assert sum((Fraction(line.charge) for line in lines), Fraction(0)) / UNIT == charge(segment, book, at(until))
