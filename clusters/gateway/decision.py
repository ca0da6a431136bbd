"""What becomes of one request to an application. Pure: it comes in as values, and the answer is a value.

    a token of this application                         → let through, without the token
    a cookie of this origin, of who may open it         → let through, without the cookie
      … but sent by a page of another origin            → refused: their cookies, not their wish
    neither, and a person looks at it in a browser      → to the portal, which knows them, and back with a ticket
    neither                                             → refused

Nothing of what the portal gave a browser or a program goes further than to here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from clusters.clouds.drivers import entrance

# Addresses below it belong to the gateway on every origin; no application has one.
RESERVED = "/.portal/"
TICKET = f"{RESERVED}ticket"
ROUTED = f"{RESERVED}routed"
# What the portal has to say inside an application, and the answer to it: the gateway leads these two to the portal.
IDLE, KEEP = f"{RESERVED}idle", f"{RESERVED}keep"
# Where a gateway that knows only yes and no sends who was not let in, with where they wanted to go.
SIGN_IN_AT = f"{RESERVED}sign-in"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# How tokens of the portal itself begin (REST_KNOX in settings): sent here by mistake, they go no further.
PORTAL_TOKEN = "gpc_"  # noqa: S105
# Headers that the gateway alone may set, removed from whatever a client sends.
OURS = ("X-Portal-User", entrance.HEADER)


@dataclass(frozen=True)
class Asked:
    """A request as the gateway received it. `uri` is its path and query, `origin` that of the page that sends it."""

    method: str
    uri: str
    address: str
    origin: str = ""
    authorization: str = ""
    cookies: str = ""
    accept: str = ""
    # Forward-auth of Traefik leaves Upgrade out; the key of RFC 6455 comes with every handshake.
    socket_key: str = ""
    fetch_site: str = ""
    fetch_mode: str = ""
    fetch_dest: str = ""

    @property
    def path(self) -> str:
        return urlsplit(self.uri).path

    @property
    def query(self) -> Mapping[str, str]:
        return dict(parse_qsl(urlsplit(self.uri).query))

    @property
    def is_socket(self) -> bool:
        return bool(self.socket_key)

    @property
    def is_visit(self) -> bool:
        """Whether a person looks at the answer: a page of its own in a browser, and no part of one."""
        if self.method != "GET" or self.is_socket:
            return False
        if self.fetch_mode or self.fetch_dest:
            return self.fetch_mode in ("navigate", "") and self.fetch_dest in ("document", "")
        return "text/html" in self.accept


@dataclass(frozen=True)
class Sender:
    """Who sent it: the holder of a `token` of this application, a `person` by the cookie of this origin, or nobody that is known.
    `may_open` says whether the person may open this endpoint now, `is_use` whether letting them in is use of it. `proof` is what
    lets a request into the cluster behind it."""

    token: bool = False
    person: str = ""
    may_open: bool = False
    is_use: bool = True
    proof: str = field(default="", repr=False)


@dataclass(frozen=True)
class Answer:
    """`let_through` with what the request's headers become; otherwise a `status` with a sentence or where to go."""

    what: Literal["let_through", "to_portal", "refuse"]
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    sentence: str = ""


SIGN_IN = "This is an application of the portal: sign in there, or send its token as “Authorization: token …”."
NOT_YOURS = "There is nothing here that you may open."
FOREIGN = "This request came from a page of another origin."
FRAMED = "An application is not shown inside pages of other origins."


def decide(asked: Asked, sender: Sender, cookie: str) -> Answer:
    """What becomes of a request; `cookie` is the name of the gateway's own."""
    if asked.path.startswith(RESERVED) or _confusing(asked.uri):
        return Answer("refuse", status=404, sentence="There is nothing at this address.")
    if sender.token:
        return Answer("let_through", _inward(asked, sender, cookie, keep_authorization=False))
    if not sender.person:
        return Answer("to_portal") if asked.is_visit else Answer("refuse", status=401, sentence=SIGN_IN)
    if not sender.may_open:
        return Answer("refuse", status=404, sentence=NOT_YOURS)
    if sentence := _why_foreign(asked):
        return Answer("refuse", status=403, sentence=sentence)
    return Answer("let_through", _inward(asked, sender, cookie, keep_authorization=True))


def _why_foreign(asked: Asked) -> str:
    """Why a cookie does not speak for the person: a browser sends it along with what pages of other applications do."""
    if asked.fetch_dest in ("iframe", "frame", "embed", "object") and asked.fetch_site not in ("same-origin", ""):
        return FRAMED
    if asked.origin and asked.origin != asked.address:
        return FOREIGN
    if (asked.is_socket or asked.method not in SAFE) and not asked.origin and asked.fetch_site != "same-origin":
        return FOREIGN
    if asked.fetch_site in ("same-site", "cross-site") and asked.fetch_mode != "navigate":
        return FOREIGN
    return ""


def _confusing(uri: str) -> bool:
    """Whether two programs might read the address differently: then they could disagree on what was asked for."""
    path = urlsplit(uri).path
    return not uri.startswith("/") or "\\" in path or any(ord(letter) < 33 or ord(letter) == 127 for letter in uri)


def _inward(asked: Asked, sender: Sender, cookie: str, *, keep_authorization: bool) -> dict[str, str]:
    """The headers that an application sees in the place of those that were sent; what is left out is removed."""
    user = "" if sender.token else sender.person
    headers = {"Cookie": without(asked.cookies, cookie), "X-Portal-User": user, entrance.HEADER: sender.proof}
    if keep_authorization and PORTAL_TOKEN not in asked.authorization:
        headers["Authorization"] = asked.authorization
    return {name: value for name, value in headers.items() if value}


def without(cookies: str, name: str) -> str:
    """A Cookie header without the gateway's own cookies; everything else exactly as it was sent."""
    parts = (part.strip() for part in cookies.split(";"))
    ours = (name, f"{name}-state")
    return "; ".join(part for part in parts if part and part.partition("=")[0].strip() not in ours)


def values_of(cookies: str, name: str) -> list[str]:
    """All values that a Cookie header has for `name`: another page of the domain may have set one, too."""
    found = []
    for part in cookies.split(";"):
        key, equals, value = part.strip().partition("=")
        if equals and key.strip() == name:
            try:
                morsel = next(iter(SimpleCookie(f"{name}={value}").values()), None)
            except CookieError:
                continue
            found.append(morsel.value if morsel else value)
    return found[:5]


def token_in(asked: Asked) -> str:
    """The access token that a request carries, as Jupyter's own clients send it; "" when there is none."""
    scheme, _, value = asked.authorization.strip().partition(" ")
    if scheme.lower() in ("token", "bearer"):
        return value.strip()
    # What a browser shows it also remembers and passes on: there a person is asked who they are.
    return "" if asked.is_visit else asked.query.get("token", "")


def back_to(asked: Asked) -> str:
    """The address of the request without the token that it may carry: what is shown in a browser is remembered there."""
    parts = urlsplit(asked.uri)
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "token"]
    return f"{parts.path or '/'}{'?' + urlencode(query) if query else ''}"
