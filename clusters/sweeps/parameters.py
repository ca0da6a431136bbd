"""The parameters of a sweep, which differ between its trials, and the points of a grid. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from portal.manifests import Strict, field_error
from portal.text.words import is_unicode

# Clusters of one sweep, including all folds.
MAX_TRIALS = 10_000
MAX_PARAMETERS = 50
MAX_VALUES = 1000
# 2**53: larger integers are not exact as floats.
MAX_INT = 2**53
# Far beyond training values, yet interpolating and squaring stay finite.
MAX_NUMBER = 1e100
Number = float | int
Value = str | int | float | bool


def _number(value: Any) -> Number:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return value
    except OverflowError:
        pass
    raise ValueError("Give a number.")


def _value(value: Any) -> Value:
    if isinstance(value, str):
        if len(value) > 200:
            raise ValueError("At most 200 characters.")
        if "\0" in value or not is_unicode(value):
            raise ValueError("A program can be given neither NUL characters nor halves of characters.")
        return value
    if isinstance(value, bool):
        return value
    if not isinstance(value, int | float):
        raise ValueError("Give a text, a number, true or false.")
    return _number(value)


# Kept as given: 1 is not written as 1.0.
AnyNumber = Annotated[Number, PlainValidator(_number), WithJsonSchema({"type": "number"})]
AnyValue = Annotated[
    Value,
    PlainValidator(_value),
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": 200}, {"type": "number"}, {"type": "boolean"}]}),
]


def written(value: Value) -> str:
    """The text that the program sees: true or false, whole numbers, or the shortest text that is exactly this float."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Parameter(Strict):
    """A parameter that differs between trials: a number from `low` to `high`, both included, or one of a choice's `values`."""

    type: Literal["float", "int", "choice"]
    low: AnyNumber | None = None
    high: AnyNumber | None = None
    log: bool = Field(
        default=False, description="Of numbers: 0.001 to 0.01 is as likely as 0.01 to 0.1. `low` is above 0."
    )
    step: AnyNumber | None = Field(
        default=None, description="Only low, low + step, …; what a grid needs of floats. Not with log."
    )
    values: Annotated[tuple[AnyValue, ...], Field(max_length=MAX_VALUES)] = Field(
        default=(), description="Of a choice."
    )
    when: dict[str, Annotated[tuple[AnyValue, ...], Field(min_length=1, max_length=MAX_VALUES)]] = Field(
        default_factory=dict,
        max_length=MAX_PARAMETERS,
        examples=[{"optimizer": ["sgd"]}],
        description="It is there only in trials in which these choices have one of these values.",
    )

    @model_validator(mode="after")
    def _judged(self) -> Self:
        if self.type == "choice":
            self._judge_choice()
        else:
            self._judge_range()
        return self

    def _judge_choice(self) -> None:
        for name in ("low", "high", "step"):
            if getattr(self, name) is not None:
                raise field_error("A choice has values; this is said of numbers.", name)
        if self.log:
            raise field_error("A choice has values; this is said of numbers.", "log")
        if not self.values:
            raise field_error("Give the values to choose from.", "values")
        counts = Counter(map(written, self.values))
        if twice := next((text for text, count in counts.items() if count > 1), None):
            raise field_error(f"“{twice}” is there twice.", "values")

    def _judge_range(self) -> None:
        if self.values:
            raise field_error("Numbers have low and high; only a choice has values.", "values")
        if self.low is None or self.high is None:
            raise field_error("Fill this in.", "low" if self.low is None else "high")
        for name in ("low", "high"):
            if abs(getattr(self, name)) > MAX_NUMBER:
                raise field_error(f"At most {MAX_NUMBER:g}, above and below 0.", name)
        if self.low >= self.high:
            raise field_error(f"It has to be more than low, {self.low:g}.", "high")
        if self.type == "int":
            for name in ("low", "high", "step"):
                number = getattr(self, name)
                if number is not None and (number != int(number) or abs(number) > MAX_INT):
                    raise field_error("Give a whole number.", name)
        self._judge_step(self.low, self.high)

    def _judge_step(self, low: Number, high: Number) -> None:
        if self.step is not None and self.step <= 0:
            raise field_error("More than 0.", "step")
        if self.step is not None and math.isinf((high - low) / self.step):
            raise field_error("So small a step makes more values than can be counted.", "step")
        if self.log and low <= 0:
            raise field_error("The logarithm of 0 and less is no number; begin above 0, or leave log out.", "low")
        if self.log and self.step is not None:
            raise field_error(
                "With log there is no step; leave one of them out, or write the values as a choice.", "step"
            )

    @cached_property
    def active(self) -> Mapping[str, frozenset[str]]:
        """`when` with values as texts."""
        return {name: frozenset(map(written, values)) for name, values in self.when.items()}

    @cached_property
    def texts(self) -> frozenset[str]:
        """Values of a choice, as texts."""
        return frozenset(map(written, self.values))

    @property
    def size(self) -> int | None:
        """Number of values; None for a continuous range."""
        if self.type == "choice":
            return len(self.values)
        assert self.low is not None
        assert self.high is not None
        step = self.step or (1 if self.type == "int" and not self.log else None)
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    def at(self, index: int) -> Value:
        """The value at `index`, from 0, of a parameter with a size."""
        if self.type == "choice":
            return self.values[index]
        assert self.low is not None
        number = self.low + index * (self.step or 1)
        # Rounded, so that steps of 0.1 give 0.3 and not 0.30000000000000004.
        return int(number) if self.type == "int" else float(f"{number:.12g}")

    def has(self, value: Value) -> bool:
        """Whether a choice has this value."""
        return written(value) in self.texts


