"""Whether this installation is a demonstration, as a whole, or real. `manage.py seed_demo` decides it before there is anybody, by
an event that the database lets nobody change or remove: a demonstration ends with its database, in a new data folder.
"""

from __future__ import annotations

from portal.errors import Conflict
from portal.events import record
from portal.models import Appcode, Event, User

MADE = "demo.seeded"

# What this process knows for good.
_known: bool | None = None


def is_demonstration() -> bool:
    """Asks the database until it is decided: where there are people and it was not said before them, it never will be."""
    global _known
    if _known is None:
        made = Event.objects.filter(verb=MADE).exists()
        if made or User.objects.exists():
            _known = made
        return made
    return _known


def said() -> str:
    """What every page and invoice of a demonstration says; "" in a real portal."""
    return "Demonstration: history is generated" if is_demonstration() else ""


def declare() -> None:
    """To be called first in the transaction that makes a demonstration. Raises Conflict for a portal that is in use."""
    if User.objects.exists() or Appcode.objects.exists():
        raise Conflict("This portal is in use already; a demonstration needs an empty one.")
    record(MADE, actor=None, message="This portal is a demonstration; its history is generated.")
