"""rclone's network access: a proxy (SOCKS 5, RFC 1928 and 1929) that connects only to permitted addresses.

Users who name an S3 server can change its DNS record before a run begins, or answer with a redirect to an address that only this
machine reaches; its content would become input. So rclone makes no connections: portal/network/outgoing.py resolves names here,
checks each address and connects.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  what resolves names loads it, which who has no privileges left may not be able to
import hmac
import os
import secrets
import signal
import socket
import threading

from clusters.clouds.drivers.local.network.preload import outgoing
from clusters.clouds.drivers.local.task import sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONNECT_SECONDS = 10.0
PIECE = 256 * 1024
_VERSION, _PASSWORD, _CONNECT = 5, 2, 1
DONE, NOT_ALLOWED, UNREACHABLE, REFUSED, NOT_SUPPORTED = 0, 2, 4, 5, 7


@contextlib.contextmanager
def proxy(opened: Sequence[str], uid: int | None) -> Iterator[str]:
    """Yields the proxy's URL, which contains a password. The proxy is a separate process without privileges that ends with ours.

    `opened`: PORTAL_OPEN_NETWORKS.
    """
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    word = secrets.token_hex(16)
    child = os.fork()
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)
            # Closes inherited descriptors, above all the lock that signals that the parent lives.
            os.closerange(3, server.fileno())
            os.closerange(server.fileno() + 1, 1 << 16)
            sandbox.drop_privileges(uid)
            sandbox.die_with_parent()
            _serve(server, word.encode(), outgoing.Rules.read(opened))
        except Exception as error:  # noqa: BLE001  rclone will only say that it is refused, so the log says why
            os.write(2, f"The way of rclone to the network has ended: {error!r}\n".encode())
        finally:
            os._exit(1)
    port = server.getsockname()[1]
    server.close()
    try:
        yield f"socks5://rclone:{word}@127.0.0.1:{port}"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(server: socket.socket, word: bytes, rules: outgoing.Rules) -> None:
    while True:
        client, _ = server.accept()
        threading.Thread(target=_pass_on, args=(client, word, rules), daemon=True).start()


def _pass_on(client: socket.socket, word: bytes, rules: outgoing.Rules) -> None:
    with client, contextlib.suppress(OSError, EOFError, UnicodeError):
        client.settimeout(CONNECT_SECONDS)
        host, port = _asked(client, word)
        reply, server = _connected(host, port, rules) if host else (NOT_SUPPORTED, None)
        client.sendall(bytes((_VERSION, reply, 0, 1)) + bytes(6))
        if server is not None:
            with server:
                for each in (client, server):
                    each.settimeout(None)
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()


def _asked(client: socket.socket, word: bytes) -> tuple[str, int]:
    """Returns host and port of a request; host "" for anything but CONNECT. Raises EOFError for a wrong password."""
    _, count = _read(client, 2)
    if _PASSWORD not in _read(client, count):
        client.sendall(bytes((_VERSION, 0xFF)))
        raise EOFError
    client.sendall(bytes((_VERSION, _PASSWORD)))
    _, length = _read(client, 2)
    _read(client, length)
    right = hmac.compare_digest(_read(client, _read(client, 1)[0]), word)
    client.sendall(bytes((1, 0 if right else 1)))
    if not right:
        raise EOFError
    _, command, _, kind = _read(client, 4)
    if kind == 3:
        host = _read(client, _read(client, 1)[0]).decode("ascii")
    else:
        host = socket.inet_ntop(
            *((socket.AF_INET, _read(client, 4)) if kind == 1 else (socket.AF_INET6, _read(client, 16)))
        )
    port = int.from_bytes(_read(client, 2), "big")
    return (host if command == _CONNECT else ""), port


def _connected(host: str, port: int, rules: outgoing.Rules) -> tuple[int, socket.socket | None]:
    """Returns the reply code and the connection."""
    try:
        return DONE, outgoing.connect(host, port, rules, CONNECT_SECONDS)
    except outgoing.Closed:
        return NOT_ALLOWED, None
    except ConnectionRefusedError:
        return REFUSED, None
    except OSError:
        return UNREACHABLE, None


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until one side ends, then shuts the other down."""
    try:
        while piece := source.recv(PIECE):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
