"""What Traefik is told on one machine. Pure: from the endpoints that answer to a dynamic configuration.

Each endpoint has a router of its own, so that Traefik finds it by its Host in one step, keeps connections to it open, and
forgets it with the route. Everything else under the domain of applications goes to the portal, which says why there is nothing
(yet)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# What each request goes through, in this order; portal/up/programs.py says what they are.
THROUGH = ["proof", "trouble", "who"]


@dataclass(frozen=True)
class Route:
    """One endpoint that answers at `address` (host:port), by the label of its origin."""

    label: str
    address: str


def routers(routes: Iterable[Route], domain: str) -> dict[str, Any]:
    """The routers and services of all endpoints."""
    made: dict[str, Any] = {"routers": {}, "services": {}}
    for route in routes:
        name = f"app-{route.label}"
        made["routers"][name] = {
            "rule": f"Host(`{route.label}.{domain}`)",
            "service": name,
            "middlewares": THROUGH,
        }
        made["services"][name] = {
            "loadBalancer": {
                "servers": [{"url": f"http://{route.address}"}],
                # What a program writes is seen at once: progress of cells, events, logs.
                "responseForwarding": {"flushInterval": "20ms"},
            }
        }
    # Traefik refuses empty tables.
    return {"http": made} if made["routers"] else {}
