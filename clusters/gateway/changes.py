"""Notifies routing threads (runs/routing.py) in the same process when endpoints change."""

from __future__ import annotations

import threading

_listeners: list[threading.Event] = []


def listen() -> threading.Event:
    """Returns a new event that is set on every change."""
    heard = threading.Event()
    _listeners.append(heard)
    return heard


def routes_changed() -> None:
    for each in _listeners:
        each.set()
