"""Money is exact: costs split at price changes and at the edges of a window, and add up again."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from billing.metering.segments import Resources, Segment
from billing.money import decimal, display
from billing.prices.rates import BEGINNING, DatedDiscount, DatedPrice, Prices, charge, cost, hourly

T0 = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
NEVER = T0 + dt.timedelta(days=4000)


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def prices(*rows: tuple[str, float, str]) -> Prices:
    return Prices(tuple(DatedPrice(sku, at(since), Decimal(per_hour)) for sku, since, per_hour in rows))


def held(since: float, until: float | None, **resources: object) -> Segment:
    return Segment("p", 1, "run 1", {}, Resources(**resources), at(since), None if until is None else at(until))


def test_one_gpu_for_one_hour_costs_its_price():
    assert cost(held(0, 3600, gpus=1), prices(("gpu", -1, "2.5")), NEVER) == Decimal("2.5")


def test_cores_and_gibibytes_are_priced_too():
    book = prices(("gpu", -1, "2"), ("cpu", -1, "0.05"), ("memory", -1, "0.01"))
    assert cost(held(0, 7200, gpus=2, cpu_milli=4500, memory_mb=1536), book, NEVER) == Decimal(8) + Decimal(
        "0.45"
    ) + Decimal("0.03")


def test_a_price_change_splits_to_the_second():
    book = prices(("gpu", -1, "3.6"), ("gpu", 100, "7.2"))
    assert cost(held(0, 150, gpus=1), book, NEVER) == Decimal("0.1") + Decimal("0.1")
    assert cost(held(0, 100, gpus=1), book, NEVER) == Decimal("0.1")
    assert cost(held(100, 101, gpus=1), book, NEVER) == Decimal("0.002")


def test_a_model_without_its_own_price_costs_what_any_gpu_costs():
    book = prices(("gpu", -1, "1"), ("gpu:A100", 3600, "4"))
    assert cost(held(0, 7200, gpus=1, gpu_model="A100"), book, NEVER) == 5
    assert cost(held(0, 7200, gpus=1, gpu_model="T4"), book, NEVER) == 2
    assert cost(held(0, 7200, gpus=1), book, NEVER) == 2


def test_a_later_general_price_does_not_reach_a_model_with_its_own():
    book = prices(("gpu", -1, "1"), ("gpu:A100", 10, "4"), ("gpu", 20, "9"))
    assert [book.at("gpu:A100", at(n)) for n in (0, 10, 30)] == [1, 4, 4]
    assert book.next_change(at(10)) == at(20)
    assert book.next_change(at(20)) is None


def test_what_has_no_price_costs_nothing():
    assert cost(held(0, 3600, gpus=1), prices(), NEVER) == 0
    assert cost(held(0, 3600, gpus=1), prices(("gpu", 1800, "1")), NEVER) == Decimal("0.5")


def test_an_open_segment_costs_until_now_and_nothing_before_it_began():
    book = prices(("gpu", -1, "3600"))
    assert [cost(held(10, None, gpus=1), book, at(n)) for n in (0, 10, 11.9, 20)] == [0, 0, 1, 10]


def test_hourly_is_what_an_hour_then_costs():
    book = prices(("gpu", -1, "2"), ("gpu", 7200, "3"), ("cpu", -1, "0.1"))
    pods = [Resources(gpus=1, cpu_milli=2000)] * 3
    assert hourly(book, at(0), pods) == Decimal("6.6")
    assert hourly(book, at(0), pods) == sum(cost(held(0, 3600, gpus=1, cpu_milli=2000), book, NEVER) for _ in pods)
    assert hourly(book, at(7200), pods) == Decimal("9.6")


def test_display_rounds_half_to_even():
    assert [display(Decimal(text)) for text in ("0.125", "0.135", "2", "-0.005")] == [
        Decimal(x) for x in ("0.12", "0.14", "2.00", "0.00")
    ]


def test_a_change_of_daylight_saving_time_is_no_change():
    """25 October 2026 has 25 hours in Berlin and 24 in UTC; only UTC counts."""
    segment = Segment(
        "p",
        1,
        "",
        {},
        Resources(gpus=1),
        dt.datetime(2026, 10, 25, tzinfo=dt.UTC),
        dt.datetime(2026, 10, 26, tzinfo=dt.UTC),
    )
    assert segment.seconds(NEVER) == 86400


seconds = st.integers(min_value=0, max_value=100_000)
price_books = st.lists(
    st.tuples(
        st.sampled_from(
            ["gpu", "gpu:A100", "spare-gpu", "spare-gpu:A100", "urgent-gpu", "urgent-gpu:A100", "cpu", "memory"]
        ),
        seconds,
        st.decimals(min_value=0, max_value=1000, places=6),
    ),
    max_size=12,
    unique_by=lambda row: row[:2],
).map(lambda rows: Prices(tuple(DatedPrice(sku, at(since), price) for sku, since, price in rows)))
segments = st.builds(
    lambda since, length, gpus, model, cpu, memory, kind: held(
        since, since + length, gpus=gpus, gpu_model=model, cpu_milli=cpu, memory_mb=memory, gpu_class=kind
    ),
    seconds,
    seconds,
    st.integers(0, 64),
    st.sampled_from(["", "A100", "T4"]),
    st.integers(0, 10**6),
    st.integers(0, 10**7),
    st.sampled_from(["", "spare", "urgent"]),
)


@given(segments, price_books, st.lists(seconds, max_size=5))
def test_cost_adds_up_exactly_over_any_boundaries(segment: Segment, book: Prices, cuts: list[int]):
    edges = [at(-1), *sorted(map(at, cuts)), at(10**6)]
    parts = [segment.within(since, until) for since, until in pairwise(edges)]
    assert sum((charge(part, book, NEVER) for part in parts if part), Fraction(0)) == charge(segment, book, NEVER)


@given(segments, price_books, seconds)
def test_every_second_costs_the_price_of_that_second(segment: Segment, book: Prices, offset: int):
    second = segment.within(at(offset), at(offset + 1))
    expected = hourly(book, at(offset), [segment.resources]) if second else Decimal(0)
    got = charge(second, book, NEVER) * 3600 if second else Fraction(0)
    assert decimal(got) == expected


@given(price_books)
def test_rates_leave_no_gap(book: Prices):
    for sku in (
        "gpu",
        "gpu:A100",
        "gpu:T4",
        "spare-gpu",
        "spare-gpu:A100",
        "spare-gpu:T4",
        "urgent-gpu:A100",
        "cpu",
        "memory",
    ):
        rates = book.rates(sku)
        assert [rate.until for rate in rates[:-1]] == [rate.since for rate in rates[1:]]
        assert (rates[0].since, rates[-1].until) == (BEGINNING, None)


def test_a_spare_gpu_costs_its_own_price_or_that_of_the_same_gpu():
    book = prices(("gpu", -1, "2"), ("gpu:A100", -1, "4"), ("spare-gpu", 10, "1.5"), ("spare-gpu:A100", 20, "3"))
    skus = ("spare-gpu", "spare-gpu:A100", "spare-gpu:T4")
    assert [[book.at(sku, at(n)) for sku in skus] for n in (0, 10, 20)] == [
        [2, 4, 2], [Decimal("1.5")] * 3, [Decimal("1.5"), 3, Decimal("1.5")],
    ]  # fmt: skip
    assert book.gpu_models == {"A100"}


def test_an_urgent_gpu_costs_its_own_price_or_that_of_the_same_gpu():
    book = prices(("gpu", -1, "2"), ("gpu:A100", -1, "4"), ("urgent-gpu", 10, "3"), ("urgent-gpu:A100", 20, "5"))
    skus = ("urgent-gpu", "urgent-gpu:A100", "urgent-gpu:T4")
    assert [[book.at(sku, at(n)) for sku in skus] for n in (0, 10, 20)] == [[2, 4, 2], [3, 4, 3], [3, 5, 3]]
    assert prices(("urgent-gpu", -1, "3")).at("urgent-gpu:T4", at(0)) == 3
    assert book.gpu_models == {"A100"}


@given(
    price_books,
    st.lists(st.tuples(st.sampled_from(["*", "gpu", "gpu:A100", "spare-gpu", "urgent-gpu"]), seconds), max_size=3),
    seconds,
)
def test_a_spare_gpu_never_costs_more_than_the_same_gpu_and_an_urgent_one_never_less(
    book: Prices, discounts: list[tuple[str, int]], second: int
):
    """Also where an administrator gave the wrong one the higher price, or only one of them a discount."""
    book = replace(
        book, discounts=tuple(DatedDiscount(pattern, Decimal(30), at(since)) for pattern, since in discounts)
    )
    for sku in ("gpu", "gpu:A100", "gpu:T4"):
        assert book.at(f"spare-{sku}", at(second)) <= book.at(sku, at(second)) <= book.at(f"urgent-{sku}", at(second))


@given(price_books, st.lists(segments, max_size=4), seconds, st.decimals(min_value=0, max_value=1000, places=6))
def test_a_price_of_spare_gpus_changes_nothing_else(book: Prices, rows: list[Segment], since: int, per_hour: Decimal):
    changed = Prices((*book.dated, DatedPrice("spare-gpu", at(since), per_hour)))
    for each in rows:
        same = charge(each, changed, NEVER) == charge(each, book, NEVER)
        before = each.within(at(-1), at(since))
        assert same or each.resources.gpu_class == "spare"
        assert before is None or charge(before, changed, NEVER) == charge(before, book, NEVER)


def test_the_price_of_a_gpu_leaves_spare_ones_alone_that_have_a_lower_one():
    book = prices(("gpu", -1, "3600"), ("spare-gpu", -1, "1800"), ("gpu", 100, "7200"), ("spare-gpu", 150, "900"))
    assert cost(held(0, 200, gpus=1), book, NEVER) == 100 + 200
    assert cost(held(0, 200, gpus=1, gpu_class="spare"), book, NEVER) == 75 + Decimal("12.5")
    assert cost(held(0, 200, cpu_milli=1000, gpu_class="spare"), prices(("cpu", -1, "3600")), NEVER) == 200
