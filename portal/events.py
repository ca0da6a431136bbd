"""The Event log: one line for every action of a person and every report of a cloud, written with the change itself.

Call `record` inside the transaction of the change, so that neither exists without the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection, transaction

from portal import wakeups
from portal.models import Event, User


def entry(
    verb: str, *, actor: User | None, object: str = "", appcode: str = "", message: str = "", **data: Any
) -> Event:
    """An unsaved event for `record_all`. `actor` None is the portal itself. Never pass secrets in `data`."""
    name = actor.username if actor else "portal"
    return Event(verb=verb, actor=actor, actor_name=name, object=object, appcode=appcode, message=message, data=data)


def record(
    verb: str, *, actor: User | None, object: str = "", appcode: str = "", message: str = "", **data: Any
) -> Event:
    """Appends an event. Raises RuntimeError outside a transaction: an event must not exist without its change."""
    [event] = record_all([entry(verb, actor=actor, object=object, appcode=appcode, message=message, **data)])
    return event


def record_all(entries: Sequence[Event]) -> list[Event]:
    """Appends events in one statement, as `record` does. A trigger creates their webhook deliveries (portal/sql/rules.sql)."""
    if not connection.in_atomic_block:
        raise RuntimeError("events.record must run inside the transaction of the change it tells about")
    if entries:
        transaction.on_commit(wakeups.wake_webhooks)
    return Event.objects.bulk_create(entries)
