"""Waste: the cost of failed runs, parameter servers that outlived their workers, and GPUs kept while an image, data
or other tasks of the run were awaited.

`clusters/` reports how each run ended (`note_outcome`); the rest follows from the ledger and the observations. `look`
reads the new ledger entries and recomputes their consumers from scratch, so it may be killed, repeated and run twice at
once. Idle GPUs are measured instead: `measured.idle`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from django.db import connection, transaction
from django.db.models import Count, QuerySet, Sum

from billing.efficiency.models import Outcome, Waste, Watermark
from billing.ledger import posting
from billing.ledger.models import LedgerEntry
from billing.money import Used
from billing.periods import Range, midnight

NAME = "waste"
# Ledger lines per transaction.
PORTION = 50_000
# Parameter servers receive the order to end when the last worker has ended. The time until they end is not waste.
GRACE_SECONDS = 60
MOST_ROWS = 100
DEAREST = ("-charge", "-gpu_seconds", "pk")
# Rows per fetch when all rows are streamed.
CHUNK = 2000
EXPLAINED = {
    Waste.Kind.FAILED: "Failed runs",
    Waste.Kind.OUTLIVED: "Parameter servers that outlived their workers",
    Waste.Kind.RESERVED: "GPUs kept while an image, data or other tasks of the run were awaited",
}

# Where a portion ends. Ids have gaps, so it counts lines. No row means that this is the last portion.
PLACE = (
    "SELECT id FROM billing_ledgerentry WHERE id > %(low)s AND id <= %(high)s ORDER BY id OFFSET %(skipped)s LIMIT 1"
)
FRESH = """
SELECT consumer FROM billing_ledgerentry WHERE id > %(low)s AND id <= %(high)s AND kind <> 'credit'
UNION SELECT consumer FROM billing_outcome WHERE NOT looked_at AND %(outcomes)s
"""
RECKON = """
WITH seg AS MATERIALIZED (
    SELECT s.id, s.uid, s.consumer, s.appcode_id, s.labels, s.gpus, s.started, s.ended, s.labels ? 'serves' AS serves
    FROM unnest(%(consumers)s::text[]) asked(consumer) JOIN billing_usagesegment s USING (consumer)
),
line AS MATERIALIZED (
    SELECT seg.id, seg.consumer, e.sku, e.since, e.until, e.quantity, e.charge
    FROM seg JOIN billing_ledgerentry e ON e.segment_id = seg.id WHERE e.kind <> 'credit'
),
named AS (
    SELECT DISTINCT ON (consumer) consumer, appcode_id, labels - ARRAY['role', 'index', 'attempt', 'flavor', 'serves'] AS labels
    FROM seg ORDER BY consumer, id
),
failed AS (
    SELECT consumer, min(started) AS since, max(ended) AS until, sum(seconds) AS seconds, sum(seconds * gpus) AS gpu_seconds
    FROM seg JOIN billing_outcome o USING (consumer)
    CROSS JOIN LATERAL (SELECT extract(epoch FROM ended - started)::bigint AS seconds) length
    WHERE o.word = 'Failed' AND ended IS NOT NULL GROUP BY consumer
),
served AS (
    SELECT consumer, max(ended) AS over FROM seg WHERE NOT serves GROUP BY consumer HAVING count(*) = count(ended)
),
outlived AS (
    SELECT consumer, over, min(greatest(started, over)) AS since, max(ended) AS until, sum(seconds) AS seconds,
        sum(seconds * gpus) AS gpu_seconds
    FROM seg JOIN served USING (consumer)
    CROSS JOIN LATERAL (SELECT extract(epoch FROM ended - greatest(started, over))::bigint AS seconds) length
    WHERE serves AND ended > over GROUP BY consumer, over HAVING extract(epoch FROM max(ended) - over) > %(grace)s
),
kept AS (
    SELECT seg.id, seg.consumer, seg.gpus, seg.started,
        extract(epoch FROM seg.started - date_trunc('second', o.reserved))::bigint AS seconds
    FROM seg CROSS JOIN LATERAL (SELECT min(scheduled_at) AS reserved FROM billing_observation WHERE uid = seg.uid) o
    WHERE seg.gpus > 0 AND o.reserved < seg.started
),
price AS (
    SELECT DISTINCT ON (id) id, charge / quantity AS rate FROM line
    WHERE (starts_with(sku, 'gpu') OR starts_with(sku, 'spare-gpu') OR starts_with(sku, 'urgent-gpu')) AND quantity > 0
    ORDER BY id, since
),
reserved AS (
    SELECT consumer, min(started - make_interval(secs => seconds)) AS since, max(started) AS until, sum(seconds) AS seconds,
        sum(seconds * gpus) AS gpu_seconds, coalesce(sum(seconds * gpus * rate), 0) AS charge
    FROM kept LEFT JOIN price USING (id)
    WHERE seconds > 0 GROUP BY consumer
)
INSERT INTO billing_waste (kind, consumer, appcode_id, labels, since, until, seconds, gpu_seconds, charge)
SELECT 'failed', f.consumer, n.appcode_id, n.labels, since, until, seconds, gpu_seconds,
    coalesce((SELECT sum(charge) FROM line WHERE line.consumer = f.consumer), 0)
