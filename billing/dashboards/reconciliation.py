"""What does not fit or had to be corrected: pods without an end, estimated or clamped times, sightings that could not
be interpreted, and reversals in the ledger. Each can be traced to its segment and sightings."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from billing.efficiency.models import Outcome
from billing.metering.models import Quarantined, UsageSegment
from billing.metering.segments import FLAGS
from billing.money import money
from billing.periods import Range, midnight

MOST_ROWS = 100
# Rows per fetch when all rows are streamed.
PORTION = 2000
# A run is marked as ended before its last pod is gone, and events arrive late.
PATIENCE = dt.timedelta(minutes=10)
# Segments of volumes.
VOLUME = Q(gpus=0, cpu_milli=0, memory_mb=0, storage_mb__gt=0)
OF_APPCODES = "(%(appcodes)s::bigint[] IS NULL OR appcode_id = ANY(%(appcodes)s))"

FLAGGED = f"""
SELECT {{place}}, flag, count(*) FROM billing_usagesegment s CROSS JOIN LATERAL jsonb_array_elements_text(flags) flag
WHERE NOT (flags = '[]'::jsonb) AND ended >= %(since)s AND ended < %(until)s AND {OF_APPCODES}
GROUP BY 1, 2
"""  # noqa: S608
PLACES = {
    "day": "(ended AT TIME ZONE 'UTC')::date",
    "month": "greatest(date_trunc('month', ended AT TIME ZONE 'UTC')::date, %(first)s)",
}
# What one posting reversed of one segment, and what it charged instead.
TAKEN = f"""
WITH taken AS (
    SELECT max(id) AS number, segment_id, posted_at, min(uid) AS uid, min(appcode_id) AS appcode_id,
        coalesce(min(labels->>'cluster'), '') AS cluster, coalesce(min(labels->>'run'), '') AS run,
        min(since) AS since, count(*) AS lines, sum(charge) AS charge
    FROM billing_ledgerentry
    WHERE reverses_id IS NOT NULL AND posted_at >= %(since)s AND posted_at < %(until)s AND {OF_APPCODES}
    GROUP BY segment_id, posted_at
)
"""  # noqa: S608
# Ledger ids grow with the time of posting.
CORRECTIONS = f"""{TAKEN}
SELECT taken.*, coalesce((
    SELECT sum(e.charge) FROM billing_ledgerentry e
    WHERE e.segment_id = taken.segment_id AND e.kind = 'usage' AND e.posted_at = taken.posted_at
), 0) AS instead
FROM taken WHERE %(before)s::bigint IS NULL OR number < %(before)s ORDER BY number DESC LIMIT %(most)s
"""  # noqa: S608
CORRECTED = f"{TAKEN} SELECT count(*), coalesce(sum(charge), 0) FROM taken"  # noqa: S608


@dataclass(frozen=True)
class Correction:
    """`taken` is the reversed charge (never positive), `instead` what the same posting charged for the segment.
    `number` is the id of the last reversal."""

    number: int
    segment_id: int
    posted_at: dt.datetime
    uid: str
    appcode_id: int
    cluster: str
    run: str
    since: dt.datetime
    lines: int
    taken: Decimal
    instead: Decimal

    @property
    def difference(self) -> Decimal:
        return self.taken + self.instead


@dataclass(frozen=True)
class Endless:
    """A pod that still holds its resources, as far as is known, although its run is over."""

    segment: UsageSegment
    word: str
    over: dt.datetime


@dataclass(frozen=True)
class Report:
    """Counts cover everything, lists the latest MOST_ROWS. `quarantine` is None for users who may not see it. `open`
    counts only pods: a volume has no end until it is deleted."""

    open: int
    endless: list[Endless]
    flags: dict[str, int]
    columns: dict[dt.date, dict[str, int]]
    flagged: list[UsageSegment]
    corrections: list[Correction]
    corrected: int
    taken: Decimal
    quarantine: list[Quarantined] | None
    quarantined: int


def report(range_: Range, now: dt.datetime, *, appcodes: Sequence[int] | None, quarantine: bool) -> Report:
    """What is open now, and what was mended or corrected in the range. A fixed number of queries."""
    wanted = {**_wanted(range_, appcodes), "first": range_.since}
    columns: dict[dt.date, dict[str, int]] = {since: {} for since, _ in range_.columns}
    flags = dict.fromkeys(FLAGS, 0)
    with connection.cursor() as cursor:
        cursor.execute(FLAGGED.format(place=PLACES[range_.step]), wanted)
        for place, flag, count in cursor.fetchall():
            columns[place][flag] = count
            flags[flag] = flags.get(flag, 0) + count
        cursor.execute(CORRECTED, wanted)
        corrected, taken = cursor.fetchone()
    unresolved = quarantined()
    return Report(
        open=_segments(appcodes).filter(ended=None).exclude(VOLUME).count(),
        endless=list(with_outcomes(endless(now, appcodes).order_by("started", "pk")[:MOST_ROWS])),
        flags=flags,
        columns=columns,
        flagged=list(flagged(range_, appcodes).order_by("-ended", "pk")[:MOST_ROWS]),
        corrections=list(corrections(range_, appcodes, most=MOST_ROWS)),
        corrected=corrected,
        taken=money(taken),
        quarantine=list(unresolved[:MOST_ROWS]) if quarantine else None,
        quarantined=unresolved.count() if quarantine else 0,
    )


def flagged(range_: Range, appcodes: Sequence[int] | None) -> QuerySet[UsageSegment]:
    """Segments that ended in the range and had a time mended."""
    ended = {"ended__gte": midnight(range_.since), "ended__lt": midnight(range_.until)}
    return _segments(appcodes).exclude(flags=[]).filter(**ended).select_related("appcode")


def endless(now: dt.datetime, appcodes: Sequence[int] | None) -> QuerySet[UsageSegment]:
    """Open segments whose consumer has ended: no sighting reported their end."""
    over = Outcome.objects.filter(ended_at__lt=now - PATIENCE)
    return _segments(appcodes).filter(ended=None, consumer__in=over.values("consumer")).select_related("appcode")


def with_outcomes(rows: Iterable[UsageSegment]) -> list[Endless]:
    """Rows of `endless`, each with its consumer's outcome."""
    found = list(rows)
    words = {each.consumer: each for each in Outcome.objects.filter(consumer__in={row.consumer for row in found})}
    return [Endless(row, words[row.consumer].word, words[row.consumer].ended_at) for row in found]


def quarantined() -> QuerySet[Quarantined]:
    return Quarantined.objects.filter(resolved_at=None)


def corrections(
    range_: Range, appcodes: Sequence[int] | None, *, before: int | None = None, most: int | None = None
) -> Iterator[Correction]:
    """Yields what was taken back in the range, latest first, in constant memory: ids below `before`, at most `most`
    (None: all)."""
    with connection.chunked_cursor() as cursor:
        cursor.execute(CORRECTIONS, {**_wanted(range_, appcodes), "before": before, "most": most})
        while rows := cursor.fetchmany(PORTION):
            for *facts, charge, instead in rows:
                yield Correction(*(*facts, money(charge), money(instead)))


def _segments(appcodes: Sequence[int] | None) -> QuerySet[UsageSegment]:
    return UsageSegment.objects.all() if appcodes is None else UsageSegment.objects.filter(appcode__in=list(appcodes))


def _wanted(range_: Range, appcodes: Sequence[int] | None) -> dict[str, Any]:
    since, until = midnight(range_.since), midnight(range_.until)
    return {"appcodes": None if appcodes is None else list(appcodes), "since": since, "until": until}
