"""Wake-ups of the loops of billing: hints that there may be work."""

from __future__ import annotations

from portal.wakeups import send


def wake_mail() -> None:
    """Asks for mail to be sent soon. Called after a commit."""
    send("billing.tasks.send_mail")


def wake_closing() -> None:
    """Asks for months that are due to be closed soon."""
    send("billing.tasks.close_months")