FROM failed f JOIN named n USING (consumer)
UNION ALL
SELECT 'outlived', o.consumer, n.appcode_id, n.labels, since, until, seconds, gpu_seconds, coalesce((
    SELECT sum(charge / extract(epoch FROM line.until - line.since)::bigint
        * extract(epoch FROM line.until - greatest(line.since, o.over))::bigint)
    FROM line JOIN seg USING (id) WHERE line.consumer = o.consumer AND seg.serves AND line.until > o.over
), 0)
FROM outlived o JOIN named n USING (consumer)
UNION ALL
SELECT 'reserved', r.consumer, n.appcode_id, n.labels, since, until, seconds, gpu_seconds, charge
FROM reserved r JOIN named n USING (consumer)
"""
# Parameter servers that run now although everything that they serve has ended.
OUTLIVING = """
SELECT s.appcode_id, s.consumer, coalesce(min(s.labels->>'cluster'), ''), coalesce(min(s.labels->>'run'), ''),
    count(*), sum(s.gpus)::int, max(served.over)
FROM billing_usagesegment s
CROSS JOIN LATERAL (
    SELECT max(o.ended) AS over FROM billing_usagesegment o
    WHERE o.consumer = s.consumer AND NOT o.labels ? 'serves' HAVING count(*) > 0 AND count(*) = count(o.ended)
) served
WHERE s.ended IS NULL AND s.labels ? 'serves' AND (%(appcodes)s::bigint[] IS NULL OR s.appcode_id = ANY(%(appcodes)s))
    AND served.over < %(now)s - make_interval(secs => %(grace)s)
GROUP BY 1, 2 ORDER BY 7 LIMIT %(most)s
"""
SUMS = """
SELECT {place}, kind, count(*), sum(seconds)::bigint, sum(gpu_seconds)::bigint, sum(charge)
FROM billing_waste WHERE until >= %(since)s AND until < %(until)s
    AND (%(appcodes)s::bigint[] IS NULL OR appcode_id = ANY(%(appcodes)s))
