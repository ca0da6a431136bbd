"""How much each appcode used lately: GPU-seconds that fade with a half-life of a week (`decay.py` is the reference).

The ledger is folded into a row for each appcode, which names the last line in it. What came later is read from the lines, what
is not posted yet from the segments, as in `over_time.py`. So every second counts once. A correction of the past is a
reversal and a new line, and each of them fades by its own age: late news gives the same number as news in time. Folding may be
repeated, killed, or left out for days; it only makes reading cheap. Spare GPUs do not count.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any, cast

from django.db import connection, transaction
from django.utils import timezone
from psycopg2 import sql

from billing.ledger import posting
from billing.metering.segments import floor
from billing.prices.split import OF_GPUS
from billing.sums.decay import HALF_LIFE

# What is left of something of that age. PostgreSQL refuses numbers that are too small, so nothing fades for ever.
LEFT = sql.SQL("power(0.5, least(extract(epoch FROM %(now)s - {})::float8 / %(half)s, 1000))")
# A stretch from `since` to `until`; ln(2) makes a half-life the mean life.
FADED = sql.SQL("(({until} - {since}) * %(half)s / ln(2::float8))").format(
    until=LEFT.format(sql.Identifier("until")), since=LEFT.format(sql.Identifier("since"))
)
COUNTS = sql.SQL("{} AND line.labels->>'class' IS DISTINCT FROM 'spare'").format(OF_GPUS)
RATE = sql.SQL("quantity / extract(epoch FROM until - since)::float8")
# Lines that are not in the row yet. Those of one appcode are posted one after the other, so ids say which these are.
NEW = sql.SQL("""
SELECT appcode.id AS appcode_id, line.id, {counts} AS counts, {rate} * {faded} AS gpu_seconds
FROM portal_appcode appcode LEFT JOIN billing_decayeduse kept ON kept.appcode_id = appcode.id
CROSS JOIN LATERAL (
    SELECT * FROM billing_ledgerentry
    WHERE appcode_id = appcode.id AND id > coalesce(kept.entry, 0) AND kind <> 'credit' OFFSET 0
) line
""").format(counts=COUNTS, rate=RATE, faded=FADED)
FOLD = sql.SQL("""
WITH new AS ({new}),
summed AS (
    SELECT appcode_id, max(id) AS entry, coalesce(sum(gpu_seconds) FILTER (WHERE counts), 0) AS gpu_seconds
    FROM new GROUP BY appcode_id
)
INSERT INTO billing_decayeduse AS kept (appcode_id, gpu_seconds, at, entry)
SELECT appcode_id, gpu_seconds, %(now)s, entry FROM summed ORDER BY appcode_id
ON CONFLICT (appcode_id) DO UPDATE SET gpu_seconds = kept.gpu_seconds * {left} + excluded.gpu_seconds, at = excluded.at,
    entry = excluded.entry
""").format(new=NEW, left=LEFT.format(sql.Identifier("kept", "at")))
# `due` as in `over_time.py`: what is not posted yet, and less of it what was posted before it changed.
READ = sql.SQL("""
WITH due AS MATERIALIZED (
    SELECT s.id, s.appcode_id, s.gpus, s.labels, s.started, least(s.ended, %(now)s) AS ended, d.posted
    FROM billing_due d JOIN billing_usagesegment s ON s.id = d.segment_id WHERE s.gpus > 0 OR d.posted
),
used AS (
    SELECT appcode_id, gpu_seconds * {left} AS gpu_seconds FROM billing_decayeduse
    UNION ALL
    SELECT appcode_id, gpu_seconds FROM ({new}) new WHERE counts
    UNION ALL
    SELECT appcode_id, gpus * {faded} FROM (SELECT *, started AS since, ended AS until FROM due) fresh
    WHERE started < ended AND labels->>'class' IS DISTINCT FROM 'spare'
    UNION ALL
    SELECT line.appcode_id, -{rate} * {faded}
    FROM due CROSS JOIN LATERAL (
        SELECT * FROM billing_ledgerentry WHERE segment_id = due.id AND kind <> 'credit' OFFSET 0
    ) line
    WHERE due.posted AND {counts}
)
SELECT appcode_id, sum(gpu_seconds) FROM used WHERE %(appcodes)s::bigint[] IS NULL OR appcode_id = ANY(%(appcodes)s::bigint[])
GROUP BY appcode_id
""").format(new=NEW, faded=FADED, rate=RATE, counts=COUNTS, left=LEFT.format(sql.Identifier("at")))


def fold(now: dt.datetime | None = None) -> int:
    """Adds the ledger's new lines to the rows; returns the number of rows that changed. One transaction; posting waits for it."""
    with transaction.atomic():
        # Without this, a line could appear behind the one that the row names.
        posting.keep_others_out()
        with connection.cursor() as cursor:
            cursor.execute(cast("Any", FOLD), {"now": floor(now or timezone.now()), "half": HALF_LIFE})
            return int(cursor.rowcount)


def decayed_use(now: dt.datetime, appcodes: Collection[int] | None = None) -> dict[int, int]:
    """GPU-seconds used lately by each appcode (None: all) that used any, by id. One query."""
    told: dict[str, Any] = {
        "now": floor(now),
        "half": HALF_LIFE,
        "appcodes": None if appcodes is None else list(appcodes),
    }
    with connection.cursor() as cursor:
        cursor.execute(cast("Any", READ), told)
        found = {appcode: max(0, round(gpu_seconds)) for appcode, gpu_seconds in cursor.fetchall()}
    return {appcode: used for appcode, used in found.items() if used}
