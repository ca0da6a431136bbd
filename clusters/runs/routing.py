"""Gateways and what they lead to, as soon as an endpoint answers or does not any more: two threads of the controller.

`Publisher` tells the gateway of this machine: it writes one file that Traefik watches. Gateways of other clouds hear from their
cloud itself, by Ingress. Both threads then look through the gateway whether a new route is there: an endpoint counts as ready
when the gateway leads to it, and not before. Nothing is polled while nothing changes. Traefik could ask the portal instead (its
HTTP provider), several times a second for ever; that is for gateways that share no folder with the portal.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import urllib3
from django.conf import settings
from django.db import OperationalError, connection, connections, transaction
from django.db.utils import InterfaceError
from django.utils import timezone

from clusters.clouds.drivers.base import Gateway
from clusters.clouds.registry import gateway_of
from clusters.gateway.changes import listen
from clusters.gateway.decision import ROUTED, SIGN_IN_AT
from clusters.gateway.origins import name_of
from clusters.gateway.routes import Route, routers
from clusters.models import LOCAL, Run
from clusters.runs.status import refresh

log = logging.getLogger(__name__)

FILE = "endpoints.yaml"
# What was missed, because a write failed or a controller died, is found after so many seconds at most.
ROUND = 30.0
# Before it is tried again after a failure.
AGAIN = 1.0
# How long a route is waited for, and between two looks: at least, and so much of the time that it has taken until then.
PATIENCE, PAUSE, SHARE = 10.0, 0.01, 0.1
# Between two looks at gateways elsewhere, at first and at most; how long one may take to answer, and how many are asked at once.
FAR_PAUSE, LONGEST_PAUSE = 0.2, 5.0
FAR_SECONDS, FAR_AT_ONCE = 3.0, 8


class Routing(threading.Thread):
    """Does its work again whenever something has changed."""

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self.stopped, self.changed = stopped, listen()

    def work(self) -> float:
        """Does what there is to do, and returns after how many seconds there may be more."""
        raise NotImplementedError

    def run(self) -> None:
        while not self.stopped.is_set():
            self.changed.clear()
            try:
                pause = self.work()
            except Exception as error:
                # A mistake of ours about one endpoint must not keep all others from being opened.
                expected = isinstance(error, OperationalError | InterfaceError | OSError)
                log.warning("%s: trying again: %s", self.name, error, exc_info=not expected)
                connections.close_all()
                self.stopped.wait(AGAIN)
            else:
                self.changed.wait(pause)


class Publisher(Routing):
    """`folder` is the one that the gateway watches; `port` that of the gateway on this machine's loopback."""

    def __init__(self, folder: Path, port: int, stopped: threading.Event) -> None:
        super().__init__(stopped)
        self.folder, self.port = folder, port
        # What an earlier controller wrote is written anew.
        self._written = "?"

    def work(self) -> float:
        self.publish()
        return ROUND

    def publish(self) -> None:
        """Writes what lives, and marks as routed what the gateway leads to by then."""
        living = living_endpoints()
        text = json.dumps(routers((each.route for each in living), settings.APPS_DOMAIN), indent=1)
        if text != self._written:
            # Traefik takes no file without routes, and with it none of the others.
            if living:
                _write(self.folder / FILE, text)
            else:
                (self.folder / FILE).unlink(missing_ok=True)
            self._written = text
        waiting = [each for each in living if not each.routed]
        began = time.monotonic()
        while waiting and not self.stopped.is_set() and time.monotonic() < began + PATIENCE:
            there = [each for each in waiting if is_routed(each.route.label, self.port)]
            if there:
                mark_routed(there)
                waiting = [each for each in waiting if each not in there]
            elif self.changed.is_set():
                return
            else:
                # Nobody tells when Traefik has taken a configuration over.
                time.sleep(max(PAUSE, SHARE * (time.monotonic() - began)))
        if waiting:
            log.warning("the gateway has no route to %s yet", ", ".join(each.route.label for each in waiting[:5]))


class Lookout(Routing):
    """Looks at the gateways of other clouds until they lead to what answers there."""

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__(stopped)
        self._pause = FAR_PAUSE
        self._waiting: frozenset[tuple[int, str]] = frozenset()

    def work(self) -> float:
        waiting = list(waiting_elsewhere())
        keys = frozenset((each.run_id, each.name) for each, _, _ in waiting)
        self._pause = FAR_PAUSE if keys - self._waiting else min(LONGEST_PAUSE, 1.5 * self._pause)
        self._waiting = keys
        if not waiting:
            return ROUND
        with ThreadPoolExecutor(FAR_AT_ONCE, thread_name_prefix="look") as threads:
            leads = list(threads.map(lambda each: leads_to(each[1], each[2]), waiting))
        there = [each for (each, _, _), is_there in zip(waiting, leads, strict=True) if is_there]
        if there:
            mark_routed(there)
        return ROUND if len(there) == len(waiting) else self._pause


