"""Which addresses the portal may connect to on behalf of a person: what datastores and webhooks have in common. Pure.

Whatever a person may name could be something that only the portal's machine can reach. So connections are judged by the
address that they really have, and one address has several spellings.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Link-local addresses (there the metadata services of cloud providers answer), and what is no machine's address.
NEVER = (
    "0.0.0.0/8", "169.254.0.0/16", "100.100.100.200/32", "224.0.0.0/3", "::/128", "fe80::/10", "fd00:ec2::254/128", "ff00::/8",
)  # fmt: skip


def why_closed(ip: Address, denied: Iterable[str], allowed: Iterable[str] = ()) -> str:
    """Why nobody's data may go to `ip`, for people, or "". Of an open and a closed network around it the smaller one counts."""
    opened, closed = smallest(ip, allowed), smallest(ip, denied)
    if closed and (opened is None or opened.prefixlen < closed.prefixlen):
        return f"an administrator does not allow addresses in {closed}"
    if opened is None and hides(ip):
        return "it stands for another address, which has to be given itself"
    return ""


def smallest(ip: Address, networks: Iterable[str]) -> Network | None:
    """The one of `networks` that says most about `ip`."""
    around = [network for network in map(ipaddress.ip_network, networks) if ip in network]
    return max(around, key=lambda network: network.prefixlen, default=None)


def hides(ip: Address) -> bool:
    """Whether an IPv6 address hides an IPv4 one that nobody has judged (6to4, Teredo, IPv4-compatible, local NAT64)."""
    return isinstance(ip, ipaddress.IPv6Address) and not ip.is_loopback and any(ip in network for network in _HIDING)


_HIDING = tuple(ipaddress.IPv6Network(each) for each in ("2002::/16", "2001::/32", "::/96", "64:ff9b:1::/48"))


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
