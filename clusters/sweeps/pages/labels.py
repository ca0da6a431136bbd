"""Parameters in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusters.sweeps.parameters import Parameter, written
from portal.pages.charts import number


def described(parameter: Parameter) -> str:
    if parameter.type == "choice":
        said = "one of " + ", ".join(map(written, parameter.values))
    else:
        said = f"{number(float(parameter.low or 0))} to {number(float(parameter.high or 0))}"
        said += f", in steps of {parameter.step:g}" if parameter.step else ""
        said += ", by its logarithm" if parameter.log else ""
        said += ", whole numbers" if parameter.type == "int" else ""
    where = (f"{name} is {' or '.join(map(written, values))}" for name, values in parameter.when.items())
    return said + (f"; only where {' and '.join(where)}" if parameter.when else "")


def in_words(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {short(value)}" for name, value in sorted(parameters.items()))


def short(value: Any) -> str:
    """A value for display; REST and the trial's definition have the exact value."""
    return number(value) if isinstance(value, float) else written(value)
