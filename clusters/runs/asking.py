"""Whether what people opened on other clouds works: a thread of the controller asks, as the agent of this machine does here.

It asks through the gateway of that cloud, by the way that people come: nothing of the portal runs in the cluster for it, and the
API server there has nothing to do with it. Each run is asked every settings.ACTIVITY_SECONDS, a part of them at a time. What is
known of it is kept here, so a restart begins anew, and only a change is written. What the gateway does not lead to, what does
not answer or answers something else is unknown, never idle (`drivers/base/activity.py`); and should this thread ask no more,
`CloudState.asked_at` says so to whoever would stop what was idle then (`idle.py`).
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
from clusters.clouds.drivers.base.asking import MOST_SAID, answer
from clusters.clouds.registry import gateway_of
from clusters.frameworks import FRAMEWORKS
from clusters.gateway import own
from clusters.gateway.origins import name_of
from clusters.manifest import ClusterSpec
from clusters.models import LOCAL, CloudState, Run, Task
from clusters.runs.observe import apply_activity
from clusters.runs.routing import Routing, way_to

# Each part of the runs has a turn of its own; of one, so many are asked at once.
PARTS, AT_ONCE = 12, 32
# Seconds: for a gateway to take a connection, and for the whole answer.
CONNECTED, PATIENCE = 3.0, 5.0
# A minute of a GPU is known up to three minutes after its end.
MEASURED = dt.timedelta(minutes=5)
# GPU-milliseconds that were measured and busy, by pod and hour.
Sums = Mapping[tuple[str, dt.datetime], tuple[int, int]]


@dataclass(frozen=True)
class Asked:
    """One endpoint that says whether its run works: `path` at `host`, by `gateway`. Its program answers `since` then."""

    run_id: int
    cloud: str
    gateway: Gateway
    host: str
    path: str
    since: str


@dataclass
class Known:
    """What is known of one attempt."""

    since: str
    activity: Activity
    gpus: Sums = field(default_factory=dict)


class Asker(Routing):
    def __init__(self, stopped: threading.Event) -> None:
        super().__init__(stopped)
        self._known: dict[int, Known] = {}
        self._part, self._next = -1, 0.0
        # When each part was last asked.
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
        """Asks this part of the runs, and writes what has changed. A number of queries that does not grow with them."""
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
            # What is not asked yet needs no word; what was told is compared with the row, whoever told it.
            if known.state != (run.activity or ("" if each else "unknown")):
                since = dt.datetime.fromtimestamp(known.since, dt.UTC)
                told[run.cloud].append(ActivitySeen(run.pk, known.state, since, known.why))
        for cloud, items in told.items():
            apply_activity(cloud, items)


def working(part: int) -> Iterable[Run]:
    """Runs of this part whose programs say whether they work, on other clouds. One query."""
    says = [name for name, each in FRAMEWORKS.items() if each.idle_signal == "work"]
    rows = Run.objects.filter(gone=False, desired=Run.Desired.RUNNING, verdict="", spec__framework__in=says)
    rows = rows.exclude(cloud=LOCAL).annotate(part=F("pk") % PARTS).filter(part=part).select_related("cluster")
    return rows.only("cloud", "phase", "spec", "gpus", "resources", "endpoints", "activity", "cluster__origins")


def whom_to_ask(runs: Iterable[Run]) -> Iterable[Asked]:
    """Of each run that runs and that the gateway leads to. One query for each cloud."""
    gateways: dict[str, Gateway | None] = {}
    for run in runs:
        spec = ClusterSpec.model_validate(run.spec)
        for each in (each for role in spec.active_roles for each in FRAMEWORKS[spec.framework].endpoints(spec, role)):
            there, origin = run.endpoints.get(each.name, {}), run.cluster.origins.get(each.name)
            if run.phase != Run.Phase.RUNNING or not each.activity or not there.get("routed") or not origin:
                continue
            if run.cloud not in gateways:
                gateways[run.cloud] = gateway_of(run.cloud)
            if gateway := gateways[run.cloud]:
                yield Asked(run.pk, run.cloud, gateway, name_of(origin), each.activity, there["since"])


async def ask_all(asked: Sequence[Asked]) -> dict[int, Look | None]:
    """What each says, by run, None for nothing of use. A gateway that takes no connection is not waited for again."""
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
    proof = own.authorization(each.host.partition(".")[0], each.path)
    # Of the older protocol comes what is said in one piece, until the connection is closed.
    request = f"GET {each.path} HTTP/1.0\r\nHost: {named}\r\nAuthorization: {proof}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(PATIENCE):
            status, body = await answer(reader, writer, request.encode(), MOST_SAID)
    except (OSError, ValueError):
        return None
    return read(body, time.time(), 0) if status == 200 else None


def _tls() -> ssl.SSLContext:
    """The certificate of a gateway is for browsers to judge. Who stands in its place opens nothing with what they are sent, and
    what they say can at most stop what is resumed by one click."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def gpus_of(runs: Collection[Run]) -> tuple[Mapping[int, list[str]], list[MeasuredHour]]:
    """The pods of each run that hold GPUs, and what was measured of them lately. Two queries, none for no runs."""
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
    """How busy the busiest of these pods was with its GPUs since the sums were as `before`, and how these are now; None unless
    each was measured lately. `hours` may have those of other pods, too."""
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
