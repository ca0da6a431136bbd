"""Which parameters the values depend on, by Optuna's PED-ANOVA. Pure.

Source: Watanabe, Bansal and Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces",
IJCAI 2023: compares a parameter's distribution among the best tenth of the points with its distribution among all.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.parameters import written
from clusters.sweeps.points import Outcome, is_maximized
from clusters.sweeps.search.sampler import distributions

# Minimum number of points.
LEAST = 10


def importances(spec: SweepSpec, points: Sequence[Outcome]) -> dict[str, float]:
    """The share of each parameter that every trial has, largest first; they add up to 1. Empty for too few points, or if all
    have the same value."""
    import optuna
    from optuna.trial import TrialState, create_trial

    if len(points) < LEAST or len({point.value for point in points}) < 2:
        return {}
    always = [name for name, each in spec.parameters.items() if not each.when]
    study = optuna.create_study(direction="maximize" if is_maximized(spec) else "minimize")
    kinds = distributions(spec)
    for point in points:
        given = {
            name: written(value) if spec.parameters[name].type == "choice" else value
            for name, value in point.parameters.items()
            if name in always
        }
        its = {name: kinds[name] for name in given}
        study.add_trial(create_trial(state=TrialState.COMPLETE, value=point.value, params=given, distributions=its))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        return optuna.importance.get_param_importances(study, evaluator=evaluator, params=always)
    except RuntimeError:
        # A parameter with a single value shows nothing.
        return {}
