"""Results as values: summaries, parameters, addresses and columns."""

from __future__ import annotations

import datetime as dt
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.results.columns import Facts, columns
from clusters.results.coordinates import Point, drawn, metric_of
from clusters.results.values import Extreme, Summary, headline, is_less_better, options, parameters, styles, summaries
from clusters.results.view import FIELDS, Column, View, conditions, span_of
from clusters.scalars.events import MAX_POINTS, Scalars, Series
from clusters.scalars.events import Point as ScalarPoint
from clusters.scalars.printed import scalars_of_log

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20).map(str.strip)


@given(st.lists(NUMBERS, min_size=1, max_size=30), st.integers(1, 3))
def test_extremes_survive_thinning_and_the_cache(values: list[float], around: int) -> None:
    # The values lie among so many others that most points are dropped.
    several = [0.0] * (MAX_POINTS * around) + values + [0.0] * (2 * MAX_POINTS)
    series = Series()
    for step, value in enumerate(several):
        series.add(ScalarPoint(step, float(step), value))
    kept = Series.from_json(series.to_json())
    finite = [value for value in several if math.isfinite(value)]
    for each in (series, kept):
        points = each.whole
        seen = [point.value for point in points if math.isfinite(point.value)]
        assert (min(seen), max(seen)) == (min(finite), max(finite))
        assert points[-1].step == len(several) - 1
        assert [point.step for point in points] == sorted({point.step for point in points})


def test_a_best_value_has_the_step_at_which_it_was_first_reached() -> None:
    log = "\n".join(f"step {n}: loss = {value}" for n, value in enumerate([0.9, 0.2, "nan", 0.2, 0.5]))
    assert summaries(scalars_of_log(log.encode())) == {"loss": Summary(0.5, 4, Extreme(0.2, 1), Extreme(0.9, 0))}


def test_a_tag_of_several_folders_is_several_metrics() -> None:
    found = scalars_of_log(b"step 1: loss = 1\n")
    [curve] = found.curves
    two = Scalars((curve, curve.__class__("loss", "validation", curve.points)), 1)
    assert list(summaries(two)) == ["loss", "validation/loss"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", {}),
        (
            "python train.py --lr 0.1 --epochs=3 --amp --shift -2",
            {"lr": "0.1", "epochs": "3", "amp": "true", "shift": "-2"},
        ),
        ("python -m train optimizer.lr=1e-3 +seed=7 && echo done", {"optimizer.lr": "1e-3", "seed": "7"}),
        ("pip install torch==2.1; python a.py --lr $LR --name 'a b' > out.txt", {"name": "a b"}),
        ("python a.py --last | tee log", {"last": "true"}),
        ("cat > t.py <<'E'\nit's = 1\na=f(2)\nE\npython t.py --lr 1", {"lr": "1"}),
    ],
)
def test_options_of_a_command(command: str, said: dict[str, str]) -> None:
    assert dict(options(command)) == said


def test_a_variable_and_an_option_that_disagree_are_both_there() -> None:
    spec = {"env": {"lr": "0.1", "PRICE": "$$5"}, "command": "python a.py --lr 0.2 --seed 1", "notebook": None}
    assert parameters(spec) == {"lr": "0.1", "PRICE": "$5", "--lr": "0.2", "seed": "1"}


@pytest.mark.parametrize(
    ("name", "less"), [("val_loss", True), ("train-rmse", True), ("accuracy", False), ("AUC", False)]
)
def test_what_is_better(name: str, less: bool) -> None:
    assert is_less_better(name) is less


def test_conditions() -> None:
    found, unclear = conditions("val loss <= 0.3 and param:LR = 1e-3, best:acc>0.9; nonsense")
    assert [(each.kind, each.name, each.operator, each.number) for each in found] == [
        ("", "val loss", "<=", 0.3),
        ("param", "LR", "=", 0.001),
        ("best", "acc", ">", 0.9),
    ]
    assert unclear == ["nonsense"]


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        # As the table heads its columns, and as people say it.
        ("val_loss best < 1", "best", "val_loss"), ("loss smallest < 1", "min", "loss"),
        ("best val loss < 1", "best", "val loss"), ("Largest acc > 1", "max", "acc"),
        ("best < 1", "", "best"), ("last:loss best < 1", "last", "loss best"),
    ],
)  # fmt: skip
def test_a_condition_names_a_column_as_it_is_headed(text: str, kind: str, name: str) -> None:
    [said], _ = conditions(text)
    assert (said.kind, said.name) == (kind, name)


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("2026-11-30", "2026-11-30T00:00+01:00", "2026-12-01T00:00+01:00"),
        ("Yesterday", "2026-11-30T00:00+01:00", "2026-12-01T00:00+01:00"),
        ("today", "2026-12-01T00:00+01:00", "2026-12-02T00:00+01:00"),
        ("last week", "2026-11-23T00:00+01:00", "2026-11-30T00:00+01:00"),
        ("36 hours ago", "2026-11-29T18:00+01:00", "2026-11-29T18:00+01:00"),
        ("1d 12h", "2026-11-29T18:00+01:00", "2026-11-29T18:00+01:00"),
        ("2026-11-30 14:00", "2026-11-30T14:00+01:00", "2026-11-30T14:00+01:00"),
        ("2026-11-30T14:00Z", "2026-11-30T14:00+00:00", "2026-11-30T14:00+00:00"),
    ],
)
def test_times_are_days_or_moments_in_the_zone_of_the_reader(text: str, begin: str, end: str) -> None:
    now = dt.datetime.fromisoformat("2026-12-01T06:00+01:00")
    assert span_of(text, now) == (dt.datetime.fromisoformat(begin), dt.datetime.fromisoformat(end))


