"""Authorizes one request to an application. Pure: values in, a value out.

    a token of this application                          → let through, without the token
    a cookie of this origin, of a person who may open it → let through, without the cookie
      … but sent by a page of another origin             → refused: browsers attach cookies without the person's intent
    neither, from a browser that opens a page            → redirected to the portal, which returns the person with a ticket
    neither                                              → refused

Credentials issued by the portal never reach the application.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from clusters.clouds.drivers import entrance

# Paths below it belong to the gateway on every origin; applications cannot serve them.
RESERVED = "/.portal/"
TICKET = f"{RESERVED}ticket"
ROUTED = f"{RESERVED}routed"
# The portal's idle notice inside an application, and the request to keep it. The gateway routes both to the portal.
IDLE, KEEP = f"{RESERVED}idle", f"{RESERVED}keep"
# Where NGINX, which understands only yes and no, redirects refused requests. The query has the target.
SIGN_IN_AT = f"{RESERVED}sign-in"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Prefix of the portal's own API tokens (REST_KNOX in settings). One sent here by mistake is not forwarded.
PORTAL_TOKEN = "gpc_"  # noqa: S105


@dataclass(frozen=True)
class Asked:
    """A request as the gateway received it. `uri`: path and query. `origin`: of the page that sent it."""

    method: str
    uri: str
    address: str
    origin: str = ""
    authorization: str = ""
    cookies: str = ""
    accept: str = ""
    # Detects WebSockets: Traefik's forward-auth omits Upgrade, but every handshake has this key (RFC 6455).
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
        """True if a browser navigates to this address, rather than loading a part of a page."""
        if self.method != "GET" or self.is_socket:
            return False
        if self.fetch_mode or self.fetch_dest:
            return self.fetch_mode in ("navigate", "") and self.fetch_dest in ("document", "")
        return "text/html" in self.accept


@dataclass(frozen=True)
class Sender:
    """Who sent the request: a `token` of this application, a `person` by the cookie of this origin, or neither. `may_open`: the
    person may open this endpoint now. `is_use`: letting it in counts as use. `proof`: admits the request to the cluster."""

    token: bool = False
    person: str = ""
    may_open: bool = False
    is_use: bool = True
    proof: str = field(default="", repr=False)


@dataclass(frozen=True)
class Answer:
    """`let_through` with the headers to set; otherwise a `status` and a sentence, or a redirect to the portal."""

    what: Literal["let_through", "to_portal", "refuse"]
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    sentence: str = ""


SIGN_IN = "This is an application of the portal: sign in there, or send its token as “Authorization: token …”."
NOT_YOURS = "There is nothing here that you may open."
FOREIGN = "This request came from a page of another origin."
FRAMED = "An application is not shown inside pages of other origins."


def decide(asked: Asked, sender: Sender, cookie: str) -> Answer:
    """`cookie` is the name of the gateway's cookie."""
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
    """Returns why the cookie does not prove intent, or "". Browsers attach it to requests from other applications' pages, too."""
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
    """True if two programs might parse the address differently, and so authorize one path and serve another."""
    path = urlsplit(uri).path
    return not uri.startswith("/") or "\\" in path or any(ord(letter) < 33 or ord(letter) == 127 for letter in uri)


def _inward(asked: Asked, sender: Sender, cookie: str, *, keep_authorization: bool) -> dict[str, str]:
    """Returns the headers that replace those sent; omitted ones are removed."""
    user = "" if sender.token else sender.person
    headers = {"Cookie": without(asked.cookies, cookie), "X-Portal-User": user, entrance.HEADER: sender.proof}
    if keep_authorization and PORTAL_TOKEN not in asked.authorization:
        headers["Authorization"] = asked.authorization
    return {name: value for name, value in headers.items() if value}


def without(cookies: str, name: str) -> str:
    """Returns a Cookie header without the gateway's cookies and otherwise unchanged."""
    parts = (part.strip() for part in cookies.split(";"))
    ours = (name, f"{name}-state")
    return "; ".join(part for part in parts if part and part.partition("=")[0].strip() not in ours)


def values_of(cookies: str, name: str) -> list[str]:
    """Returns all values for `name` in a Cookie header, at most 5: another page of the domain may have set one, too."""
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
    """Returns the access token in a request, in the forms of Jupyter's clients, or ""."""
    scheme, _, value = asked.authorization.strip().partition(" ")
    if scheme.lower() in ("token", "bearer"):
        return value.strip()
    # Browsers store the address in history and pass it on as a referrer: people sign in instead.
    return "" if asked.is_visit else asked.query.get("token", "")


def back_to(asked: Asked) -> str:
    """Returns the path and query without a token, because browsers keep addresses in their history."""
    parts = urlsplit(asked.uri)
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "token"]
    return f"{parts.path or '/'}{'?' + urlencode(query) if query else ''}"
