"""From sightings of pods to segments, exactly once, inside the transaction of whoever watched; and what it has cost so
far.

The observations are the truth and are only ever added to; a segment is what `usage.segment_of` makes of all
observations of its pod. So recording a batch twice, in pieces, or by two controllers at the same time ends in the same
rows, and a transaction that dies leaves nothing half-counted.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby

from django.db import connection
from django.utils import timezone

from billing import sums
from billing.models import Observation, Price, UsageSegment
from billing.rating import SECONDS_PER_HOUR, Prices
from billing.usage import PodState, Segment, segment_of

# The key of the advisory lock that lets one transaction record at a time: "meter" in ASCII.
RECORDING = 0x6D65746572
SEGMENT_FIELDS = [field.name for field in UsageSegment._meta.concrete_fields if field.name not in ("id", "uid")]
BEGINNING = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Totals:
    """What a consumer has used at the asked time, and how fast that grows: value later = value + rate × seconds.

    `gpu_rate` is GPUs held (GPU-seconds a second) and `cost_rate` money per second; they are exact until something
    begins or ends or a price changes (`Prices.next_change`).
    """

    gpu_seconds: int = 0
    gpu_rate: int = 0
    cost: Decimal = Decimal(0)
    cost_rate: Decimal = Decimal(0)


def record(states: Sequence[PodState]) -> None:
    """Appends what was seen and brings the segments of those pods up to date, in four queries for any number of states.

    Raises RuntimeError outside a transaction: the position of the watch must be saved with what it has led to.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("metering.record must run inside the transaction that saves the position of the watch")
    if not states:
        return
    keep_others_out()
    seen_at = timezone.now()
    rows = [Observation.of(replace(state, seen_at=seen_at)) for state in states]
    Observation.objects.bulk_create(rows, ignore_conflicts=True)
    store(segments_of(Observation.objects.filter(uid__in={state.uid for state in states}).order_by("uid")))


def keep_others_out() -> None:
    """Waits until no other transaction records, and lets none begin before this one ends.

    What is read afterwards (READ COMMITTED) includes all that they have written.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [RECORDING])


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


def price_book() -> Prices:
    """All prices, in one query. They are few and change rarely, but a page must never show yesterday's: no cache."""
    return Prices(tuple(price.dated for price in Price.objects.all()))


def totals(consumers: Sequence[str], now: dt.datetime) -> dict[str, Totals]:
    """Usage and cost of each consumer from its beginning until `now`, zeros for an unknown one; two queries.

    What began within this very second has no usage yet but a rate, so the window ends after it.
    """
    if not consumers:
        return {}
    window = (BEGINNING, now + dt.timedelta(seconds=1))
    found = {
        row.key[0]: Totals(row.gpu_seconds, row.gpus, row.cost, row.cost_per_hour / SECONDS_PER_HOUR)
        for row in sums.usage(price_book(), by=["consumer"], windows=[window], now=now, consumers=consumers)
    }
    return {consumer: found.get(consumer, Totals()) for consumer in consumers}
