"""Builds Traefik's dynamic configuration on one machine from the endpoints that answer. Pure.

Each endpoint has its own router: Traefik finds it by Host in one step, keeps connections to it open, and drops them with the
route. All other hosts under the domain of applications are routed to the portal, which explains why nothing answers there
(yet)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Middlewares of each request, in order; portal/up/programs.py defines them.
THROUGH = ["proof", "trouble", "who"]


@dataclass(frozen=True)
class Route:
    """One endpoint that answers at `address` (host:port). `label`: of its origin."""

    label: str
    address: str


def routers(routes: Iterable[Route], domain: str) -> dict[str, Any]:
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
                # Shows output at once: progress of cells, events, logs.
                "responseForwarding": {"flushInterval": "20ms"},
            }
        }
    # Traefik refuses empty tables.
    return {"http": made} if made["routers"] else {}
