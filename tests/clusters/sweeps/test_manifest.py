"""Valid sweeps, and their points."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusters.sweeps.manifest import Goal, StopEarly, SweepManifest, SweepSpec, trial_spec
from clusters.sweeps.parameters import grid_point, grid_size, is_active, written
from clusters.sweeps.search.sampler import BEST, MOST, Point, chosen, next_points
from clusters.sweeps.search.stopping import Progress, follow
from portal.errors import Invalid
from portal.manifests import parse

LR = {"type": "float", "low": 0.1, "high": 0.3, "step": 0.1}
TEMPLATE = {
    "image": "python",
    "command": "python train.py --lr {lr} $momentum",
    "env": {"RATE": "{lr}/{lr} ${lr} {other}"},
    "roles": {"master": {"flavor": "small"}},
}
JUPYTER = {"framework": "jupyter", "image": "python", "home": "home", "roles": {"notebook": {"flavor": "small"}}}


def spec(**said):
    given = {"template": TEMPLATE, "parameters": {"lr": LR}, "goal": {"metric": "loss"}, "sampler": "grid"}
    body = {"kind": "sweep", "metadata": {"name": "lr", "appcode": "ops-demo"}, "spec": {**given, **said}}
    return parse(SweepManifest, body).spec


def number(**said):
    return {"parameters": {"lr": {"type": "float", "low": 1, "high": 2, "step": 1, **said}}}


@pytest.mark.parametrize(
    ("said", "where", "words"),
    [
        (number(low=2), "parameters.lr.high", "more than low, 2"),
        (number(low=0, step=None, log=True), "parameters.lr.low", "logarithm of 0"),
        (number(low=float("nan")), "parameters.lr.low", "Give a number."),
        (number(high=10**400), "parameters.lr.high", "Give a number."),
        (number(step=0), "parameters.lr.step", "More than 0."),
        (number(step=1e-320), "parameters.lr.step", "So small a step"),
        (number(low=-1.7e308, high=1.7e308), "parameters.lr.low", "At most 1e+100"),
        (number(step=None), "parameters.lr.step", "A grid needs a step"),
        (number(low=1, step=None, log=True), "parameters.lr.log", "A grid needs a choice"),
        (number(type="int", high=2.5), "parameters.lr.high", "whole number"),
        (number(high=10**9), "parameters", "This grid has 1,000,000,000 combinations, and a sweep at most 10,000"),
        (number(high=3) | {"trials": 4}, "trials", "This grid has 3 combinations."),
        ({"parameters": {"rate": LR}}, "parameters.rate", "Nothing reads it: write {rate} or $rate into the command"),
        ({"parameters": {"lr": LR, "TASK_INDEX": LR}}, "parameters.TASK_INDEX", "is set by the portal"),
        ({"parameters": {"TF_CONFIG": LR}}, "parameters.TF_CONFIG", "is set by the portal"),
        ({"parameters": {"lr": LR, "RATE": LR}, "template": TEMPLATE | {"command": "go"}}, "parameters.lr", "Nothing reads it"),
        ({"parameters": {"lr": {"type": "choice", "values": ["1; rm -rf /"]}}}, "parameters.lr.values", "cannot stand in"),
        ({"parameters": {"lr": {"type": "choice", "values": [True, "true"]}}}, "parameters.lr.values", "there twice"),
        ({"parameters": {"lr": {"type": "choice", "values": [{}]}}}, "parameters.lr.values.0", "Give a text, a number"),
        ({"parameters": {"lr": LR | {"when": {"momentum": [1]}}}}, "parameters.lr.when.momentum", "Name another parameter"),
        ({"sampler": "random"}, "trials", "Enter the number of trials"),
        ({"sampler": "random", "trials": 10_001}, "trials", "At most 10000."),
        ({"sampler": "tpe", "trials": 5, "goal": None}, "goal", "TPE needs a metric"),
        ({"folds": 3}, "folds", "the cluster has none"),
        ({"folds": 3, "template": TEMPLATE | {"input": {"datastore": "d", "mode": "stream"}}}, "template.input.mode", "copy"),
        ({"stopEarly": {"minSteps": 1}, "goal": None}, "goal", "Early stopping needs a metric"),
        ({"stopEarly": {"minSteps": 0}}, "stopEarly.minSteps", "At least 1."),
        ({"template": JUPYTER}, "template.framework", "comes to an end"),
        ({"template": TEMPLATE | {"mode": "service"}}, "template.mode", "choose 'batch'"),
        ({"template": TEMPLATE | {"image": 1}}, "template.image", "Give text."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_at_its_field(said, where, words):
    with pytest.raises(Invalid) as found:
        spec(**said)
    assert [(".".join(each.path), words in each.message) for each in found.value.errors] == [(f"spec.{where}", True)]


def test_a_trial_is_the_template_with_its_parameters_put_in():
    folded = spec(template=TEMPLATE | {"input": "digits"}, folds=3)
    made = trial_spec(folded, grid_point(folded.parameters, 1), 2)
    assert made["command"] == "python train.py --lr 0.2 $momentum"
    assert made["env"] == {"RATE": "0.2/0.2 ${lr} {other}", "lr": "0.2"}
    assert made["input"] == {"datastore": "digits", "fold": 2, "folds": 3}
    assert made["roles"] == trial_spec(folded, {})["roles"]


def test_a_parameter_takes_the_place_of_the_variable_of_its_name():
    template = TEMPLATE | {
        "command": "python main.py",
        "env": {"LR": "0.01", "SEED": "1", "RUN": "lr-$LR", "MOMENTUM": "{LR}"},
    }
    momentum = {"type": "choice", "values": [0.9], "when": {"LR": [3]}}
    found = spec(template=template, parameters={"LR": {"type": "choice", "values": [0.1, 3]}, "MOMENTUM": momentum})
    assert [trial_spec(found, point)["env"] for point in next_points(found, 0, 2)] == [
        # Without a value the variable is not set, as that of any parameter.
        {"LR": "0.1", "SEED": "1", "RUN": "lr-$LR"},
        {"LR": "3", "SEED": "1", "RUN": "lr-$LR", "MOMENTUM": "0.9"},
    ]


values = st.one_of(
    st.integers(-5, 5), st.booleans(), st.text("ab-", min_size=1, max_size=3), st.sampled_from([0.5, 1e-7])
)
choices = st.lists(values, min_size=1, max_size=4, unique_by=written).map(
    lambda found: {"type": "choice", "values": found}
)
steps = st.tuples(st.integers(-3, 3), st.integers(1, 4)).map(
    lambda found: {"type": "int", "low": found[0], "high": found[0] + found[1]}
)


@st.composite
def searched(draw):
    """Parameters, some of which depend on choices."""
    leading = {name: draw(choices) for name in draw(st.sets(st.sampled_from("ab")))}
    others = {name: draw(st.one_of(choices, steps)) for name in draw(st.sets(st.sampled_from("cde"), min_size=1))}
    for each in others.values():
        for name in draw(st.sets(st.sampled_from(sorted(leading)))) if leading else ():
            wanted = st.sampled_from(leading[name]["values"])
            each.setdefault("when", {})[name] = draw(st.lists(wanted, min_size=1, max_size=2))
    template = TEMPLATE | {"command": "train $a $b $c $d $e"}
    return {"template": template, "parameters": {**leading, **others}, "goal": {"metric": "loss"}}


@given(searched())
def test_a_grid_has_each_combination_once_and_nothing_that_is_not_asked_for(body):
    found = SweepSpec.model_validate(body | {"sampler": "grid"})
    points = [grid_point(found.parameters, number) for number in range(grid_size(found.parameters))]
    assert len({tuple(sorted((k, written(v)) for k, v in point.items())) for point in points}) == len(points) > 0
    for point in points:
        for name, each in found.parameters.items():
            assert (name in point) == is_active(each, point)
    with pytest.raises(IndexError):
        grid_point(found.parameters, len(points))


@settings(max_examples=25)
@given(searched(), st.integers(0, 5), st.sampled_from(["random", "tpe"]))
def test_what_is_drawn_is_within_and_has_what_its_choices_ask_for(body, first, sampler):
    found = SweepSpec.model_validate(body | {"sampler": sampler, "trials": 50})
    known = [Point(n, point, float(n), True) for n, point in enumerate(next_points(found, 0, 12))]
    for point in next_points(found, first, 3, known):
        for name, each in found.parameters.items():
            assert (name in point) == is_active(each, point)
        for name, value in point.items():
            each = found.parameters[name]
            assert value in each.values if each.type == "choice" else each.low <= value <= each.high
    if sampler == "random":
        assert next_points(found, first, 3)[1:] == next_points(found, first + 1, 2)


@settings(max_examples=10, suppress_health_check=[HealthCheck.data_too_large])  # It is about long lists.
@given(st.lists(st.one_of(st.none(), st.floats(-1, 1)), min_size=MOST - 5, max_size=MOST + 300))
def test_the_sampler_is_told_the_best_and_the_newest_and_never_more(told):
    found = spec(sampler="tpe", trials=9)
    known = [Point(number, {"lr": 0.1}, value, True) for number, value in enumerate(told)]
    kept = chosen(found, known)
    assert len(kept) == min(len(known), MOST)
    numbers = {point.number for point in kept}
    best = sorted((value, number) for number, value in enumerate(told) if value is not None)[:BEST]
    assert {number for _, number in best} <= numbers
    assert max(numbers) == len(told) - 1


def test_the_estimator_comes_nearer_to_what_was_good_than_chance():
    wide = {"lr": {"type": "float", "low": -10, "high": 10}}
    found, chance = (spec(parameters=wide, sampler=each, trials=60) for each in ("tpe", "random"))
    known = []
    for number in range(60):
        [point] = next_points(found, number, 1, known)
        known.append(Point(number, point, (point["lr"] - 3) ** 2, True))
    drawn = [(point["lr"] - 3) ** 2 for point in next_points(chance, 30, 30)]
    assert sum(each.value for each in known[30:]) < sum(drawn) / 3


def test_of_those_that_come_to_a_rung_the_best_of_so_many_go_on_and_nobody_is_compared_twice():
    goal, known, went_on = Goal(metric="loss"), [], set()
    for number in range(9):
        told = [(step, float(number)) for step in range(1, 10)]
        # In pieces or at once gives the same result: no rung is compared twice.
        half, is_behind = follow(StopEarly(min_steps=3), goal, Progress(number), told[:2], known)
        assert (half.step, is_behind, half.remembered) == (2, False, {})
        found, is_behind = follow(StopEarly(min_steps=3), goal, half, told, known)
        assert (found, is_behind) == follow(StopEarly(min_steps=3), goal, Progress(number), told, known)
        assert found.step == (3 if is_behind else 9)
        known.append(found)
        went_on |= {number} - ({number} if is_behind else set())
    # The best came first; with nine there, one more may be among the best third.
    assert went_on == {0}
    better, is_behind = follow(StopEarly(min_steps=3), goal, Progress(9), [(3, 0.5)], known)
    assert not is_behind
    for worse in (float("nan"), float("inf"), 2.5):
        assert follow(StopEarly(min_steps=3), goal, Progress(10), [(3, worse)], [*known, better])[1]
    most = goal.model_copy(update={"direction": "maximize"})
    assert not follow(StopEarly(min_steps=3), most, Progress(10), [(3, 9.0)], known)[1]
    # The other bracket has later rungs and is compared separately.
    two = StopEarly(min_steps=3, brackets=2)
    assert follow(two, goal, Progress(11), [(8, 99.0)], known) == (Progress(11, 8, 99.0), False)


def test_tpe_weighs_no_more_values_than_a_turn_has_time_for():
    parameters = {name: {"type": "choice", "values": list(range(501))} for name in ("lr", "momentum")}
    assert spec(parameters=parameters, sampler="random", trials=5).points == 5
    with pytest.raises(Invalid, match="at most 1,000 values"):
        spec(parameters=parameters, sampler="tpe", trials=5)


def test_large_choices_with_conditions_are_judged_in_a_moment():
    """49 parameters that each name a thousand values of another: comparing them one by one took seconds."""
    values = list(range(1000))
    others = {f"p{n}": {"type": "choice", "values": [1], "when": {"a": values}} for n in range(49)}
    parameters = {"a": {"type": "choice", "values": values}, **others}
    template = {**TEMPLATE, "env": {"ALL": " ".join(f"{{{name}}}" for name in parameters)}}
    began = time.process_time()
    assert spec(template=template, parameters=parameters, trials=5).points == 5
    assert time.process_time() - began < 1
