"""Comparison of runs, as values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.comparison.api import _metrics
from clusters.comparison.pages import _drawn_together, _metric
from clusters.comparison.values import alike, differences, folded, mean_of, smoothed
from clusters.comparison.view import View
from clusters.frame.changed_lines import changed_files
from clusters.runs.models import Cluster, Run
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


@pytest.mark.parametrize(
    "names",
    [
        ("loss", "train_loss", "train/loss", "Loss/train", "trainLoss", "Train Loss"),
        ("val_loss", "eval_loss", "Loss/validation", "validation-loss"),
        ("accuracy", "Accuracy", "acc", "train_acc"),
        ("val_accuracy", "eval/acc"),
    ],
)
def test_names_of_one_metric_are_one_chart(names: tuple[str, ...]) -> None:
    assert len({folded(name) for name in names}) == 1
    assert alike([[name] for name in names]) == [names]


@pytest.mark.parametrize("other", ["val_loss", "test_loss", "loss_1", "entropy_loss", "损失", "los"])
def test_other_names_are_other_metrics(other: str) -> None:
    assert alike([["loss"], [other]]) == [("loss",), (other,)]


@given(
    st.lists(st.lists(st.sampled_from(["loss", "train_loss", "Loss", "acc", "accuracy", "train", "!"]), unique=True))
)
def test_two_names_of_one_run_are_never_one_chart(runs: list[list[str]]) -> None:
    found = alike(runs)
    assert sorted(name for group in found for name in group) == sorted({name for run in runs for name in run})
    for run in runs:
        assert all(len(set(group) & set(run)) < 2 for group in found)


def scalars(*tags: str) -> Scalars:
    return Scalars(tuple(Curve(tag, "", (Point(1, 0.0, 0.5), Point(2, 0.0, 0.4))) for tag in tags), 1)


def test_charts_join_alike_names_and_what_a_person_chose_and_shared_ones_come_first() -> None:
    found = [scalars("accuracy", "loss", "only"), scalars("Accuracy", "train_loss", "reward")]
    alike_ = [("loss", "train_loss"), ("accuracy", "Accuracy"), ("only",), ("reward",)]
    assert _drawn_together(found, [], apart=False) == alike_
    assert _drawn_together(found, ["only", "loss", "gone"], apart=False) == [
        ("only", "loss"), ("accuracy", "Accuracy"), ("train_loss",), ("reward",),
    ]  # fmt: skip
    assert {len(group) for group in _drawn_together(found, [], apart=True)} == {1}
    runs = [Run(pk=n, number=1, colour=n, cluster=Cluster(name=name)) for n, name in enumerate("ab", 1)]
    told = list(zip(runs, found, strict=True))
    chart = _metric(alike_[0], told, "step", 0.0).chart
    assert (chart.title, [line.label for line in chart.lines]) == ("loss · train_loss", ["a/1 loss", "b/1 train_loss"])
    # A run has its colour in a chart where it is alone, too.
    lone = _metric(("reward",), told, "step", 0.0).chart
    assert [(line.label, line.series) for line in lone.lines] == [("b/1", 3)]


VALUES = st.floats(-1e6, 1e6, allow_nan=False) | st.just(math.nan)
CURVES = st.lists(st.lists(st.tuples(st.integers(0, 30), VALUES), max_size=12), max_size=4)


@given(CURVES)
def test_a_mean_lies_between_the_curves_that_have_the_step(several: list[list[tuple[int, float]]]) -> None:
    curves = [[Point(step, 0.0, value) for step, value in each] for each in several]
    found = mean_of(curves)
    assert found == mean_of(curves[::-1])
    known = [{step: value for step, value in each if math.isfinite(value)} for each in several]
    assert [step for step, *_ in found] == sorted({step for each in known for step in each})
    for step, mean, low, high in found:
        inside = [each for each in known if each and min(each) <= step <= max(each)]
        assert min(min(each.values()) for each in inside) <= low <= mean <= high
        assert high <= max(max(each.values()) for each in inside)
        told = [each[int(step)] for each in inside if step in each]
        assert low <= min(told)
        assert high >= max(told)


def test_runs_that_report_at_other_steps_are_interpolated_and_one_that_ends_counts_no_more() -> None:
    every_ten = [Point(n, 0.0, float(n)) for n in range(0, 31, 10)]
    rare = [Point(0, 0.0, 10.0), Point(20, 0.0, 30.0)]
    assert mean_of([every_ten, rare]) == [(0, 5, 0, 10), (10, 15, 10, 20), (20, 25, 20, 30), (30, 30, 30, 30)]


NAMES = st.lists(st.text(min_size=1, max_size=9), max_size=3, unique=True).map(tuple)
VIEWS = st.builds(
    View, runs=st.lists(st.from_regex(r"[a-z]/[0-9]", fullmatch=True), max_size=3, unique=True).map(tuple),
    axis=st.sampled_from(["step", "time"]), smooth=st.sampled_from(["0", "0.6"]), equal=st.booleans(), apart=st.booleans(),
    plain=st.booleans(), brief=st.booleans(), find=st.from_regex(r"([a-z]([a-z &=#]*[a-z])?)?", fullmatch=True),
    at=st.none() | st.integers(-9, 10**18), joined=NAMES, metrics=NAMES,
)  # fmt: skip


@given(VIEWS)
def test_an_address_says_the_whole_view(view: View) -> None:
    assert View.read(parse_qs(view.query)) == view


def test_what_nobody_can_mean_is_left_out_and_two_lists_of_runs_are_one() -> None:
    said = {
        "runs": ["a/1,b/1", "a/1,c/1"],
        "x": ["?"],
        "smooth": ["2"],
        "at": ["²"],
        "find": ["x", " y\0 "],
        "all": [""],
    }
    assert View.read(said) == View(runs=("a/1", "b/1", "c/1"), find="y", equal=True)
    assert View.read(said).but(equal=False).query == "runs=a/1,b/1,c/1&find=y"