class Living:
    """An endpoint that answers."""

    def __init__(self, run_id: int, name: str, facts: Mapping[str, Any], label: str) -> None:
        self.run_id, self.name, self.routed = run_id, name, bool(facts["routed"])
        self.route = Route(label, facts["address"])


def living_endpoints() -> list[Living]:
    """Every endpoint on this machine that answers, with its label. One query."""
    rows = Run.objects.filter(gone=False, cloud=LOCAL).exclude(endpoints={}).select_related("cluster").order_by("pk")
    return [
        Living(run.pk, name, facts, run.cluster.origins[name])
        for run in rows.only("endpoints", "cluster__origins")
        for name, facts in run.endpoints.items()
        if name in run.cluster.origins
    ]


def waiting_elsewhere() -> Iterator[tuple[Living, str, Gateway]]:
    """Endpoints on other clouds that answer and are not known to be led to, each with its host and gateway. One query, and one
    for each cloud."""
    rows = Run.objects.filter(gone=False).exclude(cloud=LOCAL).exclude(endpoints={}).select_related("cluster")
    gateways: dict[str, Gateway | None] = {}
    for run in rows.only("cloud", "endpoints", "cluster__origins").order_by("pk"):
        for name, facts in run.endpoints.items():
            origin = run.cluster.origins.get(name)
            if facts["routed"] or origin is None:
                continue
            if run.cloud not in gateways:
                gateways[run.cloud] = gateway_of(run.cloud)
            if gateway := gateways[run.cloud]:
                yield Living(run.pk, name, facts, origin.partition(".")[0]), name_of(origin), gateway


def leads_to(host: str, gateway: Gateway) -> bool:
    """Whether a gateway elsewhere leads to the endpoint that is opened as `host`. It is asked as anybody may ask it, and what it
    says opens nothing, so its certificate is for browsers to judge."""
    address, named = way_to(host, gateway)
    options: dict[str, Any] = {"timeout": FAR_SECONDS, "retries": False, "maxsize": 1}
    pool: urllib3.HTTPConnectionPool
    if address.scheme == "https":
        pool = urllib3.HTTPSConnectionPool(
            address.hostname or "", address.port, cert_reqs="CERT_NONE", server_hostname=host, **options
        )
    else:
        pool = urllib3.HTTPConnectionPool(address.hostname or "", address.port, **options)
    with pool:
        try:
            headers = {"Host": named}
            told = pool.request("GET", ROUTED, headers=headers, redirect=False)
            if told.headers.get("X-Portal-Routed") == "yes":
                return True
            # One that knows only yes and no sends whoever asks for the endpoint itself on, and nobody else does that.
            found = pool.request("GET", "/", headers=headers, redirect=False)
            return urlsplit(found.headers.get("Location", "")).path == SIGN_IN_AT
        except urllib3.exceptions.HTTPError:
            return False


def way_to(host: str, gateway: Gateway) -> tuple[SplitResult, str]:
    """Where a gateway elsewhere is asked for what is opened as `host`, and what such a request has in its Host header."""
    port = "" if settings.APPS_PORT == settings.APPS_USUAL_PORT else f":{settings.APPS_PORT}"
    return urlsplit(gateway.address or f"{settings.APPS_SCHEME}://{host}:{settings.APPS_PORT}"), f"{host}{port}"


def is_routed(label: str, port: int) -> bool:
    """Whether the gateway leads to this endpoint by a route of its own."""
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        asked.request("GET", ROUTED, headers={"Host": f"{label}.{settings.APPS_DOMAIN}:{settings.APPS_PORT}"})
        return asked.getresponse().headers.get("X-Portal-Routed") == "yes"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asked.close()


def mark_routed(there: list[Living]) -> None:
    """From now on people are sent there. What stopped answering meanwhile is left as it is."""
    with transaction.atomic():
        for each in there:
            with connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE clusters_run SET endpoints = jsonb_set(endpoints, ARRAY[%s, 'routed'], 'true') "
                    "WHERE id = %s AND endpoints -> %s ->> 'address' = %s",
                    [each.name, each.run_id, each.name, each.route.address],
                )
        ids = [each.run_id for each in there]
        locked = Run.objects.filter(pk__in=ids).order_by("pk").select_for_update(of=("self",), no_key=True)
        refresh(list(locked.select_related("cluster__appcode", "created_by")), timezone.now())


def _write(path: Path, text: str) -> None:
    """In one step, so that the gateway never reads half of it."""
    new = path.with_name(f".{path.name}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w") as file:
        file.write(text)
    new.replace(path)
