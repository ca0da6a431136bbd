"""Who may access an origin: people by a cookie for that origin only, programs by the access token of that cluster only.

A browser gets its cookie in one exchange. The portal, which knows the person, stores the hash of a ticket and redirects the
browser with the ticket. The origin exchanges the ticket for a cookie, once and only in the browser that requested it. The row is
valid only while the person's portal session lives, so signing out of the portal closes every origin."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from clusters.events import cluster_event
from clusters.frameworks import FRAMEWORKS
from clusters.gateway.models import AccessToken, Origin, Visit
from clusters.runs.models import Cluster
from portal.access import OPERATE, VIEW, may
from portal.events import record_all
from portal.models import User

# Validity of a ticket, and of a cookie before the browser must return to the portal.
TICKET_LIFE, LIFE = dt.timedelta(seconds=60), dt.timedelta(hours=12)
# Seconds to cache decisions: the delay after which removal from an appcode, or signing out, takes effect here.
BELIEVED = 2.0
MOST_BELIEVED = 10_000
# Seconds between two updates of an origin's last use.
NOTED = 60.0


@dataclass(frozen=True)
class Found:
    """The sender of one request: a valid `token`, or the `person` of a cookie, and whether they may open this endpoint. If so,
    `proof` is what the entrance requires."""

    token: bool = False
    person: str = ""
    may_open: bool = False
    proof: str = field(default="", repr=False)


def cluster_at(origin: Origin) -> Cluster | None:
    """Returns the living cluster that has this endpoint."""
    rows = Cluster.objects.select_related("appcode", "current_run")
    return rows.filter(appcode=origin.appcode_id, name=origin.cluster_name, deleted_at=None).first()


def origin_of(label: str) -> Origin | None:
    return Origin.objects.select_related("appcode").filter(label=label).first()


def may_open(user: User, cluster: Cluster) -> bool:
    """True if a person may open the endpoints of a cluster now: they may run it, or its definition admits them."""
    if not user.is_active:
        return False
    spec = cluster.spec
    return (
        may(user, cluster.appcode, OPERATE)
        or is_open_to(user, spec, member=False)
        or (is_open_to(user, spec, member=True) and may(user, cluster.appcode, VIEW))
    )


def is_open_to(user: User, spec: Mapping[str, Any], *, member: bool) -> bool:
    """True if the definition admits a user who may not run the cluster. `member`: the user may view the appcode. No query."""
    access = spec.get("access") or {}
    if access.get("to") == "everybody" or user.username in access.get("people", ()):
        return True
    framework = FRAMEWORKS.get(spec.get("framework", ""))
    return member and not (framework is None or framework.is_shell)


def issue(request: HttpRequest, origin: Origin, state: str) -> str:
    """Returns a ticket for a person who may open `origin`, bound to their portal session. It is valid for a minute, for one
    exchange, and only with the `state` that the browser holds."""
    ticket = secrets.token_urlsafe(32)
    Visit.objects.create(
        origin=origin,
        user=cast("User", request.user),
        session_key=request.session.session_key or "",
        session_hash=request.session.get(HASH_SESSION_KEY, ""),
        ticket_hash=_hash(ticket, state),
        expires_at=timezone.now() + TICKET_LIFE,
    )
    return ticket


def exchange(ticket: str, state: str, label: str) -> str:
    """Exchanges a ticket for a cookie, or "" if it is invalid. A conditional UPDATE decides between concurrent calls."""
    cookie, now = secrets.token_urlsafe(32), timezone.now()
    rows = Visit.objects.filter(ticket_hash=_hash(ticket, state), origin__label=label, expires_at__gt=now)
    if not state or not rows.update(ticket_hash=None, cookie_hash=_hash(cookie, label), expires_at=now + LIFE):
        return ""
    return cookie


def forget_old() -> int:
    """Deletes expired rows. Called periodically."""
    return Visit.objects.filter(expires_at__lt=timezone.now()).delete()[0]


def person_by(cookie: str, label: str) -> Found:
    """Returns the owner of a cookie while their portal session lives. Three queries."""
    now = timezone.now()
    alive = Session.objects.filter(session_key=OuterRef("session_key"), expire_date__gt=now)
    rows: QuerySet[Visit] = Visit.objects.filter(
        Q(expires_at__gt=now) & Exists(alive), cookie_hash=_hash(cookie, label)
    )
    visit = rows.select_related("user", "origin").first()
    if visit is None or visit.origin.label != label or not visit.user.is_active:
        return Found()
    good = visit.user.get_session_auth_hash(), *visit.user.get_session_auth_fallback_hash()
    if not any(constant_time_compare(visit.session_hash, each) for each in good):
        return Found()
    cluster = cluster_at(visit.origin)
    if cluster is None or not may_open(visit.user, cluster):
        return Found(person=visit.user.username)
    return Found(person=visit.user.username, may_open=True, proof=cluster.proof)


def proof_of(label: str, token: str | None = None) -> str:
    """Returns the proof for the cluster behind `label`; "" if `token` is given and is not its token. At most three queries."""
    origin = origin_of(label)
    cluster = cluster_at(origin) if origin else None
    if cluster is None:
        return ""
    if token is not None:
        row = AccessToken.objects.filter(cluster=cluster).first()
        if row is None or not constant_time_compare(row.token, token):
            return ""
    return cluster.proof


_noted: dict[str, float] = {}


def note_use(label: str) -> None:
    """Records that an origin was used, at most once in NOTED seconds per process."""
    now = time.monotonic()
    if now - _noted.get(label, -NOTED) >= NOTED:
        if len(_noted) >= MOST_BELIEVED:
            _noted.clear()
        _noted[label] = now
        Origin.objects.filter(label=label).update(used_at=timezone.now())


class Believed:
    """Caches answers for BELIEVED seconds, because one page of an application may request a hundred files."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[float, Any]] = {}
        self._lock = threading.Lock()

    def ask(self, key: tuple[str, ...], find: Callable[[], Any]) -> Any:
        now = time.monotonic()
        known = self._known.get(key)
        if known is not None and known[0] > now:
            return known[1]
        found = find()
        with self._lock:
            if len(self._known) >= MOST_BELIEVED:
                self._known.clear()
            self._known[key] = (now + BELIEVED, found)
        return found


