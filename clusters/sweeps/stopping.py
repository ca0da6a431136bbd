"""Whether a trial is worth going on with. Pure: of what it has told so far, and of how far the others were at the same step.

Asynchronous successive halving (ASHA), by Optuna: of those that come to a rung (after `minSteps` steps, `factor` times as many,
and so on) only the best of `factor` go on. With several brackets it is Hyperband: trials are dealt to them by their numbers, and
each bracket lets its own wait for the first rung `factor` times as long as the one before. What the pruner knows of a trial it
keeps in that trial's attributes, which are ours to keep; no two brackets are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.pruners import SuccessiveHalvingPruner
from optuna.trial import FrozenTrial, TrialState, create_trial

from clusters.sweeps.manifest import Goal, StopEarly


@dataclass(frozen=True)
class Progress:
    """How far a trial is: the step and the value that it told last, and what the pruner remembers of it."""

    number: int
    step: int = -1
    value: float | None = None
    remembered: Mapping[str, Any] = field(default_factory=dict)


def follow(
    rule: StopEarly, goal: Goal, trial: Progress, told: Sequence[tuple[int, float]], others: Iterable[Progress]
) -> tuple[Progress, bool]:
    """How far `trial` is after what it has `told` (steps and values, in their order), and whether it is to end. `others` are
    those that came to a rung, in any order."""
    bracket = trial.number % rule.brackets
    pruner = SuccessiveHalvingPruner(rule.min_steps, rule.factor, bracket)
    study = optuna.create_study(direction=goal.direction, pruner=pruner)
    rivals = [each for each in others if each.number % rule.brackets == bracket and each.number != trial.number]
    study.add_trials([_known(each) for each in (*rivals, trial)])
    followed = optuna.Trial(study, study.get_trials(deepcopy=False)[-1]._trial_id)
    is_over = False
    for step, value in told:
        if step <= trial.step or is_over:
            continue
        # What is infinite is compared as little as NaN, which no rung lets pass.
        followed.report(value if math.isfinite(value) else math.nan, step)
        is_over = followed.should_prune()
        trial = replace(trial, step=step, value=value)
    return replace(trial, remembered=study.get_trials(deepcopy=False)[-1].system_attrs), is_over


def _known(trial: Progress) -> FrozenTrial:
    return create_trial(state=TrialState.RUNNING, system_attrs=dict(trial.remembered))
