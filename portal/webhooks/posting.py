"""Sends one message to one receiver: resolved once, checked, and sent to exactly the checked address.

The receiver is untrusted: its name may point into our network now or a moment later; it may never answer, or answer a
byte a second or without end. So portal/network/outgoing.py makes the connection, redirects are not followed, little is read,
and a watchdog ends slow requests. This module knows no rows.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse

from portal.network import outgoing
from portal.webhooks.specs import MAX_EXCERPT, Target

# Seconds for the connection, and from then on until the response.
CONNECT, ANSWER = 5.0, 10.0


@dataclass(frozen=True)
class Way:
    """Settings for sending. `authorities` is a file of additional trusted certificates, "" for none."""

    rules: outgoing.Rules = field(default_factory=outgoing.Rules)
    authorities: str = ""


@dataclass(frozen=True)
class Answer:
    """`status` is None without a response; `error` says why the delivery failed, "" if it succeeded. `after` is the
    receiver's requested wait in seconds."""

    status: int | None
    error: str
    excerpt: str = ""
    seconds: float = 0.0
    after: int = 0


def post(target: Target, content: bytes, headers: Mapping[str, str], way: Way) -> Answer:
    """Sends it once. Never raises for failures of the receiver or the network."""
    began = time.monotonic()
    late = threading.Event()
    try:
        answer = _post(target, content, headers, way, late)
    except outgoing.Closed as error:
        answer = Answer(None, str(error))
    except socket.gaierror as error:
        answer = Answer(None, f"The name {target.host} was not found: {error.strerror}.")
    except ssl.SSLCertVerificationError as error:
        answer = Answer(None, f"Its certificate is not accepted: {error.verify_message}.")
    except (OSError, HTTPException, ValueError) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            answer = Answer(None, f"No answer within {ANSWER:.0f} seconds.")
        else:
            answer = Answer(None, f"The connection failed: {str(error) or type(error).__name__}")
    said = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in answer.error)
    return Answer(answer.status, said[:300], answer.excerpt, time.monotonic() - began, answer.after)


def _post(target: Target, content: bytes, headers: Mapping[str, str], way: Way, late: threading.Event) -> Answer:
    with _connected(target, way.rules) as plain_socket, plain_socket.dup() as guard:
        watchdog = threading.Timer(ANSWER, _end, (guard, late))
        watchdog.daemon = True
        watchdog.start()
        try:
            plain_socket.settimeout(ANSWER)
            stream = (
                trust(way.authorities).wrap_socket(plain_socket, server_hostname=target.host)
                if target.secure
                else plain_socket
            )
            with stream:
                return _ask(stream, target, content, headers, late)
        finally:
            watchdog.cancel()


def _ask(
    stream: socket.socket, target: Target, content: bytes, headers: Mapping[str, str], late: threading.Event
) -> Answer:
    connection = HTTPConnection(target.host, target.port)
    # No reconnect: that would resolve the name again.
    connection.sock, connection.auto_open = stream, 0
    connection.request(
        "POST", target.path, body=content, headers={"host": target.name, "connection": "close", **headers}
    )
    response = connection.getresponse()
    if late.is_set():
        # The watchdog cut the response off, so its headers mean nothing.
        raise TimeoutError
    error = ""
    if 300 <= response.status < 400:
        error = f"It answered {response.status}: redirects are not followed. Give the URL where it leads to."
    elif not 200 <= response.status < 300:
        error = f"It answered {response.status} {response.reason}".strip()[:200] + "."
    return Answer(response.status, error, _excerpt(response), after=_seconds(response.headers.get("retry-after", "")))


def _excerpt(response: HTTPResponse) -> str:
    """The beginning of the response. It is only for people to read, so errors may cut it short."""
    found = b""
    try:
        while len(found) < MAX_EXCERPT and (part := response.read1(MAX_EXCERPT - len(found))):
            found += part
    except (OSError, HTTPException, ValueError):
        pass
    return found.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _seconds(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _connected(target: Target, rules: outgoing.Rules) -> socket.socket:
    try:
        return outgoing.connect(target.host, target.port, rules, CONNECT)
    except TimeoutError:
        raise OSError(f"{target.host} does not answer within {CONNECT:.0f} seconds.") from None


def _end(guard: socket.socket, late: threading.Event) -> None:
    """Shuts the connection down under its reader or writer. It uses a duplicate socket, because a TLS socket is not
    thread-safe."""
    late.set()
    try:
        guard.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It has ended already.
        return


@cache
def trust(authorities: str) -> ssl.SSLContext:
    """Cached: loading all authorities takes longer than most deliveries."""
    context = ssl.create_default_context()
    if authorities:
        context.load_verify_locations(cafile=authorities)
    return context
