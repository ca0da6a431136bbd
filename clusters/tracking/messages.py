"""MLflow's messages as typed values, with the limits of each. Pure.

Source: mlflow/protos/service.proto. JSON of protocol buffers writes NaN and infinity as texts, and may write numbers so, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

MAX_NAME, MAX_PARAM, MAX_TAG = 250, 6000, 8000
# In one request. The first three are MLflow's own.
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
_WHOLE = 2**62


class Refused(Exception):
    """The answer to a request that cannot be done: MLflow's error code, and a sentence."""

    STATUS: ClassVar = {
        "INVALID_PARAMETER_VALUE": 400,
        "RESOURCE_ALREADY_EXISTS": 400,
        "RESOURCE_LIMIT_EXCEEDED": 400,
        "UNAUTHENTICATED": 401,
        "PERMISSION_DENIED": 403,
        "RESOURCE_DOES_NOT_EXIST": 404,
        "ENDPOINT_NOT_FOUND": 404,
        "REQUEST_LIMIT_EXCEEDED": 429,
        "TEMPORARILY_UNAVAILABLE": 503,
    }

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code, self.status = code, self.STATUS[code]


@dataclass(frozen=True)
class Metric:
    """`at`: milliseconds since 1970."""

    name: str
    value: float
    at: int
    step: int


@dataclass(frozen=True)
class Record:
    """What one request adds to a run."""

    metrics: tuple[Metric, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


def wrong(sentence: str) -> Refused:
    return Refused("INVALID_PARAMETER_VALUE", sentence)


def text(body: Mapping[str, Any], key: str, most: int, *, default: str | None = None) -> str:
    """Returns a text of at most `most` characters. Raises Refused; also if it is missing and has no default."""
    value = body.get(key, default)
    if value is None:
        raise wrong(f"“{key}” is missing.")
    if not isinstance(value, str):
        raise wrong(f"“{key}” has to be a text.")
    if len(value) > most:
        raise wrong(f"“{key}” has at most {most:,} characters.")
    if "\0" in value:
        raise wrong(f"“{key}” contains a NUL character.")
    return value


def whole(body: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = body.get(key, default)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong(f"“{key}” has to be a whole number.") from None
    if abs(number) > _WHOLE:
        raise wrong(f"“{key}” is too large.")
    return number


def metric_of(body: Mapping[str, Any], now: int) -> Metric:
    name = _name(body)
    try:
        value = float(body["value"])
    except (KeyError, TypeError, ValueError):
        raise wrong(f"The value of metric “{name}” has to be a number.") from None
    return Metric(name, value, whole(body, "timestamp", now), whole(body, "step"))


def pair_of(body: Mapping[str, Any], most: int) -> tuple[str, str]:
    """Returns the name and value of a parameter or tag."""
    return _name(body), text(body, "value", most, default="")


def record_of(body: Mapping[str, Any], now: int) -> Record:
    """Returns the content of a log-batch request."""
    metrics = [metric_of(each, now) for each in _each(body, "metrics", MAX_METRICS)]
    params = dict(pair_of(each, MAX_PARAM) for each in _each(body, "params", MAX_PARAMS))
    tags = dict(pair_of(each, MAX_TAG) for each in _each(body, "tags", MAX_TAGS))
    return Record(tuple(metrics), params, tags)


def tags_of(body: Mapping[str, Any]) -> dict[str, str]:
    return dict(pair_of(each, MAX_TAG) for each in _each(body, "tags", MAX_TAGS))


def number_out(value: float) -> float | str:
    """Returns a number as JSON of protocol buffers writes it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _name(body: Mapping[str, Any]) -> str:
    name = text(body, "key", MAX_NAME)
    if not name:
        raise wrong("“key” is empty.")
    return name


def _each(body: Mapping[str, Any], key: str, most: int) -> list[Mapping[str, Any]]:
    found = body.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise wrong(f"“{key}” has to be a list of objects.")
    if len(found) > most:
        raise wrong(f"A request has at most {most} {key}.")
    return found
