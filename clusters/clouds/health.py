"""What pages show about clouds: the age of their state, and notes on their machines. Reads rows that the controller wrote; calls
no cloud."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

from clusters.clouds.models import CloudState
from clusters.clouds.placement import title_of, titles
from clusters.runs.models import Run

# A healthy cloud reports at least every 5 s.
SILENT = dt.timedelta(seconds=10)
UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def silence(state: CloudState | None, title: str, now: dt.datetime) -> str:
    """Returns a sentence while a cloud is unreachable; "" while it answers, or if it never has."""
    if state is None or state.heard_at is None or not _is_silent(state, now):
        return ""
    ago = age(now - state.heard_at)
    if not state.trouble:
        return f"The controller has told nothing of {title} for {ago}; what you see is from then."
    return f"{_capital(title)} has not answered for {ago}; what you see is from then."


def silence_of(run: Run, now: dt.datetime) -> str:
    """Returns a sentence if a run's displayed state may be old; "" if it is current or final. Usually one query."""
    if run.is_terminal:
        return ""
    state = CloudState.objects.defer("capacity").filter(name=run.cloud).first()
    return silence(state, title_of(run.cloud), now) if state and _is_silent(state, now) else ""


def silences(now: dt.datetime) -> Mapping[str, str]:
    """Returns `silence` for every silent cloud. Usually one query. Meaningless for clouds without living runs."""
    return silences_of(CloudState.objects.defer("capacity"), now)


def silences_of(states: Iterable[CloudState], now: dt.datetime) -> Mapping[str, str]:
    silent = [state for state in states if _is_silent(state, now)]
    names = titles() if silent else {}
    return {state.name: silence(state, names.get(state.name, state.name), now) for state in silent}


def notes(cloud: str = "") -> tuple[str, ...]:
    """Returns what users must know about the machines of one cloud, or of all. At most two queries."""
    states = CloudState.objects.defer("capacity").order_by("name")
    return notes_of(states.filter(name=cloud) if cloud else states)


def notes_of(states: Iterable[CloudState]) -> tuple[str, ...]:
    """Returns notes, each with its cloud's title if there are several clouds. One query then."""
    found = list(states)
    if len(found) < 2:
        return tuple(note for state in found for note in state.notes)
    names = titles()
    return tuple(f"{_capital(names.get(state.name, state.name))}: {note}" for state in found for note in state.notes)


def age(span: dt.timedelta) -> str:
    """Returns a rounded duration: 12 s, 5 minutes, 2 days."""
    seconds = max(0, int(span.total_seconds()))
    for size, unit in UNITS:
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return f"{seconds} s"


def _is_silent(state: CloudState, now: dt.datetime) -> bool:
    return state.heard_at is not None and now - state.heard_at > SILENT


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
