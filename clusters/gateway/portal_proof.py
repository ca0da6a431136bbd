"""How the portal authenticates at a gateway that authorizes each request: by a proof valid for one minute, one method and one
URI of one origin.

It is sent as `Authorization: Portal …`, a scheme no program uses, and the gateway removes it like a token. A stolen proof can
only repeat the same request to the same program. It needs no row, and does not count as use of the application."""

from __future__ import annotations

from django.core import signing

from clusters.gateway.decision import Asked

SCHEME = "Portal"
# Seconds. Also the tolerated clock difference between the portal's machines.
GOOD_FOR = 60
_signer = signing.TimestampSigner(salt="clusters.gateway.own")


def authorization(label: str, uri: str, method: str = "GET") -> str:
    """Returns the Authorization header that admits a request for `uri` at the origin `label`."""
    about = f"{method} {label}{uri}"
    return f"{SCHEME} {_signer.sign(about)[len(about) + 1 :]}"


def is_ours(asked: Asked, label: str) -> bool:
    """True if the portal itself sent the request."""
    scheme, _, proof = asked.authorization.partition(" ")
    if scheme != SCHEME or asked.is_socket:
        return False
    try:
        _signer.unsign(f"{asked.method} {label}{asked.uri}:{proof}", max_age=GOOD_FOR)
    except signing.BadSignature:
        return False
    return True
