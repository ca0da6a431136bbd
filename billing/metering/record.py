"""Records sightings of pods and updates their segments exactly once, inside the caller's transaction.

Observations are the source of truth and append-only; `segments.segment_of` derives a segment from all observations of
its pod. So recording a batch twice, in pieces, or by two controllers at once gives the same rows, and an aborted
transaction leaves nothing.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
from collections.abc import Iterable, Sequence
from itertools import groupby

from django.db import connection
from django.utils import timezone

from billing.metering import ingest, sightings
from billing.metering.models import Observation, Quarantined, UsageSegment
from billing.metering.segments import PodState, Segment, segment_of
from portal.db.advisory_lock import Lock, lock_until_commit
from portal.models import Appcode

log = logging.getLogger(__name__)
SEGMENT_FIELDS = [field.name for field in UsageSegment._meta.concrete_fields if field.name not in ("id", "uid")]


def record(states: Sequence[PodState], *, seen_at: dt.datetime | None = None) -> set[str]:
    """Adds sightings and updates the segments of their pods, in a constant number of queries. `seen_at` defaults to now.
    Sightings that cannot be interpreted are quarantined, and the rest goes on. Returns the consumers whose usage or cost
    changed. Raises RuntimeError outside a transaction: the position of the watch must be saved together with its effects."""
    if not connection.in_atomic_block:
        raise RuntimeError("metering.record must run inside the transaction that saves the position of the watch")
    seen_at = seen_at or timezone.now()
    if not (known := _understood(states, seen_at) if states else []):
        return set()
    ingest.bring(known)
    return ingest.add_up(seen_at, {state.cloud for state in known})


def _understood(states: Sequence[PodState], seen_at: dt.datetime) -> list[PodState]:
    """The sightings that can be metered; quarantines the others."""
    problems = [sightings.problem(state) for state in states]
    missing = missing_appcodes(state for state, problem in zip(states, problems, strict=True) if not problem)
    if not any(problems) and not missing:
        return list(states)
    known, refused = [], []
    for state, problem in zip(states, problems, strict=True):
        if not problem and state.appcode_id in missing:
            problem = f"There is no appcode with the number {state.appcode_id}."
        if problem:
            refused.append(quarantined(str(state.cloud), sightings.raw(state), problem, seen_at))
        else:
            known.append(state)
    quarantine(refused)
    return known


def missing_appcodes(states: Iterable[PodState]) -> set[int]:
    """The ids of their appcodes that do not exist."""
    codes = {state.appcode_id for state in states}
    return codes - set(Appcode.objects.filter(pk__in=codes).values_list("pk", flat=True))


def quarantined(cloud: str, raw: str | bytes, reason: str, seen_at: dt.datetime) -> Quarantined:
    """A row for `quarantine`. `raw` is kept as it came, as far as a text column can hold it."""
    text = raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")
    text = text.replace("\0", "\\u0000").encode(errors="backslashreplace").decode()
    cloud = cloud.replace("\0", "").encode(errors="replace").decode()[:40]
    digest = hashlib.sha256(f"{cloud} {text}".encode()).hexdigest()
    return Quarantined(cloud=cloud, raw=text, reason=reason[:300], seen_at=seen_at, digest=digest)


def quarantine(rows: Sequence[Quarantined]) -> None:
    """Stores the rows, each sighting once."""
    if rows:
        Quarantined.objects.bulk_create(rows, ignore_conflicts=True)
        log.error("%d sightings were not understood and are in quarantine: %s", len(rows), rows[0].reason)


def keep_others_out() -> None:
    """Waits for running recordings and blocks new ones until this transaction ends. Reads after it (READ COMMITTED) see
    all that the others wrote."""
    lock_until_commit(Lock.METERING)


def store(segments: Iterable[Segment]) -> None:
    """Writes the segments over those of the same pods, in one statement."""
    UsageSegment.objects.bulk_create(
        map(UsageSegment.of, segments), update_conflicts=True, unique_fields=["uid"], update_fields=SEGMENT_FIELDS
    )


def segments_of(observations: Iterable[Observation]) -> Iterable[Segment]:
    """The segments derived from `observations`, which must be ordered by uid."""
    for _, of_one_pod in groupby(observations, key=lambda observation: observation.uid):
        segment = segment_of([observation.state for observation in of_one_pod])
        if segment is not None:
            yield segment