GROUP BY 1, 2
"""
PLACES = {
    "day": "(until AT TIME ZONE 'UTC')::date",
    "month": "greatest(date_trunc('month', until AT TIME ZONE 'UTC')::date, %(first)s)",
}


@dataclass(frozen=True)
class Wasted:
    """Number of cases, pod-seconds, GPU-seconds and cost."""

    count: int = 0
    seconds: int = 0
    used: Used = field(default_factory=Used)

    def __add__(self, other: Wasted) -> Wasted:
        return Wasted(self.count + other.count, self.seconds + other.seconds, self.used + other.used)


@dataclass(frozen=True)
class Outliving:
    """Parameter servers of one consumer whose workers ended at `over`."""

    appcode_id: int
    consumer: str
    cluster: str
    run: str
    pods: int
    gpus: int
    over: dt.datetime


@dataclass(frozen=True)
class Report:
    """Sums by kind over the range and by column, the most expensive cases, and what is being wasted now."""

    kinds: dict[str, Wasted]
    columns: dict[dt.date, dict[str, Wasted]]
    dearest: list[Waste]
    outliving: list[Outliving]


def note_outcome(consumer: str, appcode_id: int, word: str, reason: str, ended_at: dt.datetime) -> None:
    """Records how `consumer` ended. Call it inside the transaction that detects the end."""
    Outcome.objects.bulk_create(
        [Outcome(consumer=consumer, appcode_id=appcode_id, word=word, reason=reason[:40], ended_at=ended_at)],
        update_conflicts=True,
        unique_fields=["consumer"],
        update_fields=["word", "reason", "ended_at", "looked_at"],
    )


def look(portion: int = PORTION) -> int:
    """Recomputes the waste of every consumer whose ledger or outcome changed since the last call; returns how many."""
    with transaction.atomic():
        # Ids are assigned before commit. While posting is locked out, every line up to the highest id is visible.
        posting.keep_others_out()
        high = LedgerEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    looked = 0
    while True:
        found, done = _look_on(high, portion)
        looked += found
        if done:
            return looked


@transaction.atomic
def _look_on(high: int, portion: int) -> tuple[int, bool]:
    Watermark.objects.get_or_create(name=NAME, defaults={"entry": 0})
    mark = Watermark.objects.select_for_update().get(name=NAME)
    with connection.cursor() as cursor:
        cursor.execute(PLACE, {"low": mark.entry, "high": high, "skipped": portion - 1})
        (until,) = cursor.fetchone() or (high,)
        done = until >= high
        cursor.execute(FRESH, {"low": mark.entry, "high": until, "outcomes": done})
        consumers = [consumer for (consumer,) in cursor.fetchall()]
        if consumers:
            Outcome.objects.filter(consumer__in=consumers, looked_at=False).update(looked_at=True)
            Waste.objects.filter(consumer__in=consumers).delete()
            cursor.execute(RECKON, {"consumers": consumers, "grace": GRACE_SECONDS})
    if until > mark.entry:
        mark.entry = until
        mark.save(update_fields=["entry"])
    return len(consumers), done


def report(range_: Range, now: dt.datetime, *, appcodes: Sequence[int] | None = None) -> Report:
    """Waste of consumers that ended in the range. Three queries."""
    wanted = {"appcodes": None if appcodes is None else list(appcodes), "first": range_.since}
    wanted |= {"since": midnight(range_.since), "until": midnight(range_.until)}
    kinds = dict.fromkeys(Waste.Kind.values, Wasted())
    columns = {since: kinds.copy() for since, _ in range_.columns}
    with connection.cursor() as cursor:
        cursor.execute(SUMS.format(place=PLACES[range_.step]), cast("Any", wanted))
        for place, kind, count, seconds, gpu_seconds, charge in cursor.fetchall():
            found = Wasted(count, seconds, Used(gpu_seconds, charge))
            columns[place][kind] = found
            kinds[kind] += found
        cursor.execute(OUTLIVING, {**wanted, "now": now, "grace": GRACE_SECONDS, "most": MOST_ROWS})
        outliving = [Outliving(*row) for row in cursor.fetchall()]
    return Report(kinds, columns, list(cases(range_, appcodes=appcodes).order_by(*DEAREST)[:MOST_ROWS]), outliving)


def cases(range_: Range, *, appcodes: Sequence[int] | None = None) -> QuerySet[Waste]:
    """Every case of waste that ended in the range."""
    rows = Waste.objects.filter(until__gte=midnight(range_.since), until__lt=midnight(range_.until))
    if appcodes is not None:
        rows = rows.filter(appcode__in=list(appcodes))
    return rows.select_related("appcode")


def total(range_: Range, *, appcodes: Sequence[int] | None = None) -> dict[str, Wasted]:
    """Sums by kind of what ended in the range. One query."""
    found = (
        cases(range_, appcodes=appcodes)
        .order_by()
        .values_list("kind")
        .annotate(Count("pk"), Sum("seconds"), Sum("gpu_seconds"), Sum("charge"))
    )
    sums = {kind: Wasted(count, seconds, Used(gpus, charge)) for kind, count, seconds, gpus, charge in found}
    return {kind: sums.get(kind, Wasted()) for kind in Waste.Kind.values}
