"""The public address of the portal's own object storage."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings

# For messages when it listens only on the portal's own machine.
CLOSED_TO_PODS = (
    "An administrator can open it to pods: PORTAL_STORAGE_ADDRESS names an address of that machine which they reach."
)


def is_own(server: str) -> bool:
    """True if the URL is the portal's own object storage: compares scheme, name and port, in any spelling."""
    own: str = settings.STORAGE["url"]
    return bool(own) and _door(server) == _door(own)


def _door(server: str) -> tuple[str, str, int] | None:
    try:
        url = urlsplit(server)
        return url.scheme, (url.hostname or "").rstrip("."), url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        return None
