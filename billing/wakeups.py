"""Wake-ups for billing's loops: hints that there may be work."""

from __future__ import annotations

from portal.wakeups import send


def wake_mail() -> None:
    """Schedules sending mail soon. Call it after the commit."""
    send("billing.tasks.send_mail")


def wake_closing() -> None:
    """Schedules closing due months soon."""
    send("billing.tasks.close_months")
