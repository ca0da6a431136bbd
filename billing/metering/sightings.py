"""Validates sightings: pure checks, and their text form for the quarantine.

A sighting with impossible or unstorable values must neither block its batch nor get lost: it is stored as it came
(`raw`), and a later version that understands more can `parse` it again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from operator import attrgetter
from typing import Any

from billing.metering.segments import PHASE_ORDER, PodState

PHASES = frozenset(PHASE_ORDER) | {"Unknown"}
LONGEST = {"uid": 80, "cloud": 40, "consumer": 40, "phase": 12, "gpu_model": 60}
# More than any machine has, and about what an integer column can hold.
MOST = {"gpus": 1024, "cpu_milli": 10**8, "memory_mb": 2**30, "storage_mb": 2**31 - 1}
MAX_LABELS = 4096
TIMES = ("scheduled_at", "started_at", "finished_at", "seen_at")
EARLIEST, LATEST = dt.datetime(2000, 1, 1, tzinfo=dt.UTC), dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
FIELDS = {field.name for field in dataclasses.fields(PodState)}


class NotUnderstood(ValueError):
    """States in one sentence what is wrong with a sighting."""


def problem(state: PodState) -> str:
    """Why this cannot be metered, or "". The caller checks that the appcode exists."""
    return "" if _ordinary(state) else _texts(state) or _labels(state) or _amounts(state) or _times(state)


_times_of = attrgetter(*TIMES)


def raw(state: PodState) -> str:
    """All of it as JSON; states that differ only in `seen_at` have equal texts."""
    facts = {name: value for name, value in dataclasses.asdict(state).items() if name != "seen_at"}
    return json.dumps(facts, sort_keys=True, default=str)


def parse(text: str) -> PodState:
    """The inverse of `raw`; accepts only what can be metered. Raises NotUnderstood."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise NotUnderstood("It is no JSON.") from error
    if not isinstance(found, dict):
        raise NotUnderstood("It is no JSON object.")
    if unknown := sorted(found.keys() - FIELDS):
        raise NotUnderstood(f"It has unknown fields: {', '.join(unknown)[:200]}.")
    try:
        state = PodState(**{name: _read(name, value) for name, value in found.items()})
    except (TypeError, ValueError) as error:
        raise NotUnderstood(f"It is no sighting of a pod: {error}"[:300]) from error
    if reason := problem(state):
        raise NotUnderstood(reason)
    return state


def _read(name: str, value: Any) -> Any:
    if name in TIMES and value is not None:
        return dt.datetime.fromisoformat(value)
    return value


def _ordinary(state: PodState) -> bool:
    """A fast check that accepts nearly every valid sighting; the rest gets the detailed checks."""
    try:
        texts: list[Any] = [*state.labels, *state.labels.values()]
        return (
            state.phase in PHASES
            and 0 < len(state.uid) <= 80
            and len(state.cloud) <= 40
            and len(state.consumer) <= 40
            and len(state.gpu_model) <= 60
            and f"{state.uid}{state.cloud}{state.consumer}{state.gpu_model}".isprintable()
            and type(state.appcode_id) is type(state.gpus) is type(state.cpu_milli) is type(state.memory_mb) is int
            and type(state.storage_mb) is int
            and 0 <= state.gpus <= 1024
            and 0 <= state.cpu_milli <= MOST["cpu_milli"]
            and 0 <= state.memory_mb <= MOST["memory_mb"]
            and 0 <= state.storage_mb <= MOST["storage_mb"]
            and type(state.estimated) is bool
            and len(joined := "".join(texts)) < 400
            and joined.isprintable()
            and all(moment is None or EARLIEST <= moment <= LATEST for moment in _times_of(state))
        )
    except (TypeError, AttributeError):
        return False


def _texts(state: PodState) -> str:
    for name, longest in LONGEST.items():
        text = getattr(state, name)
        if not isinstance(text, str):
            return f"{name} is no text."
        if len(text) > longest:
            return f"{name} is longer than {longest} characters."
        if not _storable(text):
            return f"{name} has characters that cannot be stored."
    if not state.uid:
        return "It has no uid."
    if state.phase not in PHASES:
        return f"The phase “{state.phase}” is unknown."
    if type(state.appcode_id) is not int:
        return "appcode_id is no number."
    return "" if isinstance(state.estimated, bool) else "estimated is neither true nor false."


def _labels(state: PodState) -> str:
    try:
        text = json.dumps(dict(state.labels))
    except (TypeError, ValueError):
        return "The labels are no JSON object."
    if len(text) > MAX_LABELS:
        return f"The labels are longer than {MAX_LABELS} characters."
    for name, value in state.labels.items():
        if not isinstance(name, str) or type(value) not in (str, int):
            return "The labels are not all texts or whole numbers."
        if not _storable(name) or not _storable(str(value)):
            return "The labels have characters that cannot be stored."
    return ""


def _amounts(state: PodState) -> str:
    for name, most in MOST.items():
        amount = getattr(state, name)
        if type(amount) is not int or not 0 <= amount <= most:
            return f"{name} is not a whole number from 0 to {most:,}."
    return ""


def _times(state: PodState) -> str:
    for name in TIMES:
        moment = getattr(state, name)
        if moment is None:
            continue
        if not isinstance(moment, dt.datetime) or moment.tzinfo is None:
            return f"{name} is no time with a zone."
        if not EARLIEST <= moment <= LATEST:
            return f"{name} lies before 2000 or after 2100."
    return ""


def _storable(text: str) -> bool:
    """PostgreSQL texts cannot hold NUL or half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
