"""Where the portal may connect on behalf of a user: the only place that decides this, by address and port, and that connects.

A user who names a server for a datastore, a repository or a webhook could name one that only the portal's machine
reaches: another tenant's program on loopback, a database, a cloud's metadata service. So `connect` resolves a name
once, judges every address before connecting to any, and connects to a judged address. A refusal is the same whether the
port is open or not, and DNS rebinding gains nothing.

- Public addresses are open.
- The portal's own machine is closed by all its addresses, except for single ports that an administrator (or
  `manage.py up`, for the portal's object storage) names as HOST:PORT.
- Private networks are closed until an administrator names them.
- Link-local, metadata, multicast and unspecified addresses, and IPv6 addresses that embed another one, are always closed.

Only the standard library is imported: this also runs beside rclone and Git, where nothing else is installed.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

SETTING = "PORTAL_OPEN_NETWORKS"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Never reached: link-local addresses, metadata services of clouds, multicast, and addresses of no machine.
NEVER = tuple(
    ipaddress.ip_network(each)
    for each in (
        "0.0.0.0/8", "169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "224.0.0.0/3",
        "::/128", "fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128", "ff00::/8",
    )
)  # fmt: skip
# IPv6 addresses that embed an IPv4 one: mapped, translated, compatible, NAT64, 6to4, Teredo.
_HIDING = tuple(
    ipaddress.IPv6Network(each)
    for each in (
        "::ffff:0:0/96", "::ffff:0:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32",
    )
)  # fmt: skip
# For servers that an administrator named by another setting (NFS): private networks are open, all other rules apply.
ANYWHERE = ("0.0.0.0/0", "::/0")

_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]+):(?P<port>[0-9]{1,5})")


class Closed(Exception):
    """The portal does not connect there. The text is a sentence for people."""


@dataclass(frozen=True)
class Rules:
    """What is open besides public addresses. `servers` are hosts with a port; of `networks` and `closed` the smallest
    network around an address applies. A network never opens the portal's own machine."""

    networks: tuple[str, ...] = ()
    servers: frozenset[tuple[str, int]] = frozenset()
    closed: tuple[str, ...] = ()

    @classmethod
    def read(cls, entries: Iterable[str]) -> Rules:
        """Parses entries like 10.20.0.0/16, 10.20.0.7:9000, minio.example.com:9000, [fd00::7]:9000 and !130.60.0.0/16,
        which closes. Raises ValueError."""
        networks, servers, closed = list[str](), set[tuple[str, int]](), list[str]()
        for entry in filter(None, map(str.strip, entries)):
            if (server := _SERVER.fullmatch(entry)) and 0 < int(server["port"]) < 65536:
                servers.add((_host(server["host"]), int(server["port"])))
                continue
            try:
                network = ipaddress.ip_network(entry.removeprefix("!"))
            except ValueError as error:
                raise ValueError(
                    f"{SETTING}: “{entry}” is no network like 10.20.0.0/16 and no server like 10.20.0.7:9000."
                ) from error
            if network.is_loopback and not entry.startswith("!"):
                raise ValueError(
                    f"{SETTING}: of the portal's own machine only single ports are opened, like 127.0.0.1:9000."
                )
            (closed if entry.startswith("!") else networks).append(str(network))
        return cls(tuple(networks), frozenset(servers), tuple(closed))

    def opening(self, networks: Iterable[str]) -> Rules:
        return replace(self, networks=(*self.networks, *networks))

    def closing(self, networks: Iterable[str]) -> Rules:
        return replace(self, closed=(*self.closed, *networks))


