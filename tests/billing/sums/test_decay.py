import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.sums.decay import HALF_LIFE, LIFE, Stretch, decayed

DAY = 86400
stretches = st.lists(
    st.builds(lambda start, long, gpus: Stretch(start, start + long, gpus),
              st.integers(0, 90 * DAY), st.integers(0, 30 * DAY), st.integers(0, 1000)),
    max_size=8,
)  # fmt: skip


@given(stretches, st.floats(0, 1), st.integers(0, 120 * DAY))
def test_splitting_a_stretch_changes_nothing(held, where, now):
    halves = []
    for each in held:
        middle = each.start + int((each.end - each.start) * where)
        halves += [Stretch(middle, each.end, each.gpus), Stretch(each.start, middle, each.gpus)]
    assert abs(decayed(0, 0, halves, now) - decayed(0, 0, held, now)) <= 1


@given(stretches, st.integers(0, 120 * DAY), st.integers(0, 60 * DAY))
def test_folding_forward_is_the_same_as_counting_from_the_start(held, now, later):
    """Also where stretches go on at `now`: what lies behind it is added then."""
    kept = decayed(0, 0, held, now)
    rest = [Stretch(max(each.start, now), each.end, each.gpus) for each in held if each.end > now]
    assert abs(decayed(kept, now, rest, now + later) - decayed(0, 0, held, now + later)) <= 1


@given(stretches)
def test_it_is_the_sum_of_all_seconds_each_with_its_own_age(held):
    now = 2 * DAY
    cut = [Stretch(each.start % DAY, each.start % DAY + each.end % 500, each.gpus) for each in held]
    slow = sum(
        each.gpus * 2 ** (-(now - second - 0.5) / HALF_LIFE) for each in cut for second in range(each.start, each.end)
    )
    assert decayed(0, 0, cut, now) == pytest.approx(slow, abs=1)


def test_half_is_left_after_a_week_and_one_gpu_for_ever_is_life():
    assert decayed(1000, 0, [], HALF_LIFE) == 500
    assert decayed(0, 0, [Stretch(0, 60 * HALF_LIFE, 1)], 60 * HALF_LIFE) == LIFE
    assert math.isclose(LIFE, HALF_LIFE / math.log(2), abs_tol=0.5)
