"""What does not fit, or had to be mended: pods without an end, ends and times that were estimated or clamped, sightings that
nobody understood, and what the ledger had to take back. All of it can be followed to the segment and the sightings behind it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from billing.dashboard import Range, midnight
from billing.models import Outcome, Quarantined, UsageSegment
from billing.rating import money
from billing.usage import FLAGS

MOST_ROWS = 100
# A run is called over before the last of its pods is, and news take a moment.
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
# What one posting took back of one segment, and what it wrote instead.
CORRECTIONS = f"""
WITH taken AS (
    SELECT segment_id, posted_at, min(uid) AS uid, min(appcode_id) AS appcode_id,
        coalesce(min(labels->>'cluster'), '') AS cluster, coalesce(min(labels->>'run'), '') AS run,
        min(since) AS since, count(*) AS lines, sum(charge) AS charge
    FROM billing_ledgerentry
    WHERE reverses_id IS NOT NULL AND posted_at >= %(since)s AND posted_at < %(until)s AND {OF_APPCODES}
    GROUP BY segment_id, posted_at
)
SELECT taken.*, coalesce((
    SELECT sum(e.charge) FROM billing_ledgerentry e
    WHERE e.segment_id = taken.segment_id AND e.kind = 'usage' AND e.posted_at = taken.posted_at
), 0) AS instead, count(*) OVER (), sum(charge) OVER ()
FROM taken ORDER BY posted_at DESC, segment_id DESC LIMIT %(most)s
"""  # noqa: S608


@dataclass(frozen=True)
class Correction:
    """`taken` is what was reversed (never positive), `instead` what the same posting charged for the segment."""

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
    """A pod that still holds its resources as far as anybody knows, although what it belongs to is over."""

    segment: UsageSegment
    word: str
    over: dt.datetime


@dataclass(frozen=True)
class Report:
    """Numbers are of everything, lists of the latest MOST_ROWS. `quarantine` is None for those who may not see it, and `open`
    are those of pods: a volume has no end until it is deleted."""

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
    """What is open now, and what was mended or corrected in the range; a fixed number of queries."""
    codes = None if appcodes is None else list(appcodes)
    wanted: dict[str, Any] = {
        "appcodes": codes, "first": range_.since, "since": midnight(range_.since), "until": midnight(range_.until),
        "most": MOST_ROWS,
    }  # fmt: skip
    segments = UsageSegment.objects.all() if codes is None else UsageSegment.objects.filter(appcode__in=codes)
    columns: dict[dt.date, dict[str, int]] = {since: {} for since, _ in range_.columns}
    flags = dict.fromkeys(FLAGS, 0)
    corrections, corrected, taken = [], 0, Decimal(0)
    with connection.cursor() as cursor:
        cursor.execute(FLAGGED.format(place=PLACES[range_.step]), wanted)
        for place, flag, count in cursor.fetchall():
            columns[place][flag] = count
            flags[flag] = flags.get(flag, 0) + count
        cursor.execute(CORRECTIONS, wanted)
        for row in cursor.fetchall():
            segment_id, at, uid, code, cluster, run, since, lines, charge, instead, corrected, whole = row
            amounts = money(charge), money(instead)
            corrections.append(Correction(segment_id, at, uid, code, cluster, run, since, lines, *amounts))
            taken = money(whole)
    in_range = segments.exclude(flags=[]).filter(ended__gte=wanted["since"], ended__lt=wanted["until"])
    unresolved = Quarantined.objects.filter(resolved_at=None)
    return Report(
        open=segments.filter(ended=None).exclude(VOLUME).count(),
        endless=_endless(segments, now),
        flags=flags,
        columns=columns,
        flagged=list(in_range.select_related("appcode").order_by("-ended", "pk")[:MOST_ROWS]),
        corrections=corrections,
        corrected=corrected,
        taken=taken,
        quarantine=list(unresolved[:MOST_ROWS]) if quarantine else None,
        quarantined=unresolved.count() if quarantine else 0,
    )


def _endless(segments: QuerySet[UsageSegment], now: dt.datetime) -> list[Endless]:
    """Open segments whose consumer has ended: those that nobody saw the end of, the oldest first."""
    over = Outcome.objects.filter(ended_at__lt=now - PATIENCE)
    rows = segments.filter(ended=None, consumer__in=over.values("consumer")).select_related("appcode")
    found = list(rows.order_by("started", "pk")[:MOST_ROWS])
    words = {each.consumer: each for each in over.filter(consumer__in={row.consumer for row in found})}
    return [Endless(row, words[row.consumer].word, words[row.consumer].ended_at) for row in found]
