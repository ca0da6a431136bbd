"""Which addresses the portal may connect to on behalf of a person: what datastores and webhooks have in common. Pure.

Whatever a person may name could be something that only the portal's machine can reach. So connections are judged by the
address that they really have, and one address has several spellings.
"""

from __future__ import annotations

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def plain(address: str) -> Address:
    """The address, or the IPv4 one that an IPv6 one stands for (::ffff:a.b.c.d, NAT64). A zone (%eth0) is ignored."""
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            return ip.ipv4_mapped
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            return ipaddress.IPv4Address(ip.packed[-4:])
    return ip


def literal(host: str) -> str:
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
