"""Expiry dates: what they mean at a time, and which notice is due, for all days and time zones."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.manifests.appcode import Quota, TermsSpec
from portal.terms import MARKS, Terms, days_left, due, followed, is_over, is_soon, mark, when

LAST = dt.date(2027, 3, 31)
clocks = st.integers(-3000, 3000).map(lambda hour: at(0) + dt.timedelta(hours=hour))
marks = st.sampled_from([None, 0, *MARKS])


def at(day: int, hour: int = 12, zone: int = 0) -> dt.datetime:
    """Returns a time `day` days after the last valid day."""
    zoned = dt.timezone(dt.timedelta(hours=zone))
    return dt.datetime.combine(LAST + dt.timedelta(days=day), dt.time(hour), zoned)


def test_the_last_day_counts_whole_and_in_utc() -> None:
    assert not is_over(LAST, at(0, 23))
    assert is_over(LAST, at(1, 0))
    # Clocks in Shanghai show the next day eight hours earlier than UTC.
    assert not is_over(LAST, at(1, 7, zone=8))
    assert is_over(LAST, at(1, 8, zone=8))
    assert not is_over(None, at(1000))


@pytest.mark.parametrize(
    ("day", "holds"), [(-15, None), (-14, 14), (-4, 14), (-3, 3), (-2, 3), (-1, 1), (0, 1), (1, 0), (500, 0)]
)
def test_each_notice_holds_from_its_day_on(day: int, holds: int | None) -> None:
    assert mark(LAST, at(day)) == holds
    assert is_soon(LAST, at(day)) is (holds is not None)


@given(clocks)
def test_it_is_over_exactly_when_the_last_notice_holds(now: dt.datetime) -> None:
    assert is_over(LAST, now) == (mark(LAST, now) == 0) == (days_left(LAST, now) < 0)
    assert when(LAST, now).startswith("has expired" if is_over(LAST, now) else "expires")


@given(st.lists(clocks, max_size=30), marks)
def test_whenever_the_loop_looks_each_notice_goes_out_once_and_in_order(
    looks: list[dt.datetime], told: int | None
) -> None:
    sent = []
    for now in sorted(looks):
        if (found := due(LAST, told, now)) is not None:
            assert found == mark(LAST, now)
            told = found
            sent.append(found)
        # A repeated check at the same time, or a moment later, sends nothing.
        assert due(LAST, told, now) is None
        # The notice for the current mark has been sent, now or before.
        assert mark(LAST, now) is None or (told is not None and told <= (mark(LAST, now) or 0))
    assert sent == sorted(set(sent), reverse=True)


@given(clocks)
def test_without_an_end_there_is_no_notice(now: dt.datetime) -> None:
    assert mark(None, now) is due(None, None, now) is None


def test_what_is_said_replaces_and_what_is_left_out_stays() -> None:
    has = Terms(8, 1024, Decimal("5.00"), LAST)
    assert TermsSpec().over(has) == has
    assert TermsSpec(quota=Quota(gpus=0), expires=None).over(has) == Terms(0, 1024, Decimal("5.00"), None)
    assert TermsSpec.model_validate({"quota": {"budget": "7"}}).over(has) == Terms(8, 1024, Decimal(7), LAST)


numbers, days = st.integers(0, 3), st.sampled_from([None, LAST, LAST + dt.timedelta(days=1)])
anything = st.builds(Terms, numbers, numbers, st.none(), days)


@given(anything, anything, anything)
def test_an_open_request_follows_what_it_was_not_to_change(asked: Terms, before: Terms, now: Terms) -> None:
    found = followed(asked, before, now)
    for name in ("gpus", "storage", "expires"):
        wanted, had = getattr(asked, name), getattr(before, name)
        assert getattr(found, name) == (getattr(now, name) if wanted == had else wanted)
    assert followed(asked, before, before) == asked
    assert followed(before, before, now) == now


def test_words() -> None:
    assert Terms(1, 2048, Decimal(1500), LAST).words("USD") == (
        "1 GPU, 2,048 GiB of volumes, 1,500.00 USD a month, until 2027-03-31"
    )
    assert Terms(16, 0).words("USD") == "16 GPUs, 0 GiB of volumes, no budget, without end"
