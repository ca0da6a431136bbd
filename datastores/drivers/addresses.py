"""Which addresses the portal may connect to on behalf of a person.

A datastore names any server, and the portal shows what that server answers: without a limit, a person could read what
only the portal's machine can reach, above all the cloud provider's metadata service. So every connection is judged by the
address that it really has, after name resolution; a name that changes its address between two look-ups gains nothing.
"""

from __future__ import annotations

import socket

from django.conf import settings

from portal.addresses import literal, plain, why_closed


class Denied(Exception):
    """The text is a sentence for people."""


def check(address: str) -> None:
    """Raises Denied for an address that no datastore may have."""
    ip = plain(address)
    if ip.is_loopback:
        if not settings.SINGLE_MACHINE:
            raise Denied("This address is the portal's own machine; datastores lie elsewhere.")
        return
    if why := why_closed(ip, settings.DENIED_NETWORKS):
        raise Denied(f"The address {ip} is closed: {why}.")


def check_literal(host: str) -> None:
    """Raises Denied when `host` is itself an address, or a name of loopback, that is not allowed. Resolves nothing."""
    if address := literal(host):
        check(address)


def is_loopback(host: str) -> bool:
    """Whether `host` is loopback by its address or name, which only the portal's own machine reaches. Resolves nothing."""
    address = literal(host)
    return bool(address) and plain(address).is_loopback


def check_host(host: str) -> None:
    """Raises Denied when `host`, or an address that its name has now, is not allowed: before a connection, which would tell
    whether somebody listens there."""
    check_literal(host)
    for address in _found(host):
        check(address)


def leads_here(host: str) -> bool:
    """Whether `host` is loopback by its address, or by one that its name has."""
    return is_loopback(host) or any(plain(address).is_loopback for address in _found(host))


def _found(host: str) -> list[str]:
    """What the name stands for; nothing when it is not found, which whoever connects says better."""
    try:
        return [str(each[4][0]) for each in socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def check_peer(connection: socket.socket) -> None:
    """Raises Denied, and closes the connection, when its other end has an address that is not allowed."""
    try:
        check(str(connection.getpeername()[0]))
    except Denied:
        connection.close()
        raise
