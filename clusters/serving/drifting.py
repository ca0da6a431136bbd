"""What services are asked beside what their models were trained with: once a minute each replica that answers is asked for its
counts (`/v2/models/NAME/drift`), and what came since the last time is added to the hour of its revision.

What a replica answers is the word of a tenant's program: it may have so many bytes and take so many seconds, and is read by a
schema; who says nothing of use is left alone for a while. A few are asked at once, and what one said is written before another
is asked in its place. The last counts of a replica stand in its row and change in the transaction that adds the difference, so
nothing is counted twice, whoever dies; what a replica counted after it was last asked is lost with it.
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
from clusters.clouds.drivers.base.asking import answer
from clusters.model_registry import drift
from clusters.model_registry.drift import Column, Reading
from clusters.models import Replica, RevisionDrift
from clusters.runs.routing import Routing
from clusters.serving.telling import told
from portal.db.advisory_lock import Lock, advisory_lock

log = logging.getLogger(__name__)

# Seconds between two times that all are asked, for a replica to take the connection, and for its whole answer.
OFTEN, CONNECTED, PATIENCE = 60.0, 2.0, 10.0
AT_ONCE = 16
# For how long one that said nothing of use is left alone.
REST = dt.timedelta(minutes=10)
# As much as one reading may say.
MOST_COUNTED = 2**53 - 1
# Columns that an event names.
NAMED = 5


@dataclass(frozen=True)
class Asked:
    replica: int
    address: str
    model: str
    proof: str = field(default="", repr=False)


class Drifting(Routing):
    """Asks once a minute, in one controller at a time."""

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
    """Asks all that answer, but for those that rest (until when, by replica), which it brings up to date."""
    resting = {} if resting is None else resting
    asked = whom_to_ask()
    known = {each.replica for each in asked}
    for replica, until in list(resting.items()):
        # A clock that has jumped back lets nobody rest for longer.
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
    """Each replica that answers, or still answers what it was asked before. One query."""
    rows = Replica.objects.filter(state__in=[Replica.State.SERVING, Replica.State.DRAINING]).exclude(address="")
    found = rows.order_by("pk").values_list("pk", "address", "revision__model", "cluster__proof")
    return [Asked(pk, address, model.partition("/")[0], proof or "") for pk, address, model, proof in found]


def ask_all(asked: Iterable[Asked]) -> Iterator[tuple[Asked, bytes]]:
    """What each says, nothing where it says nothing of use, as it comes. One that is slow holds its own place alone; who takes an
    answer makes room for the next, so there are never more than AT_ONCE of them in memory."""
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
    """Adds what came since the last reading of this replica to the hour of its revision; the same reading again adds nothing."""
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
    """As the row of a replica keeps it: of each column its counts alone, for its bins come again with the next reading."""
    said = reading.model_dump(mode="json", include={"since", "rows"})
    return said | {"bins": reading.bins, "seen": [each.seen for each in reading.columns]}


def _before(reading: Reading, counted: Mapping[str, Any]) -> Reading | None:
    """The reading that `_counted` kept; None where it had other bins, so that a program has begun anew."""
    if not counted or counted["bins"] != reading.bins:
        return None
    columns = tuple(each.counted(seen) for each, seen in zip(reading.columns, counted["seen"], strict=True))
    since = dt.datetime.fromisoformat(counted["since"])
    return reading.model_copy(update={"since": since, "rows": counted["rows"], "columns": columns})


def _judge(replica: Replica, row: RevisionDrift, had: Reading, found: Reading) -> None:
    """Says it once, when an alert begins; it goes on in the hours after it until one of them, of enough rows, is as it was."""
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
    told(revision.service, "drift", None, message, revision=revision.number, psi=worst, columns=len(drifted))
