"""The origin of an endpoint: a label before the domain of applications, and whose it is.

`<endpoint>-<cluster>-<appcode>` where that is a DNS label and nobody else's; otherwise it ends in eight characters of a hash.
Browsers keep scripts, cookies and permissions by origin for years, so a label stays with its endpoint for ever
(`models.Origin`). The domain is that of the portal, or of the cloud where the cluster ran last: a definition keeps where it is
opened (`Cluster.origins`), as the label alone or as the whole name."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from clusters.clouds.kinds import DRIVERS
from clusters.clouds.registry import registered
from clusters.frameworks.base import Endpoint
from clusters.models import Cluster, Origin, Run

MAX_LABEL = 63
# Seconds for which a process believes what domains clouds have.
REMEMBERED = 5.0


def label(*names: str, plain: bool = True) -> str:
    """The label of an endpoint, by its own name, that of its cluster and the appcode; not `plain`: the one that nobody else can
    have. Those of services are made the same way, of fewer names."""
    text = "-".join(names).replace("_", "-").strip("-")
    if plain and len(text) <= MAX_LABEL and "_" not in names[-1]:
        return text
    digest = hashlib.sha256("/".join(names).encode()).hexdigest()[:8]
    return f"{text[: MAX_LABEL - 9].rstrip('-')}-{digest}"


def label_of(host: str) -> str:
    """The label that the Host header of a request names, "" for a host that is no application's."""
    name, _, port = host.lower().partition(":")
    head, dot, domain = name.partition(".")
    if not dot or (port or settings.APPS_USUAL_PORT) != settings.APPS_PORT:
        return ""
    # The portal's own names, and addresses, are asked for without looking into the database.
    others = name not in settings.ALLOWED_HOSTS and not head.isdigit()
    return head if domain == settings.APPS_DOMAIN or (others and domain in _domains.now()) else ""


class _Domains:
    """Those of clouds with a gateway and a domain of their own, as they were REMEMBERED seconds ago at most."""

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
    """The host of an origin as `Cluster.origins` has it."""
    return origin if "." in origin else f"{origin}.{settings.APPS_DOMAIN}"


def url(origin: str) -> str:
    """Where people open it, with a slash at its end."""
    port = "" if settings.APPS_PORT == settings.APPS_USUAL_PORT else f":{settings.APPS_PORT}"
    return f"{settings.APPS_SCHEME}://{name_of(origin)}{port}/"


def keep(cluster: Cluster, endpoints: Iterable[Endpoint], domain: str = "") -> None:
    """Gives each endpoint of a cluster its origin; within the transaction in which they are defined. `domain` is that of the
    cloud where it is to run, "" for the portal's. A replica of a service has none: fronts alone lead there. Repeating it
    changes nothing."""
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
    """Puts its origins below the domain of the cloud of its next run."""
    labels = {name: origin.partition(".")[0] for name, origin in cluster.origins.items()}
    cluster.origins = {name: f"{each}.{domain}" if domain else each for name, each in labels.items()}
    cluster.save(update_fields=["origins"])


def _new(name: str, cluster: Cluster, ours: Mapping[str, Any]) -> str:
    plain = label(name, cluster.name, cluster.appcode.code)
    try:
        with transaction.atomic():
            return Origin.objects.create(label=plain, endpoint=name, **ours).label
    except IntegrityError:  # somebody else's: a-b of c, and a of b-c
        unique = label(name, cluster.name, cluster.appcode.code, plain=False)
        return Origin.objects.get_or_create(label=unique, defaults={"endpoint": name, **ours})[0].label


@dataclass(frozen=True)
class Opening:
    """An endpoint for people: where it is, and whether the gateway leads there now."""

    name: str
    url: str
    ready: bool


def openings(cluster: Cluster, run: Run | None) -> list[Opening]:
    """The endpoints of a cluster in the order of their names, as they are in `run`. No query."""
    there = run.endpoints if run and not run.is_terminal else {}
    return [
        Opening(name, url(place), bool(there.get(name, {}).get("routed")))
        for name, place in sorted(cluster.origins.items())
    ]
