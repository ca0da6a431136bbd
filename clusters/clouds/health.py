"""What pages say of the clouds themselves: how old the news are, and what to know of the machines. Reads what the controller
wrote; asks no cloud.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

from clusters.clouds.placement import title_of, titles
from clusters.models import CloudState, Run

# A cloud that is well tells something, if only that nothing happened, every 5 s.
SILENT = dt.timedelta(seconds=10)
UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def silence(state: CloudState | None, title: str, now: dt.datetime) -> str:
    """What is going on while a cloud is out of reach, in a sentence; "" while it answers or was never heard."""
    if state is None or state.heard_at is None or not _is_silent(state, now):
        return ""
    ago = age(now - state.heard_at)
    if not state.trouble:
        return f"The controller has told nothing of {title} for {ago}; what you see is from then."
    return f"{_capital(title)} has not answered for {ago}; what you see is from then."


def silence_of(run: Run, now: dt.datetime) -> str:
    """Why what is shown of a run may be old, in a sentence; "" while it is not, or all is over. One query, mostly."""
    if run.is_terminal:
        return ""
    state = CloudState.objects.defer("capacity").filter(name=run.cloud).first()
    return silence(state, title_of(run.cloud), now) if state and _is_silent(state, now) else ""


def silences(now: dt.datetime) -> Mapping[str, str]:
    """As `silence`, of every cloud that is silent. One query, mostly. It means nothing for clouds where nothing lives."""
    return silences_of(CloudState.objects.defer("capacity"), now)


def silences_of(states: Iterable[CloudState], now: dt.datetime) -> Mapping[str, str]:
    silent = [state for state in states if _is_silent(state, now)]
    names = titles() if silent else {}
    return {state.name: silence(state, names.get(state.name, state.name), now) for state in silent}


def notes(cloud: str = "") -> tuple[str, ...]:
    """What a user must know of the machines of one cloud, or of all. Two queries at most."""
    states = CloudState.objects.defer("capacity").order_by("name")
    return notes_of(states.filter(name=cloud) if cloud else states)


def notes_of(states: Iterable[CloudState]) -> tuple[str, ...]:
    """With the title of the cloud before each sentence where there are several. One query then."""
    found = list(states)
    if len(found) < 2:
        return tuple(note for state in found for note in state.notes)
    names = titles()
    return tuple(f"{_capital(names.get(state.name, state.name))}: {note}" for state in found for note in state.notes)


def age(span: dt.timedelta) -> str:
    """As people say it, roughly: 12 s, 5 minutes, 2 days."""
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
