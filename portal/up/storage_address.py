"""PORTAL_STORAGE_ADDRESS: where pods and other machines reach the portal's own object storage."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from portal.up.services import ServiceError


@dataclass(frozen=True)
class StorageAddress:
    """`host` is an address of this machine; `port` 0 means one that is chosen once. With `url` the portal listens only on
    loopback, and an existing proxy forwards to it.
    """

    host: str
    port: int
    url: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> StorageAddress | None:
        """Returns the address from the environment; None for loopback only. Raises ServiceError."""
        text = given.get("PORTAL_STORAGE_ADDRESS", "")
        if not text:
            return None
        if given.get("PORTAL_STORAGE_URL"):
            raise ServiceError(
                "PORTAL_STORAGE_URL names the object storage of another server; PORTAL_STORAGE_ADDRESS is for the portal's own."
            )
        if text.startswith("https://"):
            return _behind_proxy(text)
        try:
            ip, port = _ip_and_port(text)
        except ValueError:
            raise ServiceError(
                f"PORTAL_STORAGE_ADDRESS is “{text}”. Give an address of this machine that pods reach, such as 10.0.0.5:9000, or "
                "the https:// URL of a proxy."
            ) from None
        if ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_link_local:
            raise ServiceError(
                f"PORTAL_STORAGE_ADDRESS is {ip}, which no pod reaches. Give another address of this machine."
            )
        return cls(str(ip), port)

    def check(self) -> None:
        """Raises ServiceError if the address is unusable: a gateway that cannot listen on one address does not start at all."""
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((self.host, self.port))
            except OSError as error:
                where = f"{bracketed(self.host)}:{self.port}" if self.port else self.host
                raise ServiceError(
                    f"The object storage cannot listen at {where} (PORTAL_STORAGE_ADDRESS): {error.strerror}."
                ) from error


def bracketed(host: str) -> str:
    """Returns the host as in a URL."""
    return f"[{host}]" if ":" in host else host


def _ip_and_port(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """Raises ValueError."""
    try:
        return ipaddress.ip_address(text), 0
    except ValueError:
        parts = urlsplit(f"//{text}")
        if parts.netloc != text or "@" in text:
            raise
        return ipaddress.ip_address(parts.hostname or ""), parts.port or 0


def _behind_proxy(text: str) -> StorageAddress:
    parts = urlsplit(text)
    if not parts.hostname or "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ServiceError(f"PORTAL_STORAGE_ADDRESS is “{text}”. A URL there is https://, a name and at most a port.")
    return StorageAddress("127.0.0.1", 0, f"https://{parts.netloc}")