@given(TEXTS | st.sampled_from(["99999999999 days", "0001-01-01", "9999-12-31"]))
def test_no_text_is_too_odd_to_be_a_time(text: str) -> None:
    span = span_of(text, dt.datetime(2026, 12, 1, tzinfo=dt.UTC))
    assert span is None or span[0] <= span[1]


KEYS = st.sampled_from([*FIELDS]) | st.builds(
    "{}:{}".format, st.sampled_from(["last", "best", "min", "max", "param"]), TEXTS.filter(bool)
)


@given(st.dictionaries(st.integers(1, 10**9), st.integers(0, 30), max_size=20))
def test_a_run_keeps_its_colour_and_those_that_share_one_are_dashed(colours: dict[int, int]) -> None:
    found = styles(colours)
    assert {number: (style - 1) % 10 for number, style in found.items()} == {
        number: colour % 10 for number, colour in colours.items()
    }
    for colour in range(10):
        alike = [found[number] for number in sorted(colours) if colours[number] % 10 == colour]
        assert alike[:4] == [1 + colour, 11 + colour, 21 + colour, 31 + colour][: len(alike)]
    newer = {**colours, 10**9 + 1: 3}
    assert {number: styles(newer)[number] for number in colours} == found


RUNS = st.lists(st.from_regex(r"[a-z]{1,5}/[1-9]", fullmatch=True), max_size=3, unique=True).map(tuple)


@given(
    st.builds(
        View, search=TEXTS, state=TEXTS, who=TEXTS, tag=TEXTS, where=TEXTS, cluster=TEXTS, whole=TEXTS,
        sort=st.sampled_from(["", "-cost", "param:a b", "-best:x/y:z&="]), group=st.sampled_from(["", "who", "param:LR"]),
        page=st.integers(1, 99), columns=st.none() | st.lists(KEYS, max_size=4, unique=True).map(tuple),
        charts=st.booleans(), drawn=st.none() | RUNS, pins=RUNS,
    )
)  # fmt: skip
def test_an_address_says_the_whole_view(view: View) -> None:
    assert View.of_query(view.query) == view


def facts(numbers: dict[str, float], parameters: dict[str, str], who: str = "bob") -> Facts:
    said = {name: Summary(value, 9, Extreme(value / 2, 3), Extreme(value, 9)) for name, value in numbers.items()}
    return Facts({"who": who, "note": ""}, parameters, said)


def test_at_first_only_columns_that_tell_the_rows_apart() -> None:
    rows = [
        facts({"loss": 0.5, "acc": 0.9, "same": 1.0, "rare": 3.0}, {"LR": "0.1", "SEED": "1"}),
        facts({"loss": 0.4, "acc": 0.8, "same": 1.0}, {"LR": "0.2", "SEED": "1"}),
    ]
    found = columns(rows, None)
    assert [each.key for each in found.shown] == ["last:loss", "best:loss", "last:acc", "param:LR"]
    assert (found.metrics, found.parameters) == (["loss", "acc", "rare", "same"], ["LR", "SEED"])


def test_what_was_chosen_stays_whatever_the_rows_are() -> None:
    chosen = [Column("last", "gone"), Column("field", "note"), Column("param", "LR")]
    found = columns([facts({"loss": 1.0}, {"LR": "1"})], chosen)
    assert found.shown == chosen
    assert "gone" in found.metrics


def test_at_least_two_metrics_are_shown_those_that_most_rows_have() -> None:
    rows = [
        facts({"reward": 1.0, "lr": 0.1}, {}),
        facts({"steps_done": 9.0, "reward": 1.0, "lr": 0.1}, {}),
        facts({"val_acc": 0.9, "lr": 0.1}, {}),
    ]
    shown = [each.name for each in columns(rows, None).shown if each.kind == "last"]
    assert shown == ["reward", "val_acc"]


def test_metrics_of_many_rows_come_before_those_of_few_and_settings_come_last() -> None:
    rows = [facts({"loss_a": n, "loss_b": n, "rl_loss": n, "lr": n}, {}) for n in (1.0, 2.0)]
    rows += [facts({"acc": n, "lr": n}, {}) for n in (1.0, 2.0, 3.0, 4.0, 5.0)]
    shown = [each.name for each in columns(rows, None).shown if each.kind == "last"]
    assert shown == ["acc", "loss_a", "loss_b", "rl_loss", "lr"]


