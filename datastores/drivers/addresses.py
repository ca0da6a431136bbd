"""Which addresses the portal may connect to on behalf of a person.

A datastore names any server, and the portal shows what that server answers: without a limit, a person could read what
only the portal's machine can reach, above all the cloud provider's metadata service. So every connection is judged by the
address that it really has, after name resolution; a name that changes its address between two look-ups gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket

from django.conf import settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Denied(Exception):
    """The text is a sentence for people."""


def check(address: str) -> None:
    """Raises Denied for an address that no datastore may have."""
    ip = _plain(ipaddress.ip_address(address.split("%", 1)[0]))
    if ip.is_loopback:
        if not settings.SINGLE_MACHINE:
            raise Denied("This address is the portal's own machine; datastores lie elsewhere.")
        return
    for network in settings.DENIED_NETWORKS:
        if ip in ipaddress.ip_network(network):
            raise Denied(f"An administrator does not allow addresses in {network}.")


def check_literal(host: str) -> None:
    """Raises Denied when `host` is itself an address, or a name of loopback, that is not allowed. Resolves nothing."""
    if address := _literal(host):
        check(address)


def is_loopback(host: str) -> bool:
    """Whether `host` is loopback by its address or name, which only the portal's own machine reaches. Resolves nothing."""
    address = _literal(host)
    return bool(address) and _plain(ipaddress.ip_address(address.split("%", 1)[0])).is_loopback


def _literal(host: str) -> str:
    """The address that `host` itself says, "" for a name that has to be resolved."""
    host = host.strip("[]").lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    try:
        # Also in the old spellings that the system's resolver takes, such as 2130706433 and 0x7f.1.
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        pass
    try:
        ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return ""
    return host


def check_peer(connection: socket.socket) -> None:
    """Raises Denied, and closes the connection, when its other end has an address that is not allowed."""
    try:
        check(str(connection.getpeername()[0]))
    except Denied:
        connection.close()
        raise


def _plain(ip: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for (::ffff:a.b.c.d, NAT64), otherwise the same."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            return ip.ipv4_mapped
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            return ipaddress.IPv4Address(ip.packed[-4:])
    return ip
