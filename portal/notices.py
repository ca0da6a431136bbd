"""Mail to the notification addresses of an appcode. The portal has no outbox of its own: the app that keeps one offers it.

Called inside the transaction of what is told about, so that mail is sent about exactly what was committed.
"""

from __future__ import annotations

from collections.abc import Callable

# key (what it is about, once for ever), id of the appcode, subject, text
Teller = Callable[[str, int, str, str], None]

_tellers: list[Teller] = []


def send_with(teller: Teller) -> None:
    """Said by the app that keeps the outbox, when it starts."""
    _tellers[:] = [teller]


def tell(key: str, appcode_id: int, subject: str, text: str) -> None:
    for teller in _tellers:
        teller(key, appcode_id, subject, text)
