"""The origin of an endpoint: a label before the domain of applications, and the endpoint that owns it.

The label is `<endpoint>-<cluster>-<appcode>` if that is a free DNS label; otherwise it ends in eight characters of a hash.
Browsers keep scripts, cookies and permissions per origin for years, so an endpoint keeps its label for ever (`models.Origin`).
The domain is the portal's, or that of the cloud where the cluster last ran: `Cluster.origins` stores the label alone or the
whole host name."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.db import IntegrityError, transaction
from django.http import HttpRequest
from django.urls import reverse

from clusters.clouds.kinds import DRIVERS
from clusters.clouds.registry import registered
from clusters.frameworks.base import Endpoint
from clusters.gateway.decision import SIGN_IN_AT
from clusters.gateway.models import Origin
from clusters.runs.models import Cluster, Run

MAX_LABEL = 63
# Seconds to cache the domains of clouds.
REMEMBERED = 5.0


def label(*names: str, plain: bool = True) -> str:
    """Returns the label for the names of endpoint, cluster and appcode. `plain=False`: the variant with a hash, which is unique.
    Services use it with fewer names."""
    text = "-".join(names).replace("_", "-").strip("-")
    if plain and len(text) <= MAX_LABEL and "_" not in names[-1]:
        return text
    digest = hashlib.sha256("/".join(names).encode()).hexdigest()[:8]
    return f"{text[: MAX_LABEL - 9].rstrip('-')}-{digest}"


def label_of(host: str) -> str:
    """Returns the label in a Host header, or "" if the host is not an application's."""
    name, _, port = host.lower().partition(":")
    head, dot, domain = name.partition(".")
    if not dot or (port or settings.APPS_USUAL_PORT) != settings.APPS_PORT:
        return ""
    # Skips the database for the portal's own names and for IP addresses.
    others = name not in settings.ALLOWED_HOSTS and not head.isdigit()
    return head if domain == settings.APPS_DOMAIN or (others and domain in _domains.now()) else ""


class _Domains:
    """Domains of clouds that have their own gateway and domain, cached for REMEMBERED seconds."""

    def __init__(self) -> None:
        self._until, self._found = 0.0, frozenset[str]()

    def now(self) -> frozenset[str]:
        if self._until < time.monotonic():
            rows = registered().values_list("kind", "settings")
            gateways = [DRIVERS[kind].gateway(stored) for kind, stored in rows if kind in DRIVERS]
            self._found = frozenset(each.domain for each in gateways if each and each.domain)
            self._until = time.monotonic() + REMEMBERED
        return self._found


_domains = _Domains()


def name_of(origin: str) -> str:
    """Returns the host for a value of `Cluster.origins`."""
    return origin if "." in origin else f"{origin}.{settings.APPS_DOMAIN}"


def url(origin: str) -> str:
    """Returns the URL for people, with a trailing slash."""
    port = "" if settings.APPS_PORT == settings.APPS_USUAL_PORT else f":{settings.APPS_PORT}"
    return f"{settings.APPS_SCHEME}://{name_of(origin)}{port}/"


def opened_from(request: HttpRequest, address: str) -> str:
    """Returns a link to `address` for this browser. It is signed in under the name of the portal that it asks, and an origin
    sends it to PORTAL_ORIGIN; so under another name the link tells the origin that name, and nobody signs in twice."""
    host, parts = request.get_host(), urlsplit(address)
    if host == urlsplit(settings.PORTAL_ORIGIN).netloc:
        return address
    back = f"{parts.path}{'?' + parts.query if parts.query else ''}"
    query = {"portal": host, **({"rd": back} if back != "/" else {})}
    return f"{parts.scheme}://{parts.netloc}{SIGN_IN_AT}?{urlencode(query, safe='/:')}"


def keep(cluster: Cluster, endpoints: Iterable[Endpoint], domain: str = "") -> None:
    """Gives each endpoint of a cluster its origin. Call it in the transaction that defines the endpoints. `domain`: of the cloud
    where the cluster will run, "" for the portal's. Replicas of services get none, because only routers reach them.
    Idempotent."""
    if cluster.is_replica:
        return
    names = {each.name for each in endpoints}
    if not names and not cluster.origins:
        return
    ours = {"appcode_id": cluster.appcode_id, "cluster_name": cluster.name}
    found = dict(Origin.objects.filter(**ours, endpoint__in=names).values_list("endpoint", "label"))
    for name in sorted(names - found.keys()):
        found[name] = _new(name, cluster, ours)
    cluster.origins = found
    move(cluster, domain)


def move(cluster: Cluster, domain: str) -> None:
    """Moves the origins below the domain of the cloud of the next run."""
    labels = {name: origin.partition(".")[0] for name, origin in cluster.origins.items()}
    cluster.origins = {name: f"{each}.{domain}" if domain else each for name, each in labels.items()}
    cluster.save(update_fields=["origins"])


def _new(name: str, cluster: Cluster, ours: Mapping[str, Any]) -> str:
    plain = label(name, cluster.name, cluster.appcode.code)
    try:
        with transaction.atomic():
            return Origin.objects.create(label=plain, endpoint=name, **ours).label
    except IntegrityError:  # taken: a-b of c, and a of b-c, have the same plain label
        unique = label(name, cluster.name, cluster.appcode.code, plain=False)
        return Origin.objects.get_or_create(label=unique, defaults={"endpoint": name, **ours})[0].label


@dataclass(frozen=True)
class Opening:
    """An endpoint for people. `path`: of the portal's page that leads there. `ready`: the gateway routes to it now."""

    name: str
    url: str
    path: str
    ready: bool


def openings(cluster: Cluster, run: Run | None) -> list[Opening]:
    """Returns the endpoints of a cluster by name, with their state in `run`. No query."""
    there = run.endpoints if run and not run.is_terminal else {}
    return [
        Opening(
            name,
            url(place),
            reverse("open_endpoint", args=[place.partition(".")[0]]),
            bool(there.get(name, {}).get("routed")),
        )
        for name, place in sorted(cluster.origins.items())
    ]
