"""Which folders of which NFS servers datastores may name: the list in `PORTAL_NFS_SERVERS`; none while it is empty.

A node mounts NFS as itself, and every task is the same user there, so a server trusts every user who may name it. That
is an administrator's decision:

    nas.example.com:/export/ml          one of its folders, and what lies below
    10.20.0.0/16:/tenants/{appcode}     on each of these addresses one folder per appcode
    *.nas.example.com                   everything that servers of these names export
    *                                   everything that nodes reach
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_ENTRY = re.compile(r"(?P<server>\[[0-9A-Fa-f:./]+\]|[^\[\]:/\s]+(?:/\d+)?)(?::(?P<path>/[^\s]*))?")


@dataclass(frozen=True)
class Export:
    """`path` has no trailing slash; "" is the whole server."""

    server: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.server}:{self.path}" if self.path else self.server

    def allows(self, server: str, path: str, appcode: str) -> bool:
        folder = self.path.replace("{appcode}", appcode)
        return self._has(_plain(server)) and (not folder or path == folder or path.startswith(f"{folder}/"))

    def _has(self, server: str) -> bool:
        wanted = _plain(self.server)
        try:
            return ipaddress.ip_address(server) in ipaddress.ip_network(wanted)
        except ValueError:
            # One of them is a name: compare names, without resolving them.
            return fnmatchcase(server, wanted)


@lru_cache(maxsize=8)
def parse(entries: tuple[str, ...]) -> tuple[Export, ...]:
    """Raises ImproperlyConfigured for an invalid entry."""
    found = []
    for entry in filter(None, map(str.strip, entries)):
        match = _ENTRY.fullmatch(entry)
        words = (match["path"] or "").split("/") if match else []
        if match is None or ".." in words or "." in words:
            raise ImproperlyConfigured(f"PORTAL_NFS_SERVERS: “{entry}” is not like nas.example.com:/export/ml.")
        found.append(Export(match["server"], "".join(f"/{word}" for word in words if word)))
    return tuple(found)


def allowed(appcode: str) -> Sequence[str]:
    """The list for users of an appcode, with its code filled in."""
    return [str(each).replace("{appcode}", appcode) for each in parse(tuple(settings.NFS_SERVERS))]


def why_not(server: str, path: str, appcode: str) -> str:
    """Why a datastore of `appcode` may not lie there, or ""."""
    if any(each.allows(server, path, appcode) for each in parse(tuple(settings.NFS_SERVERS))):
        return ""
    offered = ", ".join(allowed(appcode))
    if not offered:
        return "An administrator has not allowed any NFS server yet; ask them to (PORTAL_NFS_SERVERS)."
    return f"An administrator does not allow {server}:{path}; allowed here: {offered}."


def _plain(server: str) -> str:
    return server.strip("[]").lower().rstrip(".")
