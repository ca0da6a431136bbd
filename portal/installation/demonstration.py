"""Whether this installation is a demonstration or a real portal. `manage.py seed_demo` decides before there are any people, by
an event that the database protects from changes; a demonstration ends only with its database, by a new data folder."""

from __future__ import annotations

from portal.errors import Conflict
from portal.events import record
from portal.models import Appcode, Event, User

MADE = "demo.seeded"

# Cached for the life of the process.
_known: bool | None = None


def is_demonstration() -> bool:
    """Queries until it is decided: a portal with people and without the event is real for ever."""
    global _known
    if _known is None:
        made = Event.objects.filter(verb=MADE).exists()
        if made or User.objects.exists():
            _known = made
        return made
    return _known


def said() -> str:
    """The notice on every page and invoice of a demonstration; "" in a real portal."""
    return "Demonstration: history is generated" if is_demonstration() else ""


def declare() -> None:
    """Call it first in the transaction that creates a demonstration. Raises Conflict if the portal is in use."""
    if User.objects.exists() or Appcode.objects.exists():
        raise Conflict("This portal is in use already; a demonstration needs an empty one.")
    record(MADE, actor=None, message="This portal is a demonstration; its history is generated.")
