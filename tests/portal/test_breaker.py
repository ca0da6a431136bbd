"""The circuit breaker alone. Its users are tested by the two files test_silent_cloud.py and by test_broker.py."""

from __future__ import annotations

import threading

import pytest

from portal.network.breaker import Breaker, Busy, NotCalled


def answered(error: BaseException, seconds: float) -> bool | None:
    assert seconds >= 0
    return {"away": False, "no": True}.get(str(error))


def fail(breaker: Breaker, how: str) -> None:
    with pytest.raises(ValueError, match=how), breaker.call():
        raise ValueError(how)


def is_open(breaker: Breaker) -> bool:
    try:
        with breaker.call():
            return False
    except NotCalled:
        return True


def test_after_a_failure_nobody_calls_for_a_while_and_then_one_at_a_time() -> None:
    breaker = Breaker(answered, rest=600.0)
    fail(breaker, "away")
    with pytest.raises(NotCalled) as refused, breaker.call():
        """Nobody comes here."""
    assert str(refused.value.__cause__) == "away"
    breaker.rest = 0.0
    with breaker.call():
        assert is_open(breaker)
    assert not is_open(breaker)
    with breaker.call(), breaker.call():
        """It has answered."""


def test_a_try_that_fails_opens_again_and_a_refusal_is_an_answer() -> None:
    breaker = Breaker(answered)
    fail(breaker, "away")
    breaker.rest = 600.0
    assert is_open(breaker)
    breaker.rest = 0.0
    fail(breaker, "away")
    breaker.rest = 600.0
    assert is_open(breaker)
    breaker.rest = 0.0
    fail(breaker, "who knows")
    with breaker.call():
        assert is_open(breaker), "that said nothing"
    fail(breaker, "away")
    fail(breaker, "no")
    with breaker.call(), breaker.call():
        """It has answered."""


def test_half_open_breakers_share_their_tries() -> None:
    tries = threading.Semaphore(1)
    first, second = Breaker(answered, tries=tries), Breaker(answered, tries=tries)
    with first.call(doubtful=True):
        assert not is_open(second)
        with pytest.raises(NotCalled), second.call(doubtful=True):
            """Nobody comes here."""
    with second.call(doubtful=True):
        """Its turn."""


def test_who_finds_all_calls_taken_waits_for_one_to_end() -> None:
    breaker = Breaker(answered, most=1, slow=600.0)
    inside, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def hold() -> None:
        with breaker.call():
            inside.set()
            go_on.wait(60)
            order.append("first")

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(60)
    breaker.slow = 0.0
    with pytest.raises(Busy), breaker.call():
        """It is slow by now."""
    breaker.slow = 600.0
    go_on.set()
    with breaker.call():
        order.append("second")
    holder.join(60)
    assert order == ["first", "second"]
