"""A segment depends only on the set of sightings, not on their order or repetition."""

import datetime as dt
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.segments import PodState, Resources, floor, segment_of

T0 = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
STATE = PodState(
    uid="p-1",
    cloud="local",
    appcode_id=1,
    consumer="run 1",
    labels={"role": "worker"},
    phase="Pending",
    gpus=2,
    cpu_milli=4000,
    memory_mb=8192,
)


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def history(*, scheduled: float = 0, started: float = 5, finished: float = 65) -> list[PodState]:
    """Returns what a well-behaved cloud reports of one pod."""
    reserved = replace(STATE, scheduled_at=at(scheduled))
    running = replace(reserved, phase="Running", started_at=at(started))
    return [STATE, reserved, running, replace(running, phase="Succeeded", finished_at=at(finished))]


def test_a_pod_is_billed_from_the_start_of_its_first_container_to_the_end_of_its_last():
    segment = segment_of(history())
    assert (segment.started, segment.ended, segment.flags) == (at(5), at(65), ())
    assert segment.seconds(at(1000)) == 60
    assert segment.resources == Resources(gpus=2, cpu_milli=4000, memory_mb=8192)


def test_a_pod_that_waits_for_gpus_or_its_image_costs_nothing():
    assert segment_of([STATE]) is None
    assert segment_of(history()[:2]) is None
    assert segment_of([*history()[:2], replace(history()[1], phase="Failed", finished_at=at(9))]) is None
    assert segment_of([STATE, replace(STATE, phase="Failed", finished_at=at(9))]) is None


def test_nobody_need_have_told_the_reservation():
    running = replace(STATE, phase="Running", started_at=at(5))
    assert segment_of([running]).started == at(5)


def test_a_running_pod_grows_and_has_no_end():
    segment = segment_of(history()[:3])
    assert segment.ended is None
    assert [segment.seconds(at(n)) for n in (-5, 5, 12.9, 65)] == [0, 0, 7, 60]


def test_an_end_told_by_a_living_pod_is_no_end():
    """A restarted container has a finish time, but its pod still holds the GPU."""
    restarted = replace(history()[2], finished_at=at(30))
    assert segment_of([restarted]).ended is None


def test_the_seen_end_wins_over_the_estimated_one():
    *_, running, end = history(finished=65)
    lost = replace(running, phase="Failed", finished_at=at(300), estimated=True)
    assert segment_of([running, lost]).flags == ("end-estimated",)
    assert segment_of([running, lost]).ended == at(300)
    known = segment_of([running, lost, end])
    assert (known.ended, known.flags) == (at(65), ())


def test_an_end_before_the_start_is_clamped_and_flagged():
    segment = segment_of(history(scheduled=10, started=12, finished=3))
    assert (segment.seconds(at(99)), segment.flags) == (0, ("end-clamped",))


def test_a_start_before_the_reservation_is_a_clock_that_is_late_or_impossible():
    segment = segment_of(history(scheduled=10, started=4))
    assert (segment.started, segment.flags) == (at(4), ())
    segment = segment_of(history(scheduled=10, started=-(10**9)))
    assert (segment.started, segment.ended, segment.flags) == (at(10), at(65), ("start-clamped",))


def test_a_terminal_pod_without_an_end_is_not_billed_for_ever():
    segment = segment_of([replace(history()[2], phase="Failed")])
    assert (segment.ended, segment.flags) == (at(5), ("end-missing",))


def test_a_time_in_the_far_future_counts_as_the_time_of_the_sighting():
    far = 10**9
    seen = [
        replace(state, seen_at=at(seen))
        for state, seen in zip(history(scheduled=far, started=far, finished=far), (0, 10, 20, 80), strict=True)
    ]
    segment = segment_of(seen)
    assert (segment.started, segment.ended) == (at(20), at(80))
    assert segment.flags == ("start-clamped", "end-clamped")


