"""Faults do not change the ledger: lost, repeated and reordered news, skewed clocks, vanished nodes, concurrent controllers, and
controllers killed at any statement. Uses real PostgreSQL, real processes and SIGKILL.
"""

import datetime as dt
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from itertools import count

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.invoices import closing
from billing.ledger import entries, posting
from billing.metering import record as metering_record
from billing.metering.segments import END_ESTIMATED, MAX_SKEW, PodState, segment_of
from billing.models import (
    DailyUsage,
    Discount,
    Due,
    InvoiceLine,
    LedgerEntry,
    Observation,
    Ownership,
    Price,
    UsageSegment,
)
from billing.prices.book import price_book
from tests import mortal

# Half an hour before a year ends.
T0 = dt.datetime(2025, 12, 31, 23, 30, tzinfo=dt.UTC)
NOW = dt.datetime(2026, 3, 5, tzinfo=dt.UTC)
HOUR, DAY = 3600, 86400


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def history(
    appcode: int, uid: str, begin: float, run: float, length: float | None, *, fails: bool = False, **held: object
) -> list[PodState]:
    """Returns everything that a cloud reports of a pod that was reserved at `begin`, started `run` seconds later and ended after
    `length` seconds (None: still running)."""
    labels = {"cluster": "show1", "run": "1", "role": "worker", "index": uid}
    pending = PodState(uid, "kubernetes", appcode, "run 1", labels, "Pending", **({"gpus": 1, "cpu_milli": 500} | held))
    reserved = replace(pending, scheduled_at=at(begin))
    running = replace(reserved, phase="Running", started_at=at(begin + run))
    if length is None:
        return [pending, reserved, running]
    end = at(begin + run + length)
    return [pending, reserved, running, replace(running, phase="Failed" if fails else "Succeeded", finished_at=end)]


def record(states: list[PodState], seen_at: dt.datetime | None = None) -> None:
    with transaction.atomic():
        metering_record.record(states, seen_at=seen_at)


def standing() -> list[entries.Entry]:
    lines = LedgerEntry.objects.filter(kind="usage", reversals=None).order_by("uid", "sku", "since")
    return [line.entry for line in lines]


def true_ledger(histories: list[list[PodState]], now: dt.datetime) -> list[entries.Entry]:
    """Returns the ledger that the pure functions compute when every event arrives once and in order."""
    prices, owners = price_book(), [row.owner for row in Ownership.objects.all()]
    segments = filter(None, map(segment_of, histories))
    lines = [e for s in segments for e in entries.entries_of(s, prices, owners, entries.final_until(s, now))]
    return sorted(lines, key=lambda line: (line.uid, line.sku, line.since))


@pytest.fixture
def prices(db):
    for sku, since, per_hour in (("gpu", -DAY, "1.2"), ("gpu", 2000, "2.4"), ("cpu", -DAY, "0.03")):
        Price.objects.create(sku=sku, valid_from=at(since), per_hour=Decimal(per_hour))


spans = st.floats(min_value=0, max_value=3 * HOUR)
pods = st.tuples(
    st.floats(min_value=-DAY, max_value=40 * DAY), spans, st.none() | spans, st.booleans(),
    # Seconds by which the node's clock differs from ours.
    st.integers(-840, 840),
)  # fmt: skip
# Batches of news as (pod, sighting) pairs: some are lost, repeated or out of order.
news = st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=8), max_size=6)


@pytest.mark.timeout(600)
@settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(
    st.lists(pods, min_size=1, max_size=5),
    news,
    st.lists(st.integers(-DAY, 60 * DAY), max_size=6),
    st.booleans(),
)
def test_lost_repeated_and_shuffled_news_give_the_ledger_of_what_happened(
    ops, prices, drawn, batches, times, backwards
):
    histories = [
        history(ops.pk, f"p-{n}", begin + skew, run, length, fails=fails)
        for n, (begin, run, length, fails, skew) in enumerate(drawn)
    ]
    with transaction.atomic():
        for n, batch in enumerate(batches):
            told = [histories[pod % len(histories)] for pod, _ in batch]
            record([states[which % len(states)] for states, (_, which) in zip(told, batch, strict=True)], NOW)
            if n < len(times):
                # Post what is known so far; later news corrects it.
                posting.post(at(times[n]))
        # After the watch was lost, a new listing has the current state of every pod.
        listing = [states[-1] for states in histories]
        record(listing[::-1] if backwards else listing, NOW)
        posting.post(NOW)
        assert standing() == true_ledger(histories, NOW)
        seconds = sum(s.segment.seconds(entries.final_until(s.segment, NOW)) for s in UsageSegment.objects.all())
        assert sum(line.quantity for line in LedgerEntry.objects.filter(sku="gpu")) == seconds
        assert sum(cell.gpu_seconds for cell in DailyUsage.objects.all()) == seconds
        transaction.set_rollback(True)


def test_a_pod_that_is_seen_only_after_its_end_is_billed_all_the_same(ops, prices):
    states = history(ops.pk, "p-1", 0, 5, HOUR)
    record(states[-1:], NOW)
    posting.post(NOW)
    assert standing() == true_ledger([states], NOW)


def test_a_lost_node_ends_by_estimate_until_somebody_knows_better(ops, prices):
    """The controller gives up on a node. If the node returns with the true end, the bill is corrected."""
    states = history(ops.pk, "p-1", 0, 5, 2 * HOUR)
    given_up = replace(states[2], phase="Failed", finished_at=at(5 * HOUR), estimated=True)
    record([*states[:3], given_up], at(5 * HOUR))
    posting.post(NOW)
    assert UsageSegment.objects.get().flags == [END_ESTIMATED]
    assert sum(line.quantity for line in standing() if line.sku == "gpu") == 5 * HOUR - 5
    record(states[3:], NOW)
    posting.post(NOW)
    assert standing() == true_ledger([states], NOW)
    assert UsageSegment.objects.get().flags == []


