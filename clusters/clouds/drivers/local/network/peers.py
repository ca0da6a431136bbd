"""Which user of this machine is at the other end of a TCP connection over its loopback: the kernel's own answer (sock_diag(7)).

A port of the loopback is open to every user of the machine, and a Unix socket, which is not, is nothing that a gateway can be led
to. So whoever accepts asks for the owner of the other end.
"""

from __future__ import annotations

import socket
import struct

NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 20, 1
# linux/netlink.h nlmsghdr, and linux/inet_diag.h inet_diag_req_v2; ports and addresses are in network order.
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI2s2s16s16sI8s")
# Of inet_diag_msg: what stands before the id, the id, three numbers, and then the owner.
_OWNER = _HEADER.size + 4 + 48 + 12
_ANY_COOKIE, _ANY_STATE = b"\xff" * 8, 0xFFFFFFFF


class Peers:
    """Asks in the network and the user namespace in which it was made, wherever its process goes afterwards."""

    def __init__(self) -> None:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)

    def owner(self, here: tuple[str, int], peer: tuple[str, int]) -> int | None:
        """The user id of the socket `peer` that is connected to `here`, both IPv4; None when there is none any more."""
        asked = _REQUEST.pack(
            socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ANY_STATE, *_port(peer, here), *_address(peer, here), 0, _ANY_COOKIE
        )  # fmt: skip
        head = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
        self._netlink.send(head + asked)
        answer = self._netlink.recv(4096)
        if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
            return None
        (owner,) = struct.unpack_from("=I", answer, _OWNER)
        return int(owner)


def _port(*ends: tuple[str, int]) -> list[bytes]:
    return [struct.pack("!H", port) for _, port in ends]


def _address(*ends: tuple[str, int]) -> list[bytes]:
    return [socket.inet_aton(host).ljust(16, b"\0") for host, _ in ends]
