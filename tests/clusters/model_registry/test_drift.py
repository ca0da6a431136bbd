"""Drift: adding and subtracting the counts that model servers report."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.model_registry import drift

SINCE, LATER = "2026-05-03T14:02:00Z", "2026-05-03T15:00:00Z"
shares = st.lists(st.integers(0, 50), min_size=2, max_size=11).filter(any).map(lambda n: [each / sum(n) for each in n])


def column(seen: Any, expected: Any = None, edges: Any = None, name: str = "x") -> dict[str, Any]:
    return {
        "tensor": name, "column": 0, "kind": "input", "edges": edges or list(range(len(seen) - 1)),
        "expected": expected or [1 / len(seen)] * len(seen), "seen": list(seen),
    }  # fmt: skip


def reading(*columns: dict[str, Any], rows: int = 1000, since: str = SINCE) -> drift.Reading:
    return drift.read({"since": since, "rows": rows, "columns": list(columns)})


@given(shares, st.data())
def test_the_index_is_never_below_nothing_and_the_order_of_bins_is_nothing_to_it(expected: Any, data: Any) -> None:
    seen = data.draw(st.lists(st.integers(0, 10_000), min_size=len(expected), max_size=len(expected)))
    value = drift.psi(expected, seen)
    assert 0 <= value < math.inf
    order = data.draw(st.permutations(range(len(seen))))
    assert drift.psi([expected[i] for i in order], [seen[i] for i in order]) == pytest.approx(value)
    assert drift.psi(expected, [7 * each for each in seen]) == pytest.approx(value)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=11).filter(any))
def test_what_comes_as_it_was_expected_has_not_drifted(counts: list[int]) -> None:
    assert drift.psi([each / sum(counts) for each in counts], counts) == pytest.approx(0, abs=1e-9)


def test_the_index_is_that_of_the_formula_and_has_the_usual_words() -> None:
    value = drift.psi([0.5, 0.5], [600, 400])
    assert value == pytest.approx(0.1 * math.log(1.2) + -0.1 * math.log(0.8))
    assert [drift.word(each) for each in (value, 0.1, 0.2499, 0.25, None)] == [
        "stable", "moderate", "moderate", "large", "too few"
    ]  # fmt: skip
    few, many, empty = (reading(column(seen)).columns[0] for seen in ([199, 0], [200, 0], [0, 0]))
    assert (few.psi, few.document()["word"], empty.psi) == (None, "too few", None)
    assert (many.psi, many.document()["word"]) == (pytest.approx(0.5 * math.log(2) + 0.4999 * math.log(5000)), "large")


parts = st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=1, max_size=5)


@given(parts)
def test_what_was_added_up_can_be_taken_away_again_in_whatever_order(counts: list[list[int]]) -> None:
    found = [reading(column(each), rows=sum(each)) for each in counts]
    whole, back = drift.together(found), drift.together(reversed(found))
    assert whole == back
    assert whole is not None
    assert whole.columns[0].seen == tuple(map(sum, zip(*counts, strict=True)))
    assert whole.rows == sum(map(sum, counts))
    left = drift.between(whole, found[0])
    others = drift.together(found[1:])
    assert left.columns[0].seen == (others.columns[0].seen if others else (0, 0, 0))
    assert drift.between(whole, None) == whole
    assert drift.between(whole, whole).rows == 0


def test_a_server_that_began_anew_has_counted_all_that_it_says_since_then() -> None:
    before = reading(column([100, 100]), rows=200)
    for after in (
        reading(column([30, 1]), rows=31, since=LATER),
        reading(column([130, 1]), rows=300),
        reading(column([130, 100], edges=[9]), rows=230, since=LATER),
    ):
        assert drift.between(after, before) == after
    # The same column with other edges counts as another column.
    other = drift.between(reading(column([1, 2], edges=[9]), rows=203), before)
    assert (other.rows, other.columns[0].seen) == (3, (1, 2))
    both = drift.together([before, reading(column([1, 2], edges=[9]))])
    assert both is not None
    assert len(both.columns) == 2
    assert drift.together([]) is None


def test_a_row_keeps_columns_and_gives_them_back_what_drifted_most_first() -> None:
    found = reading(column([500, 500]), column([900, 100], name="y"), column([3, 3], name="z"))
    kept = drift.documents(found)
    assert [(each["tensor"], each["word"]) for each in kept] == [("y", "large"), ("x", "stable"), ("z", "too few")]
    assert set(drift.again(kept)) == set(found.columns)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ([], "drift: Input should be"),
        ({"since": SINCE, "rows": -1, "columns": []}, "rows"),
        ({"since": "2026-05-03T14:02:00", "rows": 1, "columns": []}, "since"),
        ({"columns": [column([1, 2, 3]) | {"edges": [1]}]}, "columns.0: .*one more bin than edges"),
        ({"columns": [column([1, -2])]}, "columns.0.seen.1"),
        ({"columns": [column([1, 2]) | {"expected": [math.nan, 1]}]}, "columns.0.expected.0"),
        ({"columns": [column([1, 2]) | {"edges": [math.inf]}]}, "columns.0.edges.0"),
        ({"columns": [column([1, 2**60])]}, "columns.0.seen.1"),
        ({"columns": [column([1, 2]) | {"tensor": "x" * 201}]}, "columns.0.tensor"),
        ({"columns": [column([1, 2]), column([1, 2])]}, "stands there twice"),
        ({"columns": [column([1, 2], edges=[n]) for n in range(drift.MOST_COLUMNS + 1)]}, "columns"),
    ],
)
def test_a_server_is_a_tenants_program_and_may_say_anything(said: Any, sentence: str) -> None:
    document = {"since": SINCE, "rows": 1, **said} if isinstance(said, dict) else said
    with pytest.raises(ValueError, match=sentence):
        drift.read(document)