def test_a_clock_beyond_all_reason_counts_as_the_time_of_the_sighting(ops, prices):
    (running,) = history(ops.pk, "p-1", 400 * DAY, 0, None)[2:]
    record([running], at(100))
    assert UsageSegment.objects.get().started == at(100)
    within = replace(running, uid="p-2", started_at=at(100) + MAX_SKEW)
    record([within], at(100))
    assert UsageSegment.objects.get(uid="p-2").started == at(100) + MAX_SKEW


def test_a_new_year_in_which_everything_changes(ops):
    """At midnight the price quadruples, a discount of 50 % begins, the appcode moves, and one pod's GPU passes to the next within
    that second. Each second counts on one side only, from sightings to invoices."""
    new_year = at(HOUR / 2)
    for since, per_hour in ((at(-DAY), "1.2"), (new_year, "4.8")):
        Price.objects.create(sku="gpu", valid_from=since, per_hour=Decimal(per_hour))
    Discount.objects.create(sku="*", percent=50, valid_from=new_year)
    Ownership.objects.create(appcode=ops, valid_from=new_year, business_line="qunarcorp.flight")
    across = history(ops.pk, "across", 0, 0, HOUR, gpus=2, cpu_milli=0)
    # Both times lie within the first second of the year, which the second pod pays.
    before = history(ops.pk, "before", 0, 0, HOUR / 2 + 0.2, cpu_milli=0)
    after = history(ops.pk, "after", HOUR / 2, 0.7, HOUR / 2 - 0.7, cpu_milli=0)
    record([*across, *before, *after], NOW)
    closing.close_due(NOW)
    lines = InvoiceLine.objects.filter(sku="gpu").order_by("month", "business_line")
    assert [(row.month, row.invoice.month, row.business_line, row.quantity, row.amount) for row in lines] == [
        (dt.date(2025, 12, 1), dt.date(2025, 12, 1), "qunarcorp.ops", 3 * HOUR // 2, Decimal("1.80")),
        (dt.date(2026, 1, 1), dt.date(2026, 1, 1), "qunarcorp.flight", 3 * HOUR // 2, Decimal("3.60")),
    ]
    assert standing() == true_ledger([across, before, after], NOW)
    call_command("verify_invoices")
    call_command("replay", "--verify")


# Concurrency


@pytest.mark.django_db(transaction=True)
def test_recorders_posters_and_changes_of_terms_at_once(ops, flight, prices):
    """Two controllers report everything in different orders, two workers post, and prices and owners change throughout."""
    codes = [ops, flight]
    histories = [history(codes[n % 2].pk, f"p-{n:03}", n * 10, 1, 60 + n) for n in range(60)]
    everything = [state for states in histories for state in states]
    shuffled = [everything[n * 37 % len(everything)] for n in range(len(everything))]
    done = threading.Event()

    def controller(states: list[PodState]) -> None:
        for n in range(0, len(states), 9):
            record(states[n : n + 9])

    def worker() -> None:
        while not done.is_set():
            posting.post()

    def administrator() -> None:
        """Inserts terms in the past, as a very long transaction would."""
        for n in range(6):
            Price.objects.create(sku="gpu", valid_from=at(100 + n), per_hour=Decimal(n), appcode=codes[n % 2])
            Ownership.objects.create(appcode=ops, valid_from=at(50 + n), business_line=f"line-{n}")

    finite = [lambda: controller(everything), lambda: controller(shuffled), administrator]
    failures = at_once(finite, [worker, worker], done)
    assert not failures
    posting.post()
    assert standing() == true_ledger(histories, timezone.now())
    assert not Due.objects.exists()
    call_command("replay", "--verify")


def at_once(
    finite: list[Callable[[], None]], endless: list[Callable[[], None]], done: threading.Event
) -> list[BaseException]:
    """Runs all calls concurrently, each on its own connection. The endless ones stop after the others have finished."""
    start = threading.Barrier(len(finite) + len(endless), timeout=60)
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            start.wait()
            work()
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(work,)) for work in [*finite, *endless]]
    for thread in threads:
        thread.start()
    for thread in threads[: len(finite)]:
        thread.join(100)
    done.set()
    for thread in threads[len(finite) :]:
        thread.join(100)
    return failures


# Kills between any two statements


@pytest.mark.timeout(600)
@pytest.mark.django_db(transaction=True)
def test_killed_between_any_two_statements_nothing_is_lost_or_counted_twice(ops, flight, prices):
    """Kills a process with a controller and a poster after each of their statements in turn. The next process starts with the
    same news, as a watch without a saved position does."""
    histories = [history(code.pk, f"{code.code}-{n}", n, 1, 70) for code in (ops, flight) for n in range(3)]
    early = [state for states in histories for state in states[:3]]
    wrong = [replace(states[2], phase="Failed", finished_at=at(30 * DAY), estimated=True) for states in histories]
    late = [states[3] for states in histories]

    def work() -> None:
        for batch in (early, wrong, late):
            record(batch)
            posting.post()

    connection.close()
    seen = set()
    for allowed in count():
        status = mortal.child(allowed, work)
        seen.add((Observation.objects.count(), LedgerEntry.objects.count()))
        call_command("replay", "--verify")
        connection.close()
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    # It was killed in each of its six parts, and got further every time.
    assert allowed > 20
    assert len(seen) >= 6
    assert standing() == true_ledger(histories, timezone.now())
