"""That what gateways are to route has changed: heard by the threads that tell them, or look at them (runs/routing.py), in the
same process."""

from __future__ import annotations

import threading

_listeners: list[threading.Event] = []


def listen() -> threading.Event:
    """An event of one's own, which is set whenever something has changed."""
    heard = threading.Event()
    _listeners.append(heard)
    return heard


def routes_changed() -> None:
    for each in _listeners:
        each.set()
