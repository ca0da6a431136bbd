"""Chooses the next points from the spec, a point's number and the results of others. Pure.

Grid and random points depend on their number alone. For the Tree-structured Parzen Estimator, an Optuna study is rebuilt in
memory from our rows each time, so a killed worker loses nothing. It gets at most MOST points, the best and the newest, so that
the ten thousandth point costs as much as the thousandth.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.parameters import Parameter, Value, grid_point, in_order, is_active, written

# Optuna is imported where it is used: it would take half a second of each start of any program of the portal.
if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

# Points given to the estimator: the best ones, and all together.
BEST, MOST = 100, 1000


@dataclass(frozen=True)
class Point:
    """A point that was started. `value` is None while it trains or if it got none. A point that was ended early has no value,
    but the `step` and the value (`reached`) at its end."""

    number: int
    parameters: Mapping[str, Value]
    value: float | None = None
    is_over: bool = False
    step: int | None = None
    reached: float | None = None


def next_points(spec: SweepSpec, first: int, count: int, known: Iterable[Point] = ()) -> list[dict[str, Value]]:
    """The parameters of `count` points from number `first` on. Only the sampler tpe uses `known`."""
    if spec.sampler == "grid":
        return [grid_point(spec.parameters, number) for number in range(first, first + count)]
    if spec.sampler == "random":
        return [_drawn(spec, _study(spec, number)) for number in range(first, first + count)]
    study = _study(spec, first)
    kinds = distributions(spec)
    study.add_trials([_told(spec, kinds, point) for point in chosen(spec, list(known))])
    # The points drawn here stay in the study as running, so that the next one keeps its distance.
    return [_drawn(spec, study) for _ in range(count)]


def chosen(spec: SweepSpec, known: Sequence[Point]) -> list[Point]:
    """At most MOST of the points, ordered by number."""
    if len(known) > MOST:
        best = {point.number for point in islice(in_rank(spec, known), BEST)}
        others = [point for point in known if point.number not in best]
        newest = sorted(others, key=lambda point: point.number)[BEST - MOST :]
        known = [point for point in known if point.number in best] + newest
    return sorted(known, key=lambda point: point.number)


def in_rank(spec: SweepSpec, known: Iterable[Point]) -> Iterable[Point]:
    """Points with a value, best first; ties by number."""
    sign = -1 if spec.goal and spec.goal.direction == "maximize" else 1
    valued = [(sign * point.value, point.number, point) for point in known if point.value is not None]
    return (point for _, _, point in sorted(valued, key=lambda each: each[:2]))


def _study(spec: SweepSpec, number: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = random.Random(f"{spec.seed}.{number}").getrandbits(31)  # noqa: S311  # nothing secret
    tpe = spec.sampler == "tpe"
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True) if tpe else optuna.samplers.RandomSampler(seed)
    return optuna.create_study(sampler=sampler, direction=spec.goal.direction if spec.goal else "minimize")


def _drawn(spec: SweepSpec, study: optuna.Study) -> dict[str, Value]:
    trial, found = study.ask(), dict[str, Value]()
    for name, parameter in in_order(spec.parameters):
        if is_active(parameter, found):
            found[name] = _suggested(trial, name, parameter)
    return found


def _suggested(trial: optuna.Trial, name: str, parameter: Parameter) -> Value:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    asked = distribution(parameter)
    if isinstance(asked, CategoricalDistribution):
        drawn = trial.suggest_categorical(name, asked.choices)
        return next(value for value in parameter.values if written(value) == drawn)
    if isinstance(asked, IntDistribution):
        return trial.suggest_int(name, asked.low, asked.high, step=asked.step, log=asked.log)
    return trial.suggest_float(name, asked.low, asked.high, step=asked.step, log=asked.log)


def _told(spec: SweepSpec, kinds: Mapping[str, BaseDistribution], point: Point) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState, create_trial

    given = {name: _write(spec.parameters[name], value) for name, value in point.parameters.items()}
    state, told = TrialState.RUNNING, {}
    if point.is_over:
        state = TrialState.FAIL if point.value is None else TrialState.COMPLETE
    if point.step is not None and point.reached is not None:
        state, told = TrialState.PRUNED, {point.step: point.reached}
    return create_trial(
        state=state,
        value=point.value if state == TrialState.COMPLETE else None,
        intermediate_values=told,
        params=given,
        distributions={name: kinds[name] for name in given},
    )


def distributions(spec: SweepSpec) -> dict[str, BaseDistribution]:
    """Distribution of each parameter. Made once for all points, since one with a thousand values takes time."""
    return {name: distribution(each) for name, each in spec.parameters.items()}


def distribution(parameter: Parameter) -> CategoricalDistribution | IntDistribution | FloatDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.type == "choice":
        # As texts, because True == 1 in Python.
        return CategoricalDistribution([written(value) for value in parameter.values])
    assert parameter.low is not None
    # The last value that its steps reach.
    last = parameter.high if parameter.size is None else parameter.at(parameter.size - 1)
    assert isinstance(last, int | float)
    if parameter.type == "int":
        return IntDistribution(int(parameter.low), int(last), parameter.log, int(parameter.step or 1))
    return FloatDistribution(float(parameter.low), float(last), parameter.log, parameter.step)


def _write(parameter: Parameter, value: Value) -> Value:
    return written(value) if parameter.type == "choice" else value
