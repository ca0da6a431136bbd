import random
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.sums.decay import LIFE
from clusters.admission.shares import LEAST, USE_FACTOR, Want, deserved

LINES = ("ads", "flight", "hotel", "ops")


@st.composite
def cases(draw):
    capacity = draw(st.integers(0, 200))
    want = st.builds(
        Want,
        line=st.sampled_from(LINES),
        quota=st.integers(0, 60),
        limit=st.integers(0, 200),
        weight=st.sampled_from((0, 1, 1, 2, 10, 1000)),
        used=st.integers(0, 200 * LIFE),
        asked=st.integers(0, 120),
    )
    codes = st.text("abc", min_size=1, max_size=3)
    return draw(st.dictionaries(codes, want, max_size=10)), capacity


def want(line="ops", quota=0, limit=1000, weight=1, used=0, asked=1000):
    return Want(line, quota, limit, weight, used, asked)


@given(cases())
def test_nobody_gets_more_than_it_may_hold_and_asks_for_and_nothing_is_left_that_somebody_wants(case):
    wants, capacity = case
    found = deserved(wants, capacity)
    most = {code: min(want.asked, want.limit) for code, want in wants.items()}
    assert all(0 <= found[code] <= most[code] for code in wants)
    assert sum(found.values()) == min(capacity, sum(most.values()))


@given(cases())
def test_the_quota_comes_first_unless_it_is_oversold(case):
    wants, capacity = case
    promised = {code: min(want.quota, want.asked, want.limit) for code, want in wants.items()}
    found = deserved(wants, capacity)
    if sum(promised.values()) <= capacity:
        assert all(found[code] >= promised[code] for code in wants)
    else:
        for code in wants:
            exact = Fraction(capacity * promised[code], sum(promised.values()))
            assert abs(found[code] - exact) < 1


@given(cases(), st.randoms())
def test_the_order_of_the_appcodes_is_irrelevant(case, rng):
    wants, capacity = case
    shuffled = list(wants.items())
    rng.shuffle(shuffled)
    assert deserved(dict(shuffled), capacity) == deserved(wants, capacity)


def reference(sides, amount, capacity):
    """KAI's rounds in exact fractions. `sides`: name -> (guaranteed, most, weight, used)."""
    promised = sum(side[0] for side in sides.values())
    if promised > amount:
        return {name: Fraction(amount) * side[0] / promised for name, side in sides.items()}
    got = {name: Fraction(side[0]) for name, side in sides.items()}
    rest = Fraction(amount) - promised
    while rest > 0 and (hungry := [name for name in sides if got[name] < sides[name][1]]):
        weights = sum(sides[name][2] for name in hungry)
        points = {}
        for name in hungry:
            part = Fraction(sides[name][2], weights) if weights else Fraction(0)
            use = Fraction(sides[name][3], capacity * LIFE)
            points[name] = max(Fraction(1, LEAST), part + USE_FACTOR * (part - use))
        shared = rest
        for name in hungry:
            more = min(shared * points[name] / sum(points.values()), sides[name][1] - got[name])
            got[name] += more
            rest -= more
    return got


def test_a_thousand_random_trees_agree_with_the_formula_in_fractions_to_less_than_a_gpu():
    rng = random.Random(31)
    worst = Fraction(0)
    for _ in range(1000):
        capacity = rng.choice((1, 7, 8, 104, 1000))
        wants = {
            f"{line}-{n}": Want(
                line,
                rng.choice((0, 0, 1, 8, 20)),
                rng.choice((4, 16, 500)),
                rng.choice((0, 1, 1, 3, 1000)),
                rng.choice((0, rng.randrange(capacity * LIFE // 3 + 1))),
                rng.choice((0, rng.randrange(1, 12), rng.randrange(1, 400))),
            )
            for line in rng.sample(LINES, rng.randrange(1, 5))
            for n in range(rng.randrange(1, 6))
        }
        lines = defaultdict(dict)
        for code, each in wants.items():
            most = min(each.asked, each.limit)
            lines[each.line][code] = (min(each.quota, most), most, each.weight, each.used)
        sums = {line: tuple(map(sum, zip(*members.values(), strict=True))) for line, members in lines.items()}
        found = deserved(wants, capacity)
        for line, amount in reference(sums, capacity, capacity).items():
            assert abs(sum(found[code] for code in lines[line]) - amount) < 1 + Fraction(1, 1000)
            for code, exact in reference(lines[line], amount, capacity).items():
                worst = max(worst, abs(found[code] - exact))
    assert worst < 1 + Fraction(1, 1000)


@pytest.mark.parametrize(
    ("wants", "capacity", "expected"),
    [
        ({"a": want(weight=3), "b": want("ads", weight=1)}, 8, {"a": 6, "b": 2}),
        # A line weighs as much as all of its appcodes, so what one does not ask for goes to its neighbours first.
        ({"a": want(), "a2": want(asked=0), "b": want("ads")}, 9, {"a": 6, "a2": 0, "b": 3}),
        # Without weight: only what nobody else wants.
        ({"a": want(weight=0), "b": want(weight=1)}, 8, {"a": 0, "b": 8}),
        ({"a": want(weight=0), "b": want(weight=1, asked=5)}, 8, {"a": 3, "b": 5}),
        ({"a": want(weight=0), "b": want(weight=0)}, 8, {"a": 4, "b": 4}),
        # Whoever had half of the pool for long gets a third of it now; whoever had all of it, what nobody else wants.
        ({"a": want(used=6 * LIFE), "b": want()}, 12, {"a": 4, "b": 8}),
        ({"a": want(used=8 * LIFE), "b": want(asked=5)}, 8, {"a": 3, "b": 5}),
        # The quota is not touched by past use.
        ({"a": want(quota=6, used=8 * LIFE), "b": want()}, 8, {"a": 6, "b": 2}),
        # 120 of 104 are promised: in proportion.
        ({"a": want(quota=60), "b": want("ads", quota=60)}, 104, {"a": 52, "b": 52}),
        ({"a": want(asked=0), "b": want(limit=0)}, 8, {"a": 0, "b": 0}),
        ({"a": want()}, 0, {"a": 0}),
        ({}, 8, {}),
    ],
)  # fmt: skip
def test_examples(wants, capacity, expected):
    assert deserved(wants, capacity) == expected
