"""Recording sightings: each counts once, even if repeated, interrupted or recorded concurrently. Real PostgreSQL."""

import datetime as dt
import threading
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.metering import record as metering_record
from billing.metering.segments import PodState
from billing.models import Observation, Price, UsageSegment
from billing.prices import split
from billing.prices.book import price_book
from billing.prices.rates import cost
from billing.sums.totals import Totals, totals

T0 = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def history(appcode: int, uid: str = "p-1", *, begin: int = 0, end: int = 60, **facts: object) -> list[PodState]:
    """Returns what a cloud reports of one pod."""
    labels = {"cluster": "show1", "run": 1, "role": "worker", "index": 0}
    pending = PodState(uid, "local", appcode, "run 1", labels, "Pending", gpus=1, cpu_milli=2000, memory_mb=2048)
    reserved = replace(pending, scheduled_at=at(begin - 1), **facts)
    running = replace(reserved, phase="Running", started_at=at(begin))
    return [pending, reserved, running, replace(running, phase="Succeeded", finished_at=at(end))]


def record(states: list[PodState]) -> None:
    with transaction.atomic():
        metering_record.record(states)


def segments() -> list[tuple]:
    return list(UsageSegment.objects.order_by("uid").values_list("uid", "started", "ended", "gpus", "labels", "flags"))


@pytest.fixture
def book(db):
    for sku, since, per_hour in [
        ("gpu", -9e6, "3.6"),
        ("gpu", 30, "7.2"),
        ("gpu:A100", 0, "36"),
        ("cpu", -9e6, "0.05"),
    ]:
        Price.objects.create(sku=sku, valid_from=at(since), per_hour=Decimal(per_hour))


def test_a_pod_is_counted_once_however_often_it_is_told(ops):
    states = history(ops.pk)
    record(states)
    once = segments()
    assert once == [("p-1", at(0), at(60), 1, states[0].labels, [])]
    record(states[::-1])
    for state in states:
        record([state, state])
    assert segments() == once
    assert Observation.objects.count() == 4


def test_recording_outside_a_transaction_is_refused():
    with pytest.raises(RuntimeError, match="transaction"):
        metering_record.record([])


@pytest.mark.django_db
def test_the_number_of_queries_does_not_grow(ops, django_assert_num_queries):
    few = history(ops.pk)
    many = [state for n in range(200) for state in history(ops.pk, f"q-{n}")]
    for states in (few, many):
        with transaction.atomic(), django_assert_num_queries(4):
            metering_record.record(states)
    with django_assert_num_queries(2):
        assert totals(["run 1", "run 2"], at(60))["run 1"].gpu_seconds == 201 * 60
    with django_assert_num_queries(0):
        assert totals([], at(60)) == {}


@pytest.mark.parametrize("change", ["UPDATE billing_observation SET gpus = 0", "DELETE FROM billing_observation"])
def test_observations_are_never_rewritten(ops, change):
    record(history(ops.pk))
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)


@pytest.mark.parametrize("change", ["UPDATE billing_price SET per_hour = 0", "DELETE FROM billing_price"])
def test_a_price_that_was_charged_is_never_rewritten(db, change):
    Price.objects.create(sku="gpu", valid_from=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), per_hour=1)
    with pytest.raises(DatabaseError, match="has been charged"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)


@pytest.mark.parametrize(
    "table", ["billing_price(sku, per_hour, valid_from) VALUES ('gpu', 1, '2026-01-01 00:00:00.5Z')"]
)
def test_the_database_keeps_whole_seconds(db, table):
    with pytest.raises(DatabaseError, match="whole_second"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table}")


def test_a_transaction_that_dies_leaves_nothing_half(ops):
    """After a kill at any statement nothing is written, and the next attempt writes everything."""
    states = history(ops.pk)
    for survived in range(3):
        left = survived

        def die(execute, query, params, many, context):
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return execute(query, params, many, context)

        with pytest.raises(KeyboardInterrupt), transaction.atomic(), connection.execute_wrapper(die):
            metering_record.record(states)
        assert (Observation.objects.count(), UsageSegment.objects.count()) == (0, 0)
    record(states)
    assert segments()[0][1:3] == (at(0), at(60))