def grid_size(parameters: Mapping[str, Parameter]) -> int:
    """Number of points of a grid. With conditions (`when`) it stops counting above MAX_TRIALS."""
    total, ordered = 0, in_order(parameters)
    for chosen in _choices(parameters):
        total += math.prod(each.size or 0 for _, each in _free(ordered, chosen))
        if total > MAX_TRIALS:
            break
    return total


def grid_point(parameters: Mapping[str, Parameter], number: int) -> dict[str, Value]:
    """The parameters of point `number` (from 0); the last parameter by name varies first. Raises IndexError past the end."""
    left, ordered = number, in_order(parameters)
    for chosen in _choices(parameters):
        free = _free(ordered, chosen)
        size = math.prod(each.size or 0 for _, each in free)
        if left >= size:
            left -= size
            continue
        point: dict[str, Value] = dict(chosen)
        for name, each in reversed(free):
            left, index = divmod(left, each.size or 1)
            point[name] = each.at(index)
        return point
    raise IndexError(number)


def some_point(parameters: Mapping[str, Parameter]) -> dict[str, Value]:
    """A possible point for any sampler: the first values."""
    found: dict[str, Value] = {}
    for name, each in in_order(parameters):
        if is_active(each, found):
            found[name] = each.at(0)
    return found


def is_active(parameter: Parameter, chosen: Mapping[str, Value]) -> bool:
    """Whether the parameter exists, given the choices that it may depend on."""
    return all(name in chosen and written(chosen[name]) in values for name, values in parameter.active.items())


def in_order(parameters: Mapping[str, Parameter]) -> list[tuple[str, Parameter]]:
    """Unconditional parameters first, then by name: JSON in the database does not keep the order."""
    return sorted(parameters.items(), key=lambda item: (bool(item[1].when), item[0]))


def _choices(parameters: Mapping[str, Parameter]) -> Iterator[dict[str, Value]]:
    """Every combination of values of the parameters on which others depend."""
    names = sorted({other for each in parameters.values() for other in each.when})
    sizes = [len(parameters[name].values) for name in names]
    for number in range(math.prod(sizes)):
        left, found = number, {}
        for name, size in zip(reversed(names), reversed(sizes), strict=True):
            left, index = divmod(left, size)
            found[name] = parameters[name].values[index]
        yield found


def _free(ordered: Iterable[tuple[str, Parameter]], chosen: Mapping[str, Value]) -> list[tuple[str, Parameter]]:
    """Active parameters that are not chosen yet."""
    return [(name, each) for name, each in ordered if name not in chosen and is_active(each, chosen)]
