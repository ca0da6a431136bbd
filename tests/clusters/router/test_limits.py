"""No token exceeds its limits, in any second and at any moment, and a caller within them is never refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusters.router.limits import Account

waits = st.lists(st.floats(0, 3), max_size=80)


@given(waits, st.integers(1, 20), st.integers(1, 3))
def test_over_any_time_no_more_than_its_rate_and_one_second_more_come_in(
    after: list[float], rate: int, routers: int
) -> None:
    account, now, let_in = Account(100.0), 100.0, []
    for each in after:
        now += each
        over = account.enter(rate, None, now, routers)
        if over is None:
            let_in.append(now)
            account.leave()
        else:
            assert over.after > 0
            # A caller that waits as long as it was told is let in then.
            assert Account.enter(_copy(account), rate, None, now + over.after + 1e-6, routers) is None
    own = rate / routers
    for first, start in enumerate(let_in):
        for last in range(first, len(let_in)):
            assert last - first + 1 <= (let_in[last] - start) * own + max(1.0, own) + 1e-6


def _copy(account: Account) -> Account:
    made = Account(0.0)
    made.__dict__.update(account.__dict__)
    return made


@given(st.integers(1, 50), st.integers(1, 100))
def test_one_that_keeps_to_its_rate_is_never_refused(rate: int, count: int) -> None:
    account = Account(0.0)
    assert all(account.enter(rate, None, n / rate) is None for n in range(count))


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(1, 3))
def test_at_one_time_no_more_than_its_part_are_in(steps: list[bool], most: int, routers: int) -> None:
    account, held = Account(0.0), 0
    for enters in steps:
        if enters:
            refused = account.enter(None, most, 0.0, routers)
            assert (refused is None) == (held < -(-most // routers))
            held += refused is None
        elif held:
            account.leave()
            held -= 1
    assert account.at_once == held


def test_a_second_is_enough_for_all_that_it_may_have_and_a_clock_that_goes_back_gives_nothing() -> None:
    account = Account(50.0)
    assert [account.enter(2, None, 50.0) is None for _ in range(3)] == [True, True, False]
    assert account.enter(2, None, 10.0) is not None
    assert account.enter(2, None, 50.5) is None


def test_a_refused_one_is_told_its_limit() -> None:
    account = Account(0.0)
    account.enter(1, 1, 0.0)
    assert getattr(account.enter(1, 1, 0.0), "sentence", "") == "This token may have 1 request in flight at one time."
    account.leave()
    over = account.enter(1, 1, 0.25)
    assert over is not None
    assert (over.sentence, over.after) == ("This token may send 1 request a second.", 0.75)