@pytest.mark.django_db(transaction=True)
def test_two_controllers_at_once_count_once(ops):
    """Each reports half of the sightings in its own order on its own connection; the segments contain all of them."""
    pods = [history(ops.pk, f"p-{n}", end=60 + n) for n in range(20)]
    shares = [[state for pod in pods for state in pod[:3]], [state for pod in pods[::-1] for state in pod[:1:-1]]]
    start = threading.Barrier(2, timeout=60)
    failures = []

    def controller(states: list[PodState]) -> None:
        try:
            start.wait()
            for n in range(0, len(states), 7):
                record(states[n : n + 7])
            record(states)
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            connections.close_all()

    threads = [threading.Thread(target=controller, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert {uid: ended for uid, _, ended, *_ in segments()} == {f"p-{n}": at(60 + n) for n in range(20)}
    assert Observation.objects.count() == 80
    call_command("replay", "--verify")


def test_totals_and_their_rates(ops, book):
    record(history(ops.pk, "p-1", begin=0, end=60) + history(ops.pk, "p-2", begin=10)[:3])
    total = totals(["run 1", "nobody"], at(40))
    assert total["nobody"] == Totals()
    assert (total["run 1"].gpu_seconds, total["run 1"].gpu_rate) == (40 + 30, 1)
    gpu = Decimal("0.001") * (30 + 20) + Decimal("0.002") * (10 + 10)
    assert total["run 1"].cost == gpu + Decimal("0.1") * 70 / 3600
    assert total["run 1"].cost_rate * 3600 == pytest.approx(Decimal("7.3"))


def test_value_grows_by_its_rate(ops, book):
    record(history(ops.pk)[:3])
    before, later = (totals(["run 1"], at(now))["run 1"] for now in (100, 4000))
    assert later.gpu_seconds == before.gpu_seconds + 3900 * before.gpu_rate
    assert later.cost == pytest.approx(before.cost + 3900 * before.cost_rate)


begins, lengths = st.integers(-5000, 5000), st.integers(0, 5000)
pods = st.tuples(begins, lengths, st.integers(0, 8), st.sampled_from(["", "A100", "T4"]), st.booleans())
moments = st.integers(-6000, 12000)


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(st.lists(pods, max_size=6), st.lists(moments, min_size=2, max_size=5, unique=True), moments)
def test_the_database_and_the_pure_rating_agree(ops, book, drawn, cuts, now):
    """The ratings of every window of every pod agree to the last digit, and the windows add up."""
    edges = sorted(map(at, cuts))
    windows = list(pairwise(edges))
    with transaction.atomic():
        UsageSegment.objects.all().delete()
        states = []
        for n, (begin, length, gpus, model, over) in enumerate(drawn):
            told = history(ops.pk, f"d-{n}", begin=begin, end=begin + length, gpus=gpus, gpu_model=model)
            states += told if over else told[:3]
        UsageSegment.objects.bulk_create(
            UsageSegment.of(segment) for segment in metering_record.segments_of(map(Observation.of, states))
        )
    prices = price_book()
    rows = split.usage(prices, by=["appcode"], windows=windows, now=at(now))
    for since, until in windows:
        parts = [part for row in UsageSegment.objects.all() if (part := row.segment.within(since, until))]
        row = next((row for row in rows if row.since == since), None)
        assert (row.gpu_seconds if row else 0) == sum(part.seconds(at(now)) * part.resources.gpus for part in parts)
        assert (row.cost if row else 0) == pytest.approx(
            sum(cost(part, prices, at(now)) for part in parts), abs=Decimal("1e-20")
        )
    whole = split.usage(prices, by=["appcode"], windows=[(edges[0], edges[-1])], now=at(now))
    assert sum(row.gpu_seconds for row in rows) == sum(row.gpu_seconds for row in whole)


def test_replay_proves_the_segments_and_mends_them(ops, book, capsys):
    record(history(ops.pk) + history(ops.pk, "p-2")[:3])
    call_command("replay", "--verify")
    assert "2 segments" in capsys.readouterr().out
    UsageSegment.objects.filter(uid="p-1").update(ended=at(61))
    UsageSegment.objects.filter(uid="p-2").update(uid="p-3")
    with pytest.raises(CommandError, match="3 "):
        call_command("replay", "--verify")
    call_command("replay")
    call_command("replay", "--verify")
    assert [(uid, ended) for uid, _, ended, *_ in segments()] == [("p-1", at(60)), ("p-2", None)]
