"""Added buckets equal the buckets of all answers together; averages are areas under a curve."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from clusters.router.histograms import BOUNDS_MS, BUCKETS, PANIC, STABLE, InFlight, add, bucket, quantile, total

times = st.lists(st.floats(0, 500_000), max_size=60)


def counted(took: list[float]) -> list[int]:
    counts = [0] * BUCKETS
    for each in took:
        counts[bucket(each)] += 1
    return counts


def test_bounds_grow_by_one_factor_and_are_those_of_the_rows() -> None:
    """Rows do not store the bounds: changing them would change what was counted before."""
    assert (BOUNDS_MS[0], BOUNDS_MS[10], BOUNDS_MS[-1], BUCKETS) == (1.0, 20.06, 120_000.0, 41)
    factors = [high / low for low, high in itertools.pairwise(BOUNDS_MS)]
    assert 1.34 < min(factors) <= max(factors) < 1.36


@given(times, times)
def test_what_two_routers_counted_is_what_one_would_have(here: list[float], there: list[float]) -> None:
    assert add(counted(here), counted(there)) == counted(here + there) == total([counted(here), counted(there)])
    assert add([], counted(here)) == counted(here)


@given(times.filter(bool), st.floats(0, 1))
def test_a_quantile_is_within_the_bucket_of_the_answer_that_it_speaks_of(took: list[float], q: float) -> None:
    found = quantile(counted(took), q)
    assert found is not None
    ranked = sorted(took)
    exact = ranked[min(len(ranked) - 1, max(0, -int(-q * len(ranked) // 1) - 1))]
    at = bucket(exact)
    low = BOUNDS_MS[at - 1] if at else 0.0
    high = BOUNDS_MS[at] if at < len(BOUNDS_MS) else low
    assert low - 1e-6 <= found <= high + 1e-6


@given(times.filter(bool))
def test_a_larger_share_takes_no_less(took: list[float]) -> None:
    found = [quantile(counted(took), q / 20) for q in range(21)]
    assert found == sorted(found, key=float)  # type: ignore[arg-type]


def test_nothing_was_no_answer_of_no_time() -> None:
    assert quantile([], 0.5) is None
    assert quantile([0] * BUCKETS, 0.99) is None


changes = st.lists(st.tuples(st.floats(0, 30), st.integers(-3, 5)), max_size=40)


@given(st.floats(0, 1e6), changes, st.floats(0, 100), st.sampled_from([PANIC, STABLE, 1, 17]))
def test_an_average_is_the_area_under_the_curve(
    began: float, steps: list[tuple[float, int]], rest: float, window: int
) -> None:
    flight, now, curve, level = InFlight(began), began, [], 0
    for after, by in steps:
        curve.append((now, now + after, level))
        now += after
        level += by
        flight.change(by, now)
    curve.append((now, now + rest, level))
    now += rest
    since = max(began, now - window)
    area = sum(value * max(0.0, end - max(start, since)) for start, end, value in curve)
    found = flight.average(window, now)
    assert flight.now == level
    if now - since < 1e-6:
        return
    # The average takes the curve as level in the second in which the window begins, so changes there are its error.
    loose = (
        1.0 * max((abs(value) for _, _, value in curve), default=0) * 2 / (now - since)
        if now - since >= window
        else 1e-6
    )
    assert abs(found - area / (now - since)) <= loose + 1e-6


def test_a_rush_shows_at_once_in_the_short_window_and_hardly_in_the_long_one() -> None:
    flight = InFlight(0)
    flight.change(20, 100)
    assert flight.average(PANIC, 106) == 20
    assert flight.average(STABLE, 106) == 2
    assert flight.average(STABLE, 160) == 20
    flight.change(-20, 160)
    assert flight.average(PANIC, 166) == 0
    assert flight.average(STABLE, 100_000) == 0


def test_a_router_that_has_just_begun_speaks_of_what_it_saw() -> None:
    flight = InFlight(7.5)
    flight.change(4, 7.5)
    assert flight.average(STABLE, 9.5) == 4
    assert flight.average(STABLE, 7.5) == 4


def test_a_clock_that_stands_still_or_goes_back_changes_no_average() -> None:
    flight = InFlight(10)
    flight.change(3, 20)
    flight.change(1, 5)
    assert (flight.now, flight.average(PANIC, 5)) == (4, 0)
