"""How the portal itself comes in where a gateway asks it about each request: by a proof that is good for a minute, and for
one method at one address of one origin.

It is sent as `Authorization: Portal …`, which no program takes for its own and which the gateway removes as it does tokens. Who
got hold of one all the same could only ask the same program the same thing. It needs no row, and is no use of the application."""

from __future__ import annotations

from django.core import signing

from clusters.gateway.decision import Asked

SCHEME = "Portal"
# Seconds; a proof of this moment is good while clocks of the portal's machines differ by no more.
GOOD_FOR = 60
_signer = signing.TimestampSigner(salt="clusters.gateway.own")


def authorization(label: str, uri: str, method: str = "GET") -> str:
    """The header that lets a request of `uri` at the origin `label` through from now on."""
    about = f"{method} {label}{uri}"
    return f"{SCHEME} {_signer.sign(about)[len(about) + 1 :]}"


def is_ours(asked: Asked, label: str) -> bool:
    """Whether the portal itself asks."""
    scheme, _, proof = asked.authorization.partition(" ")
    if scheme != SCHEME or asked.is_socket:
        return False
    try:
        _signer.unsign(f"{asked.method} {label}{asked.uri}:{proof}", max_age=GOOD_FOR)
    except signing.BadSignature:
        return False
    return True
