"""Loopback ports that PORTAL_OPEN_NETWORKS opens during tests, for test servers that the portal connects to.

The list is made before Django reads its settings. The processes of `pytest -n` inherit it, and each uses its own part.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator

from portal.network.outgoing import SETTING
from portal.up.services import free_port

COUNT = 64
# No server listens at these.
AWAY = ("127.0.0.1:1", "127.0.0.1:9", "127.0.0.9:2049")
_ports: Iterator[int] | None = None


def setting(*more: int) -> str:
    """Value of the setting for a test run; `more` are ports already in use."""
    chosen = set[int]()
    while len(chosen) < COUNT:
        chosen.add(free_port())
    return ",".join([*AWAY, *(f"127.0.0.1:{port}" for port in (*more, *sorted(chosen)))])


def free() -> int:
    """Returns an open port that is not in use."""
    global _ports
    if _ports is None:
        named = [int(each.rpartition(":")[2]) for each in os.environ[SETTING].split(",")]
        count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        _ports = itertools.cycle(named[-COUNT:][number::count])
    for port in itertools.islice(_ports, COUNT):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("all ports that are open for servers of tests are in use")
