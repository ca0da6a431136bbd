"""From sightings of pods to segments, exactly once, inside the transaction of whoever watched.

The observations are the truth and are only ever added to; a segment is what `segments.segment_of` makes of all
observations of its pod. So recording a batch twice, in pieces, or by two controllers at the same time ends in the same
rows, and a transaction that dies leaves nothing half-counted.
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
    """Appends what was seen and brings the segments of those pods up to date, in a constant number of queries.

    They were seen now unless `seen_at` says when. What cannot be understood is put in quarantine, and the rest goes on. Returns
    the consumers for whom that changes usage or cost.

    Raises RuntimeError outside a transaction: the position of the watch must be saved with what it has led to.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("metering.record must run inside the transaction that saves the position of the watch")
    seen_at = seen_at or timezone.now()
    if not (known := _understood(states, seen_at) if states else []):
        return set()
    ingest.bring(known)
    return ingest.add_up(seen_at, {state.cloud for state in known})


def _understood(states: Sequence[PodState], seen_at: dt.datetime) -> list[PodState]:
    """Those that can be metered; the others are quarantined."""
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
    """The numbers of appcodes in them that do not exist."""
    codes = {state.appcode_id for state in states}
    return codes - set(Appcode.objects.filter(pk__in=codes).values_list("pk", flat=True))


def quarantined(cloud: str, raw: str | bytes, reason: str, seen_at: dt.datetime) -> Quarantined:
    """A row for what nobody understands, for `quarantine`. `raw` is kept as it came, as far as a text can."""
    text = raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")
    text = text.replace("\0", "\\u0000").encode(errors="backslashreplace").decode()
    cloud = cloud.replace("\0", "").encode(errors="replace").decode()[:40]
    digest = hashlib.sha256(f"{cloud} {text}".encode()).hexdigest()
    return Quarantined(cloud=cloud, raw=text, reason=reason[:300], seen_at=seen_at, digest=digest)


def quarantine(rows: Sequence[Quarantined]) -> None:
    """Keeps them, once each."""
    if rows:
        Quarantined.objects.bulk_create(rows, ignore_conflicts=True)
        log.error("%d sightings were not understood and are in quarantine: %s", len(rows), rows[0].reason)


def keep_others_out() -> None:
    """Waits until no other transaction records, and lets none begin before this one ends.

    What is read afterwards (READ COMMITTED) includes all that they have written.
    """
    lock_until_commit(Lock.METERING)


def store(segments: Iterable[Segment]) -> None:
    """Writes the segments over those of the same pods, in one statement."""
    UsageSegment.objects.bulk_create(
        map(UsageSegment.of, segments), update_conflicts=True, unique_fields=["uid"], update_fields=SEGMENT_FIELDS
    )


def segments_of(observations: Iterable[Observation]) -> Iterable[Segment]:
    """The segments that follow from `observations`, which come ordered by uid."""
    for _, of_one_pod in groupby(observations, key=lambda observation: observation.uid):
        segment = segment_of([observation.state for observation in of_one_pod])
        if segment is not None:
            yield segment