def test_filters_add_no_columns_and_hide_empty_ones() -> None:
    newest = [facts({"loss": n}, {"LR": str(n)}, who) for n, who in ((0.5, "bob"), (0.4, "alice"))]
    keys = [each.key for each in columns(newest, None).shown]
    assert keys == ["last:loss", "best:loss", "param:LR", "who"]
    for rows in (newest[:1], []):
        assert [each.key for each in columns(rows, None, newest).shown] == keys
    other = [facts({"loss": 0.3, "other": 1.0}, {"BATCH": "2"})]
    assert [each.key for each in columns(other, None, newest).shown] == ["last:loss", "best:loss", "who"]
    # Unless no metric of a row would be seen.
    reward = [facts({"reward": 1.0}, {}), facts({"reward": 1.0}, {})]
    assert [each.key for each in columns(reward, None, newest).shown] == ["last:reward", "who"]
    assert [each.key for each in columns([*newest, *reward], None, newest).shown] == [
        "last:loss", "best:loss", "last:reward", "param:LR", "who",
    ]  # fmt: skip


def test_the_state_stands_beside_the_name_until_somebody_chooses_it() -> None:
    rows = [Facts({"state": word}, {}, {}) for word in ("Failed", "Running")]
    assert columns(rows, None).shown == []
    assert columns(rows, [Column("field", "state")]).shown == [Column("field", "state")]


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ({"accuracy": 0.9, "loss": 0.1, "val_loss": 0.2, "speed": 3.0}, ["loss", "accuracy"]),
        ({"val_loss": 0.2, "loss": 0.1}, ["loss", "val_loss"]),
        ({"reward": 5.0, "lr": 0.1, "loss": 0.2}, ["loss", "reward"]),
        ({}, []),
    ],
)
def test_two_metrics_stand_for_a_run(numbers: dict[str, float], wanted: list[str]) -> None:
    found = {name: Summary(value, 1, None, None) for name, value in numbers.items()}
    assert headline(found) == [(name, numbers[name]) for name in wanted]


def point(name: str, value: float, **parameters: str) -> Point:
    return Point(name, f"/{name}", parameters, value)


def test_parameters_that_differ_are_axes_and_the_best_run_is_drawn_last() -> None:
    runs = [
        point("a/1", 0.5, LR="0.1", MODEL="small", SEED="1"),
        point("b/1", 0.1, LR="0.001", MODEL="large", SEED="1"),
        point("c/1", math.nan, LR="9", MODEL="tiny", SEED="1"),
        point("d/1", 0.3, LR="0.01", SEED="1"),
    ]
    found = drawn(runs, ["SEED", "LR", "MODEL"], Column("last", "loss"))
    assert found is not None
    assert [axis.label for axis in found.strands.axes] == ["LR", "MODEL", "loss"]
    # A run without a model ends at the foot of its axis, where no other label is.
    assert [axis.has_none for axis in found.strands.axes] == [False, True, False]
    assert all(tick.percent < 90 for axis in found.strands.axes for tick in axis.ticks if axis.has_none)
    assert [strand.text.partition(":")[0] for strand in found.strands.strands] == ["a/1", "d/1", "b/1"]
    assert found.strands.strands[-1].text == "b/1: loss = 0.1; SEED = 1, LR = 0.001, MODEL = large"


def test_a_run_far_from_all_others_is_drawn_at_its_own_value() -> None:
    runs = [point(f"{n}/1", loss, LR=str(n)) for n, loss in enumerate((0.1, 0.11, 0.12, 0.13, 0.42, 0.64))]
    found = drawn(runs, ["LR"], Column("last", "loss"))
    assert found is not None
    ends = [strand.path.split("L")[-1] for strand in found.strands.strands]
    assert len(set(ends)) == len(runs), "no two of them end at one point"
    runs.append(point("diverged/1", 1e6, LR="9"))
    found = drawn(runs, ["LR"], Column("last", "loss"))
    assert found is not None
    heights = sorted(float(strand.path.split()[-1]) for strand in found.strands.strands)
    assert heights[0] == 0
    assert heights[-1] - heights[1] > 50, "its log axis leaves room for the others"


@pytest.mark.parametrize(
    "runs", [[], [point("a/1", 1, LR="1"), point("b/1", 2, LR="2")], [point(f"{n}/1", n) for n in range(9)]]
)
def test_too_little_to_see_is_not_drawn(runs: list[Point]) -> None:
    assert drawn(runs, ["LR"], Column("last", "loss")) is None


def test_the_metric_of_the_order_is_the_last_axis() -> None:
    shown = [Column("last", "lr"), Column("last", "loss")]
    assert metric_of(shown, View()) == Column("last", "loss"), "no value of a learning rate is better"
    assert metric_of(shown, View(sort="-best:accuracy")) == Column("best", "accuracy")
    assert metric_of([], View()) is None
