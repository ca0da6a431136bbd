"""Comparison of runs, as values."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.comparison.api import _metrics
from clusters.comparison.values import changed_files, differences, smoothed
from clusters.scalars.events import Curve, Point, Scalars

WORDS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "1", "2", None]))
NUMBERS = st.lists(st.floats(-1e6, 1e6))


@given(st.lists(WORDS, min_size=1, max_size=4))
def test_a_word_is_told_when_it_is_not_the_same_everywhere(definitions: list[dict[str, str | None]]) -> None:
    told = {each.path: each.values for each in differences(definitions)}
    for word in "abc":
        values = tuple(each.get(word) or None for each in definitions)
        assert told.get(word) == (values if len(set(values)) > 1 else None)


@given(NUMBERS, st.floats(0, 0.99))
def test_what_is_smoothed_stays_between_what_was(values: list[float], weight: float) -> None:
    found = list(smoothed(values, weight))
    assert len(found) == len(values)
    for n, each in enumerate(found):
        seen = values[: n + 1]
        assert min(seen) - 1e-3 <= each <= max(seen) + 1e-3
    assert list(smoothed(values, 0)) == pytest.approx(values)


@given(NUMBERS, st.integers(0, 20))
def test_what_is_no_number_moves_nothing(values: list[float], place: int) -> None:
    with_gap = [*values[:place], math.nan, *values[place:]]
    found = [each for each in smoothed(with_gap, 0.6) if not math.isnan(each)]
    assert found == list(smoothed(values, 0.6))


def test_files_that_came_and_went_are_told_and_equal_ones_are_not() -> None:
    before, after = {"same.py": "a", "gone.py": "b"}, {"same.py": "a", "new.py": "c"}
    assert [(name, lines and lines[-1]) for name, lines in changed_files(before, after)] == [
        ("gone.py", ("-", "b")),
        ("new.py", ("+", "c")),
    ]


class Read(tuple[Curve, ...]):  # noqa: SLOT001  it counts
    """Counts how often it is iterated."""

    times = 0

    def __iter__(self) -> Iterator[Curve]:
        self.times += 1
        return super().__iter__()


def test_thousands_of_lines_are_gone_through_once_and_not_for_each_tag() -> None:
    curves = Read(Curve(f"{n % 500:03}", str(n // 500), (Point(n, 0.0, 1.0),)) for n in range(2000))
    found = _metrics(Scalars(curves, 1))
    assert [(each.tag, each.folder) for each in found[:5]] == [
        ("000", "0"),
        ("000", "1"),
        ("000", "2"),
        ("000", "3"),
        ("001", "0"),
    ]
    assert (len(found), curves.times <= 3) == (2000, True)
