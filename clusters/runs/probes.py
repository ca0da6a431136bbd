"""Polls whether applications on other clouds work: a thread of the controller, as the node agent does on this machine.

It polls through that cloud's gateway, the way users come: the portal runs nothing in the cluster for it and does not load its
API server. Each run is polled every settings.ACTIVITY_SECONDS, one part of the runs at a time. State is kept in memory, so a
restart begins anew, and only changes are written. An endpoint that is not routed, does not answer or answers something else is
unknown, never idle (`drivers/base/activity.py`). If this thread stops polling, `CloudState.asked_at` shows that to `idle.py`,
which would otherwise stop runs that were idle then.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from billing.efficiency import measured
from billing.efficiency.models import MeasuredHour
from clusters.clouds.drivers.base import ActivitySeen, Gateway
from clusters.clouds.drivers.base.activity import Activity, Look, after, read
from clusters.clouds.drivers.base.probes import MOST_SAID, answer
from clusters.clouds.models import LOCAL, CloudState
from clusters.clouds.registry import gateway_of
from clusters.frameworks import FRAMEWORKS
from clusters.gateway import portal_proof
from clusters.gateway.origins import name_of
from clusters.manifest.cluster import ClusterSpec
from clusters.runs.models import Run, Task
from clusters.runs.routing import Routing, way_to
from clusters.runs.status.observe import apply_activity

# Parts of the runs, each polled in its own turn; concurrent requests within a part.
PARTS, AT_ONCE = 12, 32
# Seconds: until a gateway accepts a connection, and for the whole answer.
CONNECTED, PATIENCE = 3.0, 5.0
# A GPU's minute is known up to three minutes after its end.
MEASURED = dt.timedelta(minutes=5)
# Measured and busy GPU-milliseconds by pod and hour.
Sums = Mapping[tuple[str, dt.datetime], tuple[int, int]]


@dataclass(frozen=True)
class Asked:
    """One endpoint that reports whether its run works: `path` at `host`, through `gateway`. It has answered since `since`."""

    run_id: int
    cloud: str
    gateway: Gateway
    host: str
    path: str
    since: str


@dataclass
class Known:
    """State of one attempt."""

    since: str
    activity: Activity
    gpus: Sums = field(default_factory=dict)


class Asker(Routing):
    def __init__(self, stopped: threading.Event) -> None:
        super().__init__(stopped)
        self._known: dict[int, Known] = {}
        self._part, self._next = -1, 0.0
        # When each part was last polled.
        self._asked: list[dt.datetime | None] = [None] * PARTS

    def work(self) -> float:
        if (early := self._next - time.monotonic()) > 0:
            return early
        self._next = time.monotonic() + settings.ACTIVITY_SECONDS / PARTS
        self._part = (self._part + 1) % PARTS
        if not self._part:
            times = [each for each in self._asked if each]
            since = min(times) if len(times) == PARTS else None
            CloudState.objects.exclude(name=LOCAL).update(asked_at=since)
        began = timezone.now()
        self.ask(self._part)
        self._asked[self._part] = began
        return max(0.0, self._next - time.monotonic())

    def ask(self, part: int) -> None:
        """Polls one part of the runs and writes the changes. The number of queries does not grow with the runs."""
        runs = list(working(part))
        asked = {each.run_id: each for each in whom_to_ask(runs)}
        looks = asyncio.run(ask_all(list(asked.values()))) if asked else {}
        pods, hours = gpus_of([run for run in runs if run.gpus and run.pk in asked])
        for gone in [pk for pk in self._known if pk % PARTS == part and pk not in asked]:
            del self._known[gone]
        told: defaultdict[str, list[ActivitySeen]] = defaultdict(list)
        at = time.time()
        for run in runs:
            known = Activity(since=at)
            if each := asked.get(run.pk):
                entry = self._known.get(run.pk)
                if entry is None or entry.since != each.since:
                    entry = self._known[run.pk] = Known(each.since, known)
                look = looks[run.pk]
                if run.gpus:
                    percent, entry.gpus = gpu_percent(pods[run.pk], hours, entry.gpus, timezone.now())
                    look = look and replace(look, gpu_percent=percent)
                known = entry.activity = after(entry.activity, look, at)
            # A run that is not polled yet needs no write. Compare with the row: others may have written it.
            if known.state != (run.activity or ("" if each else "unknown")):
                since = dt.datetime.fromtimestamp(known.since, dt.UTC)
                told[run.cloud].append(ActivitySeen(run.pk, known.state, since, known.why))
        for cloud, items in told.items():
            apply_activity(cloud, items)


def working(part: int) -> Iterable[Run]:
    """Runs of this part on other clouds whose programs report whether they work. One query."""
    says = [name for name, each in FRAMEWORKS.items() if each.idle_signal == "work"]
    rows = Run.objects.filter(gone=False, desired=Run.Desired.RUNNING, verdict="", spec__framework__in=says)
    rows = rows.exclude(cloud=LOCAL).annotate(part=F("pk") % PARTS).filter(part=part).select_related("cluster")
    return rows.only("cloud", "phase", "spec", "gpus", "resources", "endpoints", "activity", "cluster__origins")


def whom_to_ask(runs: Iterable[Run]) -> Iterable[Asked]:
    """The endpoints to poll, of running runs that the gateway routes to. One query for each cloud."""
    gateways: dict[str, Gateway | None] = {}
    for run in runs:
        spec = ClusterSpec.stored(run.spec)
        for each in (each for role in spec.active_roles for each in FRAMEWORKS[spec.framework].endpoints(spec, role)):
            there, origin = run.endpoints.get(each.name, {}), run.cluster.origins.get(each.name)
            if run.phase != Run.Phase.RUNNING or not each.activity or not there.get("routed") or not origin:
                continue
            if run.cloud not in gateways:
                gateways[run.cloud] = gateway_of(run.cloud)
            if gateway := gateways[run.cloud]:
                yield Asked(run.pk, run.cloud, gateway, name_of(origin), each.activity, there["since"])


async def ask_all(asked: Sequence[Asked]) -> dict[int, Look | None]:
    """The answers by run; None for an unusable one. A gateway that accepts no connection is not tried again."""
    at_once, away = asyncio.Semaphore(AT_ONCE), set[str]()

    async def ask(each: Asked) -> Look | None:
        async with at_once:
            return None if each.cloud in away else await _ask(each, away)

    return dict(zip((each.run_id for each in asked), await asyncio.gather(*map(ask, asked)), strict=True))


async def _ask(each: Asked, away: set[str]) -> Look | None:
    address, named = way_to(each.host, each.gateway)
    tls, name, port = (
        (_tls(), each.host, address.port or 443) if address.scheme == "https" else (None, None, address.port or 80)
    )
    try:
        async with asyncio.timeout(CONNECTED):
            reader, writer = await asyncio.open_connection(
                address.hostname, port, ssl=tls, server_hostname=name, limit=MOST_SAID
            )
    except OSError:
        away.add(each.cloud)
        return None
    proof = portal_proof.authorization(each.host.partition(".")[0], each.path)
    # HTTP/1.0, so that the answer comes unchunked, until the connection is closed.
    request = f"GET {each.path} HTTP/1.0\r\nHost: {named}\r\nAuthorization: {proof}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(PATIENCE):
            status, body = await answer(reader, writer, request.encode(), MOST_SAID)
    except (OSError, ValueError):
        return None
    return read(body, time.time(), 0) if status == 200 else None


def _tls() -> ssl.SSLContext:
    """Does not verify the gateway's certificate; that is left to browsers. An impostor gains nothing with what it is sent, and
    its answers can at most stop a run that one click resumes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def gpus_of(runs: Collection[Run]) -> tuple[Mapping[int, list[str]], list[MeasuredHour]]:
    """The pods of each run that hold GPUs, and their recent measurements. Two queries, none without runs."""
    pods: dict[int, list[str]] = {run.pk: [] for run in runs}
    holds = {run.pk: {role for role, each in run.resources.items() if each["gpus"]} for run in runs}
    if runs:
        for run_id, role, uid in Task.objects.filter(run__in=pods, phase="Running").values_list("run", "role", "uid"):
            if role in holds[run_id]:
                pods[run_id].append(uid)
    uids = [uid for some in pods.values() for uid in some]
    return pods, measured.lately(uids, timezone.now() - MEASURED)


def gpu_percent(
    pods: Collection[str], hours: Iterable[MeasuredHour], before: Sums, now: dt.datetime
) -> tuple[int | None, Sums]:
    """GPU use in percent of the busiest of these pods since `before`, and the current sums. None unless every pod was measured
    recently. `hours` may include other pods."""
    percent, recent, sums = 0, set[str](), dict[tuple[str, dt.datetime], tuple[int, int]]()
    for each in hours:
        if each.uid not in pods:
            continue
        key = each.uid, each.hour
        sums[key] = each.measured_ms, each.busy_ms
        measured_before, busy_before = before.get(key, (0, 0))
        if each.measured_ms > measured_before:
            percent = max(percent, round(100 * (each.busy_ms - busy_before) / (each.measured_ms - measured_before)))
        if each.hour + dt.timedelta(minutes=each.minutes.bit_length()) > now - MEASURED:
            recent.add(each.uid)
    return (percent if pods and recent >= set(pods) else None), sums
