"""Compares the inputs and outputs of services with their models' training samples: once a minute, polls each answering replica
for its counters (`/v2/models/NAME/drift`), and adds the increase since the last poll to the hour of its revision.

A replica's answer comes from a tenant's program: it is limited in bytes and seconds, and validated by a schema. A replica with
an unusable answer is skipped for a while. Few are polled concurrently, and an answer is written before another replica is
polled in its place. The last counters are in the replica's row and change in the transaction that adds the increase, so nothing
is counted twice after a crash. What a replica counts after its last poll is lost when it ends.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.db import transaction
from django.utils import timezone

from clusters.clouds.drivers import entrance
from clusters.clouds.drivers.base.probes import answer
from clusters.model_registry import drift
from clusters.model_registry.drift import Column, Reading
from clusters.runs.routing import Routing
from clusters.services.access import SERVICES
from clusters.services.models import Replica, RevisionDrift
from portal.db.advisory_lock import Lock, advisory_lock

log = logging.getLogger(__name__)

# Seconds between two polls of a replica, until it accepts the connection, and for its whole answer.
OFTEN, CONNECTED, PATIENCE = 60.0, 2.0, 10.0
AT_ONCE = 16
# How long a replica with an unusable answer is skipped.
REST = dt.timedelta(minutes=10)
# 2**53 - 1: limit of the counters of one hour.
MOST_COUNTED = 2**53 - 1
# Number of columns that an event names.
NAMED = 5


@dataclass(frozen=True)
class Asked:
    replica: int
    address: str
    model: str
    proof: str = field(default="", repr=False)


class Drifting(Routing):
    """Polls once a minute, in one controller at a time."""

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__(stopped)
        self._next = 0.0
        self._resting: dict[int, dt.datetime] = {}

    def work(self) -> float:
        if (early := self._next - time.monotonic()) > 0:
            return early
        self._next = time.monotonic() + OFTEN
        with advisory_lock(Lock.SERVICES, "drift") as is_mine:
            if is_mine:
                tick(timezone.now(), self._resting)
        return max(0.0, self._next - time.monotonic())


def tick(now: dt.datetime, resting: dict[int, dt.datetime] | None = None) -> None:
    """Polls all answering replicas except those in `resting` (until when, by replica), which it updates."""
    resting = {} if resting is None else resting
    asked = whom_to_ask()
    known = {each.replica for each in asked}
    for replica, until in list(resting.items()):
        # After a clock jump backwards, nobody rests for longer than REST.
        if replica not in known or not now <= until <= now + REST:
            del resting[replica]
    asked = [each for each in asked if each.replica not in resting]
    for each, said in ask_all(asked):
        reading = _read(said)
        if reading is None:
            resting[each.replica] = now + REST
        else:
            keep(each.replica, reading, now)


def whom_to_ask() -> list[Asked]:
    """Replicas that answer, or still answer earlier requests. One query."""
    rows = Replica.objects.filter(state__in=[Replica.State.SERVING, Replica.State.DRAINING]).exclude(address="")
    found = rows.order_by("pk").values_list("pk", "address", "revision__model", "cluster__proof")
    return [Asked(pk, address, model.partition("/")[0], proof or "") for pk, address, model, proof in found]


def ask_all(asked: Iterable[Asked]) -> Iterator[tuple[Asked, bytes]]:
    """Yields each answer as it arrives, b"" for an unusable one. A slow replica only occupies its own place. A place is
    refilled after its answer was consumed, so at most AT_ONCE answers are in memory."""
    rest, flying = iter(asked), set[asyncio.Task[tuple[Asked, bytes]]]()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        while flying := flying | {loop.create_task(_ask(each)) for each in islice(rest, AT_ONCE - len(flying))}:
            done, flying = runner.run(asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED))
            yield from (each.result() for each in done)


async def _ask(each: Asked) -> tuple[Asked, bytes]:
    host, _, port = each.address.rpartition(":")
    proven = f"Host: localhost\r\n{entrance.HEADER}: {each.proof}"
    request = f"GET /v2/models/{each.model}/drift HTTP/1.0\r\n{proven}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(CONNECTED):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        async with asyncio.timeout(PATIENCE):
            status, body = await answer(reader, writer, request.encode(), drift.MOST_BYTES + 1)
    except (OSError, ValueError):
        return each, b""
    return each, body if status == 200 and len(body) <= drift.MOST_BYTES else b""


def _read(said: bytes) -> Reading | None:
    try:
        return drift.read(json.loads(said))
    except (ValueError, RecursionError):
        return None


@transaction.atomic
def keep(replica_id: int, reading: Reading, now: dt.datetime) -> None:
    """Adds the increase since the replica's last reading to the hour of its revision. A repeated reading adds nothing."""
    rows = Replica.objects.select_for_update(of=("self",), no_key=True).exclude(state=Replica.State.GONE)
    replica = rows.select_related("revision__service__appcode").filter(pk=replica_id).first()
    if replica is None:
        return
    came = drift.between(reading, _before(reading, replica.counted))
    if not came.rows or not came.columns:
        return
    hour = now.replace(minute=0, second=0, microsecond=0)
    RevisionDrift.objects.get_or_create(revision=replica.revision, hour=hour)
    row = RevisionDrift.objects.select_for_update().get(revision=replica.revision, hour=hour)
    had = Reading.model_construct(since=now, rows=row.rows, columns=tuple(drift.again(row.columns)))
    found = drift.together([had, came])
    if found is None or max(found.rows, *(each.rows for each in found.columns)) > MOST_COUNTED:
        return
    found = found.model_copy(update={"columns": found.columns[: drift.MOST_COLUMNS]})
    replica.counted = _counted(reading)
    replica.save(update_fields=["counted"])
    _judge(replica, row, had, found)
    row.rows, row.columns = found.rows, drift.documents(found)
    row.save()


