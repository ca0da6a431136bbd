"""Which addresses the portal may connect to on behalf of a person.

A datastore names any server, and the portal shows what that server answers: without a limit, a person could read what
only the portal's machine can reach, above all the cloud provider's metadata service. So every connection is judged by the
address that it really has, after name resolution; a name that changes its address between two look-ups gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket

from django.conf import settings

from portal.addresses import literal, plain


class Denied(Exception):
    """The text is a sentence for people."""


def check(address: str) -> None:
    """Raises Denied for an address that no datastore may have."""
    ip = plain(address)
    if ip.is_loopback:
        if not settings.SINGLE_MACHINE:
            raise Denied("This address is the portal's own machine; datastores lie elsewhere.")
        return
    for network in settings.DENIED_NETWORKS:
        if ip in ipaddress.ip_network(network):
            raise Denied(f"An administrator does not allow addresses in {network}.")


def check_literal(host: str) -> None:
    """Raises Denied when `host` is itself an address, or a name of loopback, that is not allowed. Resolves nothing."""
    if address := literal(host):
        check(address)


def is_loopback(host: str) -> bool:
    """Whether `host` is loopback by its address or name, which only the portal's own machine reaches. Resolves nothing."""
    address = literal(host)
    return bool(address) and plain(address).is_loopback


def check_peer(connection: socket.socket) -> None:
    """Raises Denied, and closes the connection, when its other end has an address that is not allowed."""
    try:
        check(str(connection.getpeername()[0]))
    except Denied:
        connection.close()
        raise
