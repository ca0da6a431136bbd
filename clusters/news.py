"""What pages say of the clouds themselves: how old the news are, and what to know of the machines. Reads what the controller
wrote; asks no cloud.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from clusters.models import CloudState
from clusters.places import titles

# A cloud that is well tells something, if only that nothing happened, every 5 s.
SILENT = dt.timedelta(seconds=10)
UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def silence(state: CloudState | None, title: str, now: dt.datetime) -> str:
    """What is going on while a cloud is out of reach, in a sentence; "" while it answers or was never heard."""
    if state is None or state.heard_at is None or now - state.heard_at <= SILENT:
        return ""
    ago = age(now - state.heard_at)
    if not state.trouble:
        return f"The controller has told nothing of {title} for {ago}; what you see is from then."
    return f"{_capital(title)} has not answered for {ago}; what you see is from then."


def silence_of(cloud: str, title: str, now: dt.datetime) -> str:
    """As `silence`. One query."""
    return silence(CloudState.objects.defer("capacity").filter(name=cloud).first(), title, now)


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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