def test_a_clock_that_is_minutes_ahead_costs_nobody_a_second():
    seen = [
        replace(state, seen_at=at(now))
        for state, now in zip(history(scheduled=300, started=305, finished=365), (0, 1, 6, 66), strict=True)
    ]
    segment = segment_of(seen)
    assert (segment.seconds(at(1000)), segment.flags) == (60, ())


def test_changed_amounts_are_flagged_and_the_last_ones_count():
    pending, reserved, running, end = history()
    segment = segment_of([pending, reserved, running, replace(end, gpus=4)])
    assert (segment.resources.gpus, segment.flags) == (4, ("amounts-changed",))


def test_several_pods_and_times_without_zone_are_refused():
    with pytest.raises(ValueError, match="one pod"):
        segment_of([STATE, replace(STATE, uid="p-2")])
    with pytest.raises(ValueError, match="zone"):
        segment_of([replace(STATE, scheduled_at=T0.replace(tzinfo=None))])


offsets = st.none() | st.floats(min_value=-5000, max_value=5000, allow_nan=False)
states = st.builds(
    lambda phase, scheduled, started, finished, estimated, gpus, seen: replace(
        STATE,
        phase=phase,
        estimated=estimated,
        gpus=gpus,
        scheduled_at=None if scheduled is None else at(scheduled),
        started_at=None if started is None else at(started),
        finished_at=None if finished is None else at(finished),
        seen_at=at(seen),
    ),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    offsets,
    offsets,
    offsets,
    st.booleans(),
    st.integers(min_value=0, max_value=8),
    st.floats(min_value=-5000, max_value=5000, allow_nan=False),
)


@given(st.lists(states, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(seen: list[PodState], chance: random.Random):
    mixed = seen + chance.choices(seen, k=chance.randrange(4))
    chance.shuffle(mixed)
    assert segment_of(mixed) == segment_of(seen)


@given(st.lists(states, min_size=1, max_size=8))
def test_whatever_was_told_time_goes_forward_in_whole_seconds(seen: list[PodState]):
    segment = segment_of(seen)
    if segment is None:
        assert not any(state.started_at for state in seen)
        return
    assert segment.started == floor(segment.started)
    if segment.ended is not None:
        assert segment.ended >= segment.started
        assert segment.ended == floor(segment.ended)


@given(
    st.lists(states, min_size=1, max_size=6),
    st.lists(st.floats(min_value=-6000, max_value=6000), min_size=2, max_size=8),
    st.integers(0, 9000),
)
def test_the_parts_between_any_boundaries_add_up_to_the_whole(seen: list[PodState], cuts: list[float], now: int):
    segment = segment_of(seen)
    if segment is None:
        return
    edges = [at(-(10**6)), *sorted(map(at, cuts)), at(10**6)]
    parts = [segment.within(since, until) for since, until in pairwise(edges)]
    assert sum(part.seconds(at(now)) for part in parts if part) == segment.seconds(at(now))


@given(
    st.floats(min_value=0, max_value=100), st.floats(min_value=0, max_value=100), st.floats(min_value=0, max_value=100)
)
def test_a_gpu_handed_over_within_a_second_is_counted_once(first: float, second: float, third: float):
    a, b, c = sorted((first, second, third))
    before = segment_of(history(scheduled=a, started=a, finished=b))
    after = segment_of(history(scheduled=b, started=b, finished=c))
    assert before.seconds(at(999)) + after.seconds(at(999)) == (floor(at(c)) - floor(at(a))).total_seconds()


@given(states)
def test_a_digest_tells_states_apart_but_not_sightings(state: PodState):
    assert replace(state, seen_at=None).digest == state.digest
    assert replace(state, gpus=state.gpus + 1).digest != state.digest
    zone = dt.timezone(dt.timedelta(hours=8))
    if state.started_at:
        assert replace(state, started_at=state.started_at.astimezone(zone)).digest == state.digest