def server_of(url: str) -> str:
    """The entry that opens the server of a URL, "" without a URL."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}" if host else ""


def why_closed(host: str, address: str, port: int, rules: Rules, *, is_own: bool) -> str:
    """Why `port` of `address`, which `host` resolves to, is closed, as a sentence; "" if it is open. `is_own`: this
    machine has the address."""
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if any(ip in network for network in NEVER):
        return (
            f"{host} is closed: its address is link-local, of a metadata service or of no machine, and never reached."
        )
    if isinstance(ip, ipaddress.IPv6Address) and not ip.is_loopback and any(ip in network for network in _HIDING):
        return f"{host} is closed: its IPv6 address stands for another one. Give that one itself."
    if {(_host(host), port), (str(ip), port)} & rules.servers:
        return ""
    if is_own or ip.is_loopback:
        where = f"[{host}]:{port}" if ":" in host.strip("[]") else f"{host}:{port}"
        return f"{where} is closed: it is a port of the portal's own machine. An administrator can open it ({SETTING})."
    opened, closed = _smallest(ip, rules.networks), _smallest(ip, rules.closed)
    if closed and (opened is None or opened.prefixlen < closed.prefixlen):
        return f"{host} is closed: an administrator closed the network {closed}."
    if opened is None and (not ip.is_global or ip.is_multicast or ip.is_reserved):
        return f"{host} is closed: its address is private. An administrator can open it ({SETTING})."
    return ""


def check_literal(host: str, port: int, rules: Rules) -> None:
    """Raises Closed if `host` is an address or a loopback name that is closed. Resolves nothing."""
    if (address := literal(host)) and (why := why_closed(host, address, port, rules, is_own=is_own(address))):
        raise Closed(why)


def open_addresses(host: str, port: int, rules: Rules) -> list[str]:
    """The open addresses of `host`, in the resolver's order. Raises Closed if there is none, OSError if the name is not found."""
    try:
        found = socket.getaddrinfo(literal(host) or host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "no name of a server") from error
    allowed, why = list[str](), ""
    for address in dict.fromkeys(str(each[4][0]) for each in found):
        if sentence := why_closed(host, address, port, rules, is_own=is_own(address)):
            why = why or sentence
        else:
            allowed.append(address)
    if not allowed:
        raise Closed(why)
    return allowed


def connect(host: str, port: int, rules: Rules, seconds: float) -> socket.socket:
    """A connection to the first open address of `host` that accepts one within `seconds`. Raises Closed and OSError."""
    end, failure = time.monotonic() + seconds, OSError("no address answers")
    for address in open_addresses(host, port, rules):
        try:
            made = socket.create_connection((address, port), timeout=max(0.1, end - time.monotonic()))
        except OSError as error:
            failure = error
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        if time.monotonic() > end:
            break
    raise failure


def literal(host: str) -> str:
    """The address that `host` denotes without resolving, "" for other names."""
    host = _host(host)
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    try:
        # Accepts the legacy forms that the system's resolver accepts, such as 2130706433 and 0x7f.1.
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        pass
    try:
        ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return ""
    return host


def is_loopback(host: str) -> bool:
    """True if `host` is a loopback address or name. Resolves nothing."""
    return bool(address := literal(host)) and ipaddress.ip_address(address.split("%", 1)[0]).is_loopback


_GET_ROUTE, _NEW_ROUTE, _REQUEST, _DESTINATION, _LOCAL = 26, 24, 1, 1, 2


def is_own(address: str) -> bool:
    """True if this machine has the address, according to the kernel's routes (rtnetlink(7)). Sends nothing to it."""
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    body = struct.pack("=8BI", family, ip.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    body += struct.pack("=HH", 4 + len(ip.packed), _DESTINATION) + ip.packed
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asked:
        asked.send(struct.pack("=IHHII", 16 + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body)
        answer = asked.recv(4096)
    # A header of 16 bytes, then the route; its eighth byte is the type.
    return struct.unpack_from("=H", answer, 4)[0] == _NEW_ROUTE and answer[23] == _LOCAL


def _host(host: str) -> str:
    return host.strip("[]").lower().rstrip(".")


def _smallest(ip: Address, networks: Iterable[str]) -> Network | None:
    around = [network for network in map(ipaddress.ip_network, networks) if ip in network]
    return max(around, key=lambda network: network.prefixlen, default=None)
