"""Whether a trial is worth continuing, from what it has reported and how the others did at the same step. Pure.

Asynchronous successive halving (ASHA), by Optuna: of the trials that reach a rung (after `minSteps` steps, `factor` times as
many, and so on) only the best one in `factor` goes on. With several brackets it is Hyperband: trials are assigned to brackets
by number, and each bracket has its first rung `factor` times later than the one before. Brackets are not compared. The pruner's
state of a trial is in the trial's attributes, which we store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clusters.sweeps.manifest import Goal, StopEarly

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Progress:
    """Progress of a trial: the step and value that it last reported, and the pruner's state."""

    number: int
    step: int = -1
    value: float | None = None
    remembered: Mapping[str, Any] = field(default_factory=dict)


def follow(
    rule: StopEarly, goal: Goal, trial: Progress, told: Sequence[tuple[int, float]], others: Iterable[Progress]
) -> tuple[Progress, bool]:
    """The progress of `trial` after it reported `told` (steps and values, in order), and whether it should end. `others` are
    the trials that reached a rung, in any order."""
    import optuna

    bracket = trial.number % rule.brackets
    pruner = optuna.pruners.SuccessiveHalvingPruner(rule.min_steps, rule.factor, bracket)
    study = optuna.create_study(direction=goal.direction, pruner=pruner)
    rivals = [each for each in others if each.number % rule.brackets == bracket and each.number != trial.number]
    study.add_trials([_known(each) for each in (*rivals, trial)])
    followed = optuna.Trial(study, study.get_trials(deepcopy=False)[-1]._trial_id)
    is_over = False
    for step, value in told:
        if step <= trial.step or is_over:
            continue
        # Infinity is reported as NaN, which passes no rung.
        followed.report(value if math.isfinite(value) else math.nan, step)
        is_over = followed.should_prune()
        trial = replace(trial, step=step, value=value)
    return replace(trial, remembered=study.get_trials(deepcopy=False)[-1].system_attrs), is_over


def _known(trial: Progress) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState, create_trial

    return create_trial(state=TrialState.RUNNING, system_attrs=dict(trial.remembered))
