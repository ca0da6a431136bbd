"""Unauthenticated requests to every port on which `manage.py up` listens: refusals, sign-in and health checks.

A new port has no row here and therefore fails, whichever program opens it.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import psutil

from tests.running import Portal

# Ports that only exist during runs: what a task serves, and the proxy through which rclone moves data.
OF_RUNS = {"endpoint": {0, 403}, "mover": {0}}
SCRIPTS = {"network/holder.py": "endpoint", "data/storage.py": "mover"}
# Statuses that each port returns without sign-in or proof of identity; 0: it closes the connection without an answer.
REFUSES = {
    "gateway": {302, 401, 404},  # 302: to the sign-in page
    "web": {403},
    "router": {404},
    "storage": {403},
    "storage-door": {400},
    "storage-store": {0},
    **OF_RUNS,
}
HEALTH = {"web", "gateway"}
PATHS = (
    "/",
    "/healthz",
    "/metrics",
    "/api/v1/appcodes",
    "/api/rawdata",
    "/dashboard/",
    "/debug/pprof/",
    "/cluster/status",
    "/admin/",
)
NOTHING = {b"", b"HTTP/1.0 400", b"HTTP/1.1 400", b"\x05\xff"}
# First bytes of Redis, PostgreSQL, TLS and SOCKS clients (the last with a password), and the answers allowed besides NOTHING:
# the gateway accepts TLS (S); SOCKS names its authentication method and then refuses.
OTHERS: dict[bytes, set[bytes]] = {
    b"*1\r\n$4\r\nINFO\r\n": set(),
    b"\0\0\0\x08\x04\xd2\x16\x2f": {b"S"},
    b"\x16\x03\x01\0\0": set(),
    b"\x05\x01\0\x05\x01\0\x01\x7f\0\0\x01\0\x50": set(),
    b"\x05\x01\x02\x01\x06rclone\x01x\x05\x01\0\x01\x7f\0\0\x01\0\x50": {b"\x05\x02", b"\x05\x02\x01\x01"},
}


def listening(portal: Portal) -> Iterator[tuple[str, str, int]]:
    """Yields name, address and port of each socket of the portal's programs in this machine's network namespace."""
    known = {port: name for name, port in json.loads((portal.data / "ports.json").read_text()).items()}
    known[portal.port] = "gateway"
    for each in psutil.net_connections("inet"):
        with contextlib.suppress(psutil.Error):
            if each.status not in (psutil.CONN_LISTEN, psutil.CONN_NONE) or not each.pid:
                continue
            if not portal.owns(psutil.Process(each.pid)):
                continue
            line = " ".join(psutil.Process(each.pid).cmdline())
            of_run = next((name for script, name in SCRIPTS.items() if script in line), "?")
            yield known.get(each.laddr.port, of_run), each.laddr.ip, each.laddr.port


def said(address: str, port: int, data: bytes, *, last: bool = False) -> bytes:
    """Returns the whole answer, or what arrived before the server disconnected or ended, as the proxy of a run may."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=30) as client:
        client.sendall(data)
        if last:
            client.shutdown(socket.SHUT_WR)
        while piece := client.recv(65536):
            answer += piece
    return answer


def test_no_port_gives_anything_to_who_proves_nothing(portal_up: Portal) -> None:
    found = list(listening(portal_up))
    assert {name for name, _, _ in found} - OF_RUNS.keys() == REFUSES.keys() - OF_RUNS.keys(), found
    for name, address, port in found:
        assert address in ("127.0.0.1", "::1"), found
        for path in PATHS:
            forged = "X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\nAuthorization: Bearer x"
            request = f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n{forged}\r\nConnection: close\r\n\r\n"
            head, _, body = said(address, port, request.encode()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 ") or head in NOTHING, (name, head)
            status = int(head.split()[1]) if len(head) > 2 else 0
            if path == "/healthz" and name in HEALTH:
                assert (status, b"ok" in body, len(body) < 20) == (200, True, True), (name, body)
            else:
                assert status in REFUSES[name], (name, path, head, body)
                assert status != 302 or b"\r\nLocation: /accounts/login/" in head, head
        for begin, answers in OTHERS.items():
            answer = said(address, port, begin, last=True)
            assert answer[:12] in NOTHING | answers, (name, begin, answer)
