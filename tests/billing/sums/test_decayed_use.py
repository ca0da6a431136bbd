"""Use that fades, as the database adds it up: equal to the formula over the segments, whatever was folded when."""

import datetime as dt
from dataclasses import replace

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg2 import sql

from billing.ledger import posting
from billing.models import DecayedUse, LedgerEntry, UsageSegment
from billing.sums import decayed_use as sums
from billing.sums.decay import HALF_LIFE, Stretch, decayed
from tests.billing.pods import HOUR, T0, at, pod, record

DAY = 24 * HOUR


def truth(now: dt.datetime) -> dict[int, int]:
    """Returns what the pure function computes from the stored segments."""
    stretches: dict[int, list[Stretch]] = {}
    for row in UsageSegment.objects.all():
        start, end = row.started - T0, min(row.ended or now, now) - T0
        if row.labels.get("class") != "spare" and start < end:
            each = Stretch(int(start.total_seconds()), int(end.total_seconds()), row.gpus)
            stretches.setdefault(row.appcode_id, []).append(each)
    second = int((now - T0).total_seconds())
    found = {appcode: decayed(0, second, several, second) for appcode, several in stretches.items()}
    return {appcode: used for appcode, used in found.items() if used}


def agrees(now: dt.datetime) -> bool:
    found, expected = sums.decayed_use(now), truth(now)
    return found.keys() == expected.keys() and all(abs(found[key] - expected[key]) <= 1 for key in found)


pods = st.lists(
    st.tuples(st.integers(0, 40 * DAY), st.none() | st.integers(1, 20 * DAY), st.integers(0, 8), st.booleans()),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(
    told=pods, turns=st.lists(st.tuples(st.integers(0, 30 * DAY), st.sampled_from(["post", "fold", "end"])), max_size=8)
)
def test_every_second_counts_once_whatever_was_posted_folded_or_told_late(ops, flight, told, turns):
    """ "end" tells the ends of all pods only then, also of those that were posted by whole months long ago."""
    with transaction.atomic():
        ends, now = [], at(60 * DAY)
        for n, (begin, length, gpus, is_spare) in enumerate(told):
            of = (ops, flight)[n % 2].pk
            state = pod(of, f"p-{n}", begin=begin, end=None, gpus=gpus)
            state = replace(state, labels={**state.labels, **({"class": "spare"} if is_spare else {})})
            record(state)
            if length:
                ends.append(replace(state, phase="Succeeded", finished_at=at(begin + length)))
        for wait, what in turns:
            now += dt.timedelta(seconds=wait)
            if what == "end":
                record(*ends)
            elif what == "post":
                posting.post(now)
            else:
                sums.fold(now)
            assert agrees(now)
        transaction.set_rollback(True)


def test_a_correction_of_folded_use_counts_as_if_it_had_come_in_time(ops):
    """A pod that was estimated to hold 8 GPUs for an hour had held them for ten minutes, says its node a month later."""
    lost = replace(pod(ops.pk, gpus=8), estimated=True)
    record(lost)
    posting.post(at(2 * HOUR))
    sums.fold(at(2 * HOUR))
    assert sums.decayed_use(at(2 * HOUR)) == {ops.pk: pytest.approx(8 * HOUR, rel=0.01)}
    record(pod(ops.pk, gpus=8, end=600))
    now = at(30 * DAY)
    before = sums.decayed_use(now)
    posting.post(now)
    assert sums.decayed_use(now) == before == {ops.pk: round(8 * 600 * 0.5 ** (30 * DAY / HALF_LIFE))}
    sums.fold(now)
    assert sums.decayed_use(now) == before


def test_folding_twice_or_dying_in_it_changes_nothing(ops):
    record(pod(ops.pk))
    posting.post(at(2 * HOUR))
    before = sums.decayed_use(at(DAY))
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert sums.fold(at(2 * HOUR)) == 1
        raise ZeroDivisionError
    assert not DecayedUse.objects.exists()
    assert [sums.fold(at(2 * HOUR)), sums.fold(at(3 * HOUR))] == [1, 0]
    assert sums.decayed_use(at(DAY)) == before == {ops.pk: 3600 * 0.5 ** (23.5 / 24 / 7) // 1}


def test_use_of_centuries_ago_is_nothing_and_no_error(ops):
    record(pod(ops.pk))
    posting.post(at(2 * HOUR))
    sums.fold(at(2 * HOUR))
    assert sums.decayed_use(T0 + dt.timedelta(days=365 * 300)) == {}


def test_one_statement_reads_all_appcodes(ops, flight, django_assert_num_queries):
    record(pod(ops.pk, "a"), pod(flight.pk, "b", end=None))
    posting.post(at(2 * HOUR))
    sums.fold(at(2 * HOUR))
    with django_assert_num_queries(1):
        assert set(sums.decayed_use(at(2 * HOUR))) == {ops.pk, flight.pk}
    assert set(sums.decayed_use(at(2 * HOUR), [ops.pk])) == {ops.pk}


def test_folding_needs_no_scan_of_what_was_folded(ops):
    """Among the lines of 100 appcodes, those of one are found by the index of (appcode, id)."""
    record(pod(ops.pk))
    posting.post(at(2 * HOUR))
    columns = [field.column for field in LedgerEntry._meta.concrete_fields if field.column not in ("id", "appcode_id")]
    copied = sql.SQL(
        "INSERT INTO billing_ledgerentry (appcode_id, {columns})"
        " SELECT 1000 + n %% 100, {columns} FROM billing_ledgerentry, generate_series(1, 5000) n WHERE appcode_id = %s"
    )
    with connection.cursor() as cursor:
        cursor.execute(copied.format(columns=sql.SQL(", ").join(map(sql.Identifier, columns))), [ops.pk])
        cursor.execute("ANALYZE billing_ledgerentry")
        cursor.execute(sql.SQL("EXPLAIN ") + sums.NEW, {"now": T0, "half": HALF_LIFE})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "ledger_appcode" in plan
