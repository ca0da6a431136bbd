"""The routing table: an immutable value that a router replaces as a whole, and the choices made from it. Pure.

It comes from the database, or from the file last written, so a router that starts without its database routes as the last one
did. It holds only the digests of tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

# Minimum limit of requests in flight at one replica; the portal's own model server queues 64. Further requests wait in the
# router, where another replica may take them.
AT_ONCE = 32
# A replica may have this many times its target in flight.
SLACK = 2


@dataclass(frozen=True)
class Replica:
    """`address`: "host:port". `proof`: the secret that the replica's entrance requires."""

    id: int
    address: str
    proof: str = field(default="", repr=False)


@dataclass(frozen=True)
class Revision:
    id: int
    number: int
    weight: int = 0
    mirrored: bool = False
    replicas: tuple[Replica, ...] = ()


@dataclass(frozen=True)
class Token:
    """Limits of one caller. `until`: expiry in seconds since 1970, None for never."""

    id: int
    name: str
    per_second: int | None = None
    at_once: int | None = None
    until: float | None = None


@dataclass(frozen=True)
class Service:
    """`route`: the version number of the row read. `running`: false if the service is disabled."""

    id: int
    label: str
    route: int
    running: bool = True
    request_seconds: int = 60
    target: int = 4
    revisions: tuple[Revision, ...] = ()
    tokens: Mapping[str, Token] = field(default_factory=dict)

    @cached_property
    def live(self) -> list[Revision]:
        """The revisions that answer: weight above 0 and at least one replica."""
        return [each for each in self.revisions if each.weight > 0 and each.replicas]

    @property
    def shadow(self) -> Revision | None:
        """The revision that receives mirrored requests."""
        return next((each for each in self.revisions if each.mirrored and each.replicas), None)

    def most(self, routers: int) -> int:
        """Returns how many requests each of `routers` routers may have in flight at one replica."""
        return -(-max(AT_ONCE, SLACK * self.target) // max(1, routers))

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """Parses the JSON that `document` and the SQL query produce. Raises ValueError."""
        try:
            return cls(
                id=int(said["id"]),
                label=str(said["label"]),
                route=int(said["route"]),
                running=bool(said.get("running", True)),
                request_seconds=int(said.get("requestSeconds") or 60),
                target=int(said.get("target") or 4),
                revisions=tuple(_revision(each) for each in said.get("revisions") or ()),
                tokens={str(each["digest"]): _token(each) for each in said.get("tokens") or ()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no service: {type(error).__name__}: {error}") from error

    @property
    def document(self) -> dict[str, Any]:
        return {
            "id": self.id, "label": self.label, "route": self.route, "running": self.running,
            "requestSeconds": self.request_seconds, "target": self.target,
            "revisions": [
                {
                    "id": each.id, "number": each.number, "weight": each.weight, "mirrored": each.mirrored,
                    "replicas": [{"id": one.id, "address": one.address, "proof": one.proof} for one in each.replicas],
                }
                for each in self.revisions
            ],
            "tokens": [
                {
                    "digest": digest, "id": each.id, "name": each.name, "perSecond": each.per_second,
                    "atOnce": each.at_once, "until": each.until,
                }
                for digest, each in self.tokens.items()
            ],
        }  # fmt: skip


def _revision(said: Mapping[str, Any]) -> Revision:
    replicas = (
        Replica(int(each["id"]), str(each["address"]), str(each.get("proof") or ""))
        for each in said.get("replicas") or ()
    )
    return Revision(
        int(said["id"]),
        int(said["number"]),
        int(said["weight"]),
        bool(said["mirrored"]),
        tuple(sorted(replicas, key=_id)),
    )


def _id(replica: Replica) -> int:
    return replica.id


def _token(said: Mapping[str, Any]) -> Token:
    until = said.get("until")
    return Token(
        int(said["id"]),
        str(said["name"]),
        said.get("perSecond"),
        said.get("atOnce"),
        None if until is None else float(until),
    )


class Table:
    """All services, by label and by id. Immutable: `changed` returns a new table."""

    def __init__(self, services: Iterable[Service] = ()) -> None:
        self.by_id: Mapping[int, Service] = {each.id: each for each in services}
        self.by_label: Mapping[str, Service] = {each.label: each for each in self.by_id.values()}

    def changed(self, found: Iterable[Service], living: Collection[int]) -> Table:
        """Returns a table with the `found` services replaced and those not in `living` removed. Ignores late reads, whose route
        number is smaller."""
        services = {number: each for number, each in self.by_id.items() if number in living}
        for each in found:
            before = services.get(each.id)
            if each.id in living and (before is None or before.route <= each.route):
                services[each.id] = each
        return Table(services.values())

    def document(self) -> list[dict[str, Any]]:
        return [each.document for each in self.by_id.values()]

    @classmethod
    def of(cls, said: object) -> Table:
        """Parses the JSON of `document`. Raises ValueError."""
        if not isinstance(said, list) or not all(isinstance(each, dict) for each in said):
            raise ValueError("this is no table of services")
        return cls(Service.of(each) for each in said)


class Turns:
    """Chooses the revision for the next request by smooth weighted round robin, as NGINX does: each request adds every weight to
    its revision's balance, and the richest revision pays the sum of the weights. With weights 90 and 10, exactly 10 of any 100
    consecutive requests go to the second revision, evenly spaced.

    Balances are only valid for the weights they were built with. When weights change, every balance restarts at 0: after a change
    from 1:24 to 1:1, the old balances would send a dozen requests in a row to one revision.
    """

    def __init__(self) -> None:
        self._weights: dict[int, int] = {}
        self._balance: dict[int, int] = {}

    def next(self, revisions: Sequence[Revision]) -> Revision:
        """Returns the next revision. Requires at least one, with weights above 0."""
        weights = {each.id: each.weight for each in revisions}
        if self._weights != weights:
            self._weights, self._balance = weights, dict.fromkeys(weights, 0)
        balance = self._balance
        for each, weight in weights.items():
            balance[each] += weight
        chosen = max(revisions, key=lambda each: (balance[each.id], -each.id))
        balance[chosen.id] -= sum(weights.values())
        return chosen


def least(replicas: Sequence[Replica], in_flight: Mapping[int, int], turn: int) -> Replica | None:
    """Returns the replica with the fewest requests in flight, or None; `turn` rotates among equals."""
    found, fewest, count = None, 0, len(replicas)
    for n in range(turn, turn + count):
        each = replicas[n % count]
        if (flying := in_flight.get(each.id, 0)) < fewest or found is None:
            found, fewest = each, flying
    return found
