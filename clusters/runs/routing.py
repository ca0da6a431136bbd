"""Updates gateway routes as soon as an endpoint starts or stops answering: two threads of the controller.

`Publisher` serves the gateway of this machine: it writes one file that Traefik watches. Gateways of other clouds get their
routes from their cloud, by Ingress. Both threads then poll the gateway until the new route works, because an endpoint counts as
ready only once the gateway routes to it. Nothing is polled while nothing changes. Traefik's HTTP provider would poll the portal
several times a second forever; it is meant for gateways that share no folder with the portal.
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
from clusters.clouds.models import LOCAL
from clusters.clouds.registry import gateway_of
from clusters.gateway.changes import listen
from clusters.gateway.decision import ROUTED, SIGN_IN_AT
from clusters.gateway.origins import name_of
from clusters.gateway.traefik import Route, routers
from clusters.runs.models import Run
from clusters.runs.status.phase_update import refresh

log = logging.getLogger(__name__)

FILE = "endpoints.yaml"
# Seconds after which changes missed by a failed write or a dead controller are found.
ROUND = 30.0
# Seconds before a retry after a failure.
AGAIN = 1.0
# Seconds to wait for a route; minimum pause between two polls; the pause as a share of the time waited so far.
PATIENCE, PAUSE, SHARE = 10.0, 0.01, 0.1
# Polls of gateways on other clouds: first and longest pause in seconds.
FAR_PAUSE, LONGEST_PAUSE = 0.2, 5.0
# Seconds until a poll times out; number of concurrent polls.
FAR_SECONDS, FAR_AT_ONCE = 3.0, 8


class Routing(threading.Thread):
    """Repeats its work whenever endpoints change."""

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self.stopped, self.changed = stopped, listen()

    def work(self) -> float:
        """Does the pending work. Returns the seconds after which there may be more."""
        raise NotImplementedError

    def run(self) -> None:
        while not self.stopped.is_set():
            self.changed.clear()
            try:
                pause = self.work()
            except Exception as error:
                # A bug with one endpoint must not keep the others from being opened.
                expected = isinstance(error, OperationalError | InterfaceError | OSError)
                log.warning("%s: trying again: %s", self.name, error, exc_info=not expected)
                connections.close_all()
                self.stopped.wait(AGAIN)
            else:
                self.changed.wait(pause)


class Publisher(Routing):
    """`folder` is the folder that the gateway watches, `port` the gateway's port on this machine's loopback."""

    def __init__(self, folder: Path, port: int, stopped: threading.Event) -> None:
        super().__init__(stopped)
        self.folder, self.port = folder, port
        # Differs from any configuration, so a file of an earlier controller is rewritten.
        self._written = "?"

    def work(self) -> float:
        self.publish()
        return ROUND

    def publish(self) -> None:
        """Writes the routes of live endpoints, and marks those as routed that the gateway serves within PATIENCE."""
        living = living_endpoints()
        text = json.dumps(routers((each.route for each in living), settings.APPS_DOMAIN), indent=1)
        if text != self._written:
            # Traefik rejects a file without routes, and with it all other files.
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
                # Traefik does not report when it has loaded a configuration, so poll.
                time.sleep(max(PAUSE, SHARE * (time.monotonic() - began)))
        if waiting:
            log.warning("the gateway has no route to %s yet", ", ".join(each.route.label for each in waiting[:5]))


class Lookout(Routing):
    """Polls the gateways of other clouds until they route to the endpoints that answer there."""

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
    """Every answering endpoint on this machine, with its label. One query."""
    rows = Run.objects.filter(gone=False, cloud=LOCAL).exclude(endpoints={}).select_related("cluster").order_by("pk")
    return [
        Living(run.pk, name, facts, run.cluster.origins[name])
        for run in rows.only("endpoints", "cluster__origins")
        for name, facts in run.endpoints.items()
        if name in run.cluster.origins
    ]


def waiting_elsewhere() -> Iterator[tuple[Living, str, Gateway]]:
    """Answering endpoints on other clouds not known to be routed yet, with host and gateway. One query, plus one per cloud."""
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
    """Whether another cloud's gateway routes to the endpoint at `host`. The request carries no credentials and the answer
    grants no access, so the certificate is not verified."""
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
            # A gateway that only understands allow and deny redirects a request for the endpoint to sign-in; nothing else does.
            found = pool.request("GET", "/", headers=headers, redirect=False)
            return urlsplit(found.headers.get("Location", "")).path == SIGN_IN_AT
        except urllib3.exceptions.HTTPError:
            return False


def way_to(host: str, gateway: Gateway) -> tuple[SplitResult, str]:
    """The URL of another cloud's gateway for requests to `host`, and their Host header."""
    port = "" if settings.APPS_PORT == settings.APPS_USUAL_PORT else f":{settings.APPS_PORT}"
    return urlsplit(gateway.address or f"{settings.APPS_SCHEME}://{host}:{settings.APPS_PORT}"), f"{host}{port}"


def is_routed(label: str, port: int) -> bool:
    """Whether the local gateway has a route for this endpoint."""
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        asked.request("GET", ROUTED, headers={"Host": f"{label}.{settings.APPS_DOMAIN}:{settings.APPS_PORT}"})
        return asked.getresponse().headers.get("X-Portal-Routed") == "yes"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asked.close()


def mark_routed(there: list[Living]) -> None:
    """Marks endpoints as routed: users are sent there from now on. Skips those that have stopped answering since."""
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
    """Replaces the file in one step, so that the gateway never reads a partial file."""
    new = path.with_name(f".{path.name}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w") as file:
        file.write(text)
    new.replace(path)