_believed = Believed()


def sender(token: str, cookies: list[str], label: str) -> Found:
    """Identifies the sender of a request to `label` by its token ("" for none) and cookies."""
    if token and (proof := _believed.ask(("token", _hash(token, label)), lambda: proof_of(label, token))):
        return Found(token=True, proof=proof)
    found = Found()
    for cookie in cookies:
        each: Found = _believed.ask(("cookie", _hash(cookie, label)), partial(person_by, cookie, label))
        if each.person:
            together = replace(found, may_open=found.may_open or each.may_open, proof=found.proof or each.proof)
            found = together if found.person else each
    return found


@transaction.atomic
def new_token(cluster: Cluster, *, acting_user: User) -> str:
    """Replaces the access token. The old one stops working within BELIEVED seconds, once cached decisions expire."""
    token = secrets.token_urlsafe(32)
    AccessToken.objects.update_or_create(cluster=cluster, defaults={"token": token, "made_by": acting_user})
    record_all([cluster_event("cluster.token_made", cluster, acting_user, "A new access token was made.")])
    return token


@transaction.atomic
def stop_token(cluster: Cluster, *, acting_user: User) -> None:
    """Deletes the access token. Idempotent."""
    if AccessToken.objects.filter(cluster=cluster).delete()[0]:
        record_all([cluster_event("cluster.token_stopped", cluster, acting_user, "The access token was stopped.")])


def token_of(cluster: Cluster) -> str:
    """Returns the access token, or "". Only for people who may run the cluster."""
    row = AccessToken.objects.filter(cluster=cluster).first()
    return row.token if row else ""


def _hash(secret: str, about: str) -> str:
    return hashlib.sha256(f"{about}\0{secret}".encode()).hexdigest()
