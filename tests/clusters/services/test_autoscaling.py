"""The number of replicas for requests in flight: up at once, down after a minute, to zero and back."""

from __future__ import annotations

import datetime as dt

from hypothesis import example, given
from hypothesis import strategies as st

from clusters.services.controller.autoscaling import Demand, Range, Scale, scaled

NOON = dt.datetime(2026, 5, 3, 12, 0, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
RANGE = Range(1, 10, 4)
TO_ZERO = Range(0, 10, 4, dt.timedelta(seconds=30))


def after(range_: Range, kept: Scale, demand: Demand, seconds: int, now: dt.datetime = NOON) -> Scale:
    """Polled every second, as by the loop."""
    for second in range(seconds + 1):
        kept = scaled(range_, kept, demand, now + second * SECOND)
    return kept


def at(count: int) -> Scale:
    return Scale(count, NOON)


def test_more_requests_than_are_meant_for_each_make_more_at_once() -> None:
    found = scaled(RANGE, at(2), Demand(stable=8.1, panic=9.0), NOON)
    assert found.replicas == 3
    assert found.why == "8.1 requests in flight over a minute, 4 are meant for each."
    assert scaled(RANGE, at(2), Demand(stable=8.0, panic=8.0), NOON).replicas == 2
    assert scaled(RANGE, at(2), Demand(stable=900.0, panic=900.0), NOON).replicas == 10


def test_twice_what_there_is_within_six_seconds_is_a_panic_and_nothing_shrinks_for_a_minute() -> None:
    found = scaled(RANGE, at(2), Demand(stable=2.0, panic=16.0), NOON)
    assert found.replicas == 4
    assert "over six seconds" in found.why
    calm = Demand(stable=1.0, panic=1.0)
    assert after(RANGE, found, calm, 59).replicas == 4
    # The minute below the target starts when the panic ends.
    assert after(RANGE, found, calm, 119).replicas == 4
    assert after(RANGE, found, calm, 121).replicas == 1


def test_fewer_come_only_after_a_minute_below() -> None:
    calm = Demand(stable=3.0, panic=3.0)
    assert after(RANGE, at(3), calm, 59).replicas == 3
    assert after(RANGE, at(3), calm, 60).replicas == 1
    kept = after(RANGE, at(3), calm, 40)
    kept = scaled(RANGE, kept, Demand(stable=12.0, panic=12.0), NOON + 41 * SECOND)
    assert after(RANGE, kept, calm, 30, NOON + 42 * SECOND).replicas == 3


def test_to_none_after_it_was_idle_and_back_when_somebody_asks() -> None:
    quiet = Demand()
    assert after(TO_ZERO, at(1), quiet, 29).replicas == 1
    found = after(TO_ZERO, at(1), quiet, 30)
    assert (found.replicas, found.why) == (0, "Nobody has asked for 30 s.")
    assert scaled(TO_ZERO, found, quiet, NOON).replicas == 0
    # Answered requests are still in the averages, but only waiting ones start a replica.
    assert scaled(TO_ZERO, found, Demand(stable=4.0, panic=4.0), NOON) == found
    assert scaled(TO_ZERO, found, Demand(waiting=1), NOON).replicas == 1
    assert scaled(TO_ZERO, found, Demand(waiting=9), NOON).replicas == 3
    assert scaled(TO_ZERO, found, Demand(is_known=False, woken=True), NOON).replicas == 1
    # A replica that was just started for a request becomes idle only after its time.
    woken = scaled(TO_ZERO, found, Demand(is_known=False, woken=True), NOON)
    assert after(TO_ZERO, woken, quiet, 29).replicas == 1


def test_while_no_router_is_known_nothing_changes_but_what_its_definition_says() -> None:
    silent = Demand(is_known=False)
    assert after(RANGE, at(3), silent, 600) == at(3)
    assert scaled(Range(4, 4, 1), at(3), silent, NOON).replicas == 4
    assert scaled(Range(1, 2, 1), at(3), silent, NOON).replicas == 2


def test_it_is_kept_as_json() -> None:
    kept = scaled(RANGE, at(2), Demand(stable=2.0, panic=16.0), NOON)
    assert Scale.read(kept.kept, 1, NOON) == kept
    assert Scale.read({}, 0, NOON).replicas == 1
    assert Scale.read({}, 3, NOON).replicas == 3


floats = st.floats(0, 500)


@given(st.lists(st.tuples(floats, floats, st.booleans(), st.integers(-7200, 7200)), max_size=30), st.integers(0, 3))
@example(asked=[(17.0, 13.0, True, 0)], least=2)
def test_it_stays_in_its_range_and_comes_to_rest_whatever_the_clock_does(
    asked: list[tuple[float, float, bool, int]], least: int
) -> None:
    range_, kept, now = Range(least, 6, 4), at(1), NOON
    for stable, panic, is_known, jump in asked:
        now += jump * SECOND
        demand = Demand(stable, panic, is_known=is_known)
        kept = scaled(range_, scaled(range_, kept, demand, now), demand, now)
        assert least <= kept.replicas <= 6
        assert scaled(range_, kept, demand, now).replicas == kept.replicas
    rest = after(range_, kept, Demand(stable=8.0, panic=8.0), 125, now)
    assert rest.replicas == max(2, least)
    rest = after(range_, rest, Demand(), 400, now + 126 * SECOND)
    assert rest.replicas == least