def _counted(reading: Reading) -> dict[str, Any]:
    """A reading as the replica's row stores it: the counts of each column without the bins, which the next reading has again."""
    said = reading.model_dump(mode="json", include={"since", "rows"})
    return said | {"bins": reading.bins, "seen": [each.seen for each in reading.columns]}


def _before(reading: Reading, counted: Mapping[str, Any]) -> Reading | None:
    """The reading that `_counted` stored; None if its bins were others, because the program has started anew."""
    if not counted or counted["bins"] != reading.bins:
        return None
    columns = tuple(each.counted(seen) for each, seen in zip(reading.columns, counted["seen"], strict=True))
    since = dt.datetime.fromisoformat(counted["since"])
    return reading.model_copy(update={"since": since, "rows": counted["rows"], "columns": columns})


def _judge(replica: Replica, row: RevisionDrift, had: Reading, found: Reading) -> None:
    """Records an event when an alert begins. It goes on in later hours, until one of them with enough rows is back to normal."""
    drifted = [each for each in _worst(found) if each.psi is not None and each.psi >= drift.LARGE]
    before = RevisionDrift.objects.filter(revision=row.revision_id, hour__lt=row.hour).order_by("-hour").first()
    goes_on = before is not None and before.alerted
    if drifted:
        if not row.alerted and not goes_on:
            _tell(replica, drifted)
        row.alerted = True
    elif not any(True for _ in _enough(found)):
        row.alerted = goes_on
    else:
        row.alerted = row.alerted and any(True for _ in _enough(had))


def _enough(reading: Reading) -> Iterator[Column]:
    return (each for each in reading.columns if each.rows >= drift.MIN_ROWS)


def _worst(reading: Reading) -> list[Column]:
    return sorted(reading.columns, key=lambda each: -(each.psi or 0))


def _tell(replica: Replica, drifted: Sequence[Column]) -> None:
    revision = replica.revision
    named = ", ".join(f"{each.kind} {each.words} ({each.psi:.2f})" for each in drifted[:NAMED])
    more = f" and {len(drifted) - NAMED:,} more" if len(drifted) > NAMED else ""
    message = f"{revision.model} is asked or answers something else than its training sample has: {named}{more}."
    worst = round(drifted[0].psi or 0, 4)
    SERVICES.record(revision.service, "drift", None, message, revision=revision.number, psi=worst, columns=len(drifted))
