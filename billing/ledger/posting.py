"""Posts final usage from segments to the ledger, once, in portions of one SQL statement each.

A portion takes due segments, computes the lines that `entries.entries_of` describes, and compares them with the posted ones. It
reverses wrong lines, adds missing ones, and updates the sums by day and month, all in one statement. So posting may be
repeated, killed anywhere and run twice at once, and its memory does not depend on the number of segments.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from django.db import connection, connections, transaction
from django.utils import timezone
from psycopg2 import sql

from billing.ledger.models import Due, LedgerEntry
from billing.metering.models import UsageSegment
from billing.metering.segments import floor
from billing.prices.book import price_book
from billing.prices.split import GPU_SKU, MODEL_KEY, MODEL_OF_SKU, OF_GPUS, OWNERS, TERMS, terms_of
from portal.db.advisory_lock import Lock, lock_until_commit

# Appcodes are divided into shards, each with its own lock, so that several processors can work off a long queue. No sum
# by day or month belongs to two shards.
SHARDS = 2
PORTION = 20_000

# Rows locked by others are left for the next turn, which avoids deadlocks. Segments are read by the next statement: it
# sees every change made before it, and later changes wait for the queue's rows.
TAKE = """
SELECT segment_id, posted FROM billing_due WHERE due_at <= %s AND appcode_id %% %s = %s
ORDER BY due_at, segment_id LIMIT %s FOR UPDATE SKIP LOCKED
"""
# `final` is the end of what cannot grow (`entries.final_until`). Usage is cut at months and at changes of owner and
# rate; `key` finds the rates of a SKU for a payer. `standing` are posted, unreversed lines. Rows stay narrow until they
# are inserted, because names are wide.
STATEMENT = sql.SQL("""
WITH {terms},
taken(segment_id, posted) AS (SELECT * FROM unnest(%(segments)s::bigint[], %(posted)s::boolean[])),
due AS MATERIALIZED (
    SELECT s.id, s.uid, s.appcode_id, s.consumer, s.labels, s.gpus, {gpu_sku} AS gpu_sku, s.cpu_milli, s.memory_mb, s.storage_mb,
        s.started, s.ended, taken.posted, f.final, coalesce(p.payer, 0) * %(keys)s AS payer_key,
        {model_key} AS model_key
    FROM taken CROSS JOIN LATERAL (SELECT * FROM billing_usagesegment WHERE id = taken.segment_id OFFSET 0) s
    LEFT JOIN payer p ON p.appcode_id = s.appcode_id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN s.ended <= %(now)s THEN s.ended ELSE billing_month(%(now)s) END AS final
    ) f
),
owner_ AS MATERIALIZED ({owners}),
part AS MATERIALIZED (
    SELECT d.id, d.gpus, d.gpu_sku, d.cpu_milli, d.memory_mb, d.storage_mb, d.posted, d.payer_key, d.model_key,
        coalesce(o.business_line, '') AS business_line,
        greatest(d.started, month_.since, o.since) AS part_since, least(d.final, month_.until, o.until) AS part_until
    FROM due d
    CROSS JOIN LATERAL (
        SELECT m AT TIME ZONE 'UTC' AS since, (m + interval '1 month') AT TIME ZONE 'UTC' AS until
        FROM generate_series(date_trunc('month', d.started AT TIME ZONE 'UTC'),
            (d.final AT TIME ZONE 'UTC') - interval '1 second', interval '1 month') m
    ) month_
    LEFT JOIN owner_ o ON o.appcode_id = d.appcode_id
    WHERE greatest(d.started, month_.since, o.since) < least(d.final, month_.until, o.until)
),
expected AS MATERIALIZED (
    SELECT p.id AS segment_id, r.sku, greatest(p.part_since, t.since) AS since, least(p.part_until, t.until) AS until,
        q.quantity, t.price_id, t.per_hour, t.discount, q.quantity * t.rate AS charge, p.business_line, p.posted
    FROM part p
    CROSS JOIN LATERAL (VALUES
        (p.payer_key + p.model_key, p.gpu_sku, p.gpus),
        (p.payer_key + %(keys)s - 3, 'cpu', p.cpu_milli),
        (p.payer_key + %(keys)s - 2, 'memory', p.memory_mb),
        (p.payer_key + %(keys)s - 1, 'storage', p.storage_mb)
    ) r(key, sku, units)
    JOIN terms t ON t.key = r.key AND t.since < p.part_until AND t.until > p.part_since
    CROSS JOIN LATERAL (
        SELECT date_part('epoch', least(p.part_until, t.until) - greatest(p.part_since, t.since))::bigint * r.units AS quantity
    ) q
    WHERE r.units > 0
),
standing AS (
    SELECT line.* FROM due CROSS JOIN LATERAL (
        SELECT e.id, {line} FROM billing_ledgerentry e
        WHERE e.segment_id = due.id AND e.kind = 'usage'
            AND (SELECT r.id FROM billing_ledgerentry r WHERE r.reverses_id = e.id LIMIT 1) IS NULL
        OFFSET 0
    ) line
    WHERE due.posted
),
differing AS MATERIALIZED (
    SELECT array_agg(id ORDER BY id) FILTER (WHERE id IS NOT NULL) AS ids, count(*) FILTER (WHERE id IS NULL) AS wanted, {line}
    FROM (
        SELECT NULL::bigint AS id, {new} FROM expected e JOIN due d ON d.id = e.segment_id WHERE e.posted
        UNION ALL SELECT id, {line} FROM standing
    ) both_
    GROUP BY {line} HAVING count(*) FILTER (WHERE id IS NULL) <> count(id)
),
reversed AS (
    INSERT INTO billing_ledgerentry (kind, reverses_id, segment_id, uid, sku, since, until, quantity, price_id, per_hour,
        discount, charge, business_line, appcode_id, consumer, labels)
    SELECT 'reversal', id, segment_id, uid, sku, since, until, -quantity, price_id, per_hour, discount, -charge, business_line,
        appcode_id, consumer, labels
    FROM differing CROSS JOIN LATERAL unnest(ids[wanted + 1:]) id
    ORDER BY id
    RETURNING id
),
added AS (
    INSERT INTO billing_ledgerentry (kind, {line})
    SELECT 'usage', {new} FROM expected e JOIN due d ON d.id = e.segment_id WHERE NOT e.posted
    UNION ALL SELECT 'usage', {line} FROM differing WHERE ids IS NULL
    RETURNING id
),
names AS MATERIALIZED (SELECT id, appcode_id, {labels} FROM due WHERE NOT posted),
changed AS (
    SELECT e.sku, {seconds}, e.quantity, e.charge, e.business_line, n.appcode_id, n.cluster, n."user", n.framework
    FROM expected e JOIN names n ON n.id = e.segment_id
    UNION ALL
    SELECT sku, {seconds}, quantity * n, charge * n, business_line, appcode_id, {labels}
    FROM differing CROSS JOIN LATERAL (SELECT CASE WHEN ids IS NULL THEN 1 ELSE wanted - cardinality(ids) END AS n) times
),
{rollups},
finished AS (
    DELETE FROM billing_due WHERE segment_id = ANY(ARRAY(SELECT id FROM due WHERE ended <= %(now)s))
),
waiting AS (
    UPDATE billing_due SET due_at = least(due.ended, billing_month_end(%(now)s)),
        posted = billing_due.posted OR due.started < due.final
    FROM due WHERE segment_id = due.id AND (due.ended <= %(now)s) IS NOT TRUE
        AND segment_id = ANY(ARRAY(SELECT id FROM due WHERE (ended <= %(now)s) IS NOT TRUE))
)
SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM added), (SELECT count(*) FROM reversed)
""")
# Repeated notes of the same owner change nothing and must not cut a line.
CHANGED_OWNERS = sql.SQL("""(
        SELECT appcode_id, business_line, valid_from,
            lag(business_line) OVER (PARTITION BY appcode_id ORDER BY valid_from) AS before
        FROM billing_ownership
    ) noted
    WHERE business_line IS DISTINCT FROM before""")
LINE = sql.SQL(
    "segment_id, sku, since, until, quantity, price_id, per_hour, discount, charge, business_line, uid, appcode_id, consumer,"
    " labels"
)
NEW = sql.SQL(
    "e.segment_id, e.sku, e.since, e.until, e.quantity, e.price_id, e.per_hour, e.discount, e.charge, e.business_line, d.uid,"
    " d.appcode_id, d.consumer, d.labels"
)
# Days are 86,400 s each since 1970, which equals UTC's calendar and is much cheaper than calendar functions.
SECONDS = sql.SQL("date_part('epoch', since)::bigint AS begun, date_part('epoch', until)::bigint AS over")
LABELS = sql.SQL(", ").join(
    sql.SQL("coalesce(left(labels->>{}, 200), '') AS {}").format(sql.Literal(name), sql.Identifier(name))
    for name in ("cluster", "user", "framework")
)

RESOURCES = {
    "gpu": "gpu_seconds",
    "cpu": "cpu_milli_seconds",
    "memory": "memory_mb_seconds",
    "storage": "storage_mb_seconds",
}
GROUPING = ("appcode_id", "business_line", "cluster", "user", "framework", "gpu_model")
GROUPED = sql.SQL(", ").join(map(sql.Identifier, GROUPING))
# All usage lines and reversals.
LINES = sql.SQL(
    "(SELECT sku, {}, quantity, charge, business_line, appcode_id, {} FROM billing_ledgerentry WHERE kind <> 'credit')"
).format(SECONDS, LABELS)
REVERSED = (
    "segment_id", "uid", "sku", "since", "until", "price_id", "per_hour", "discount", "appcode_id", "business_line", "consumer",
    "labels",
)  # fmt: skip
SUMMED = [*RESOURCES.values(), *(f"{resource}_charge" for resource in RESOURCES)]
# Tables of sums: their time column, and the query that computes them.
SUMS = {"billing_dailyusage": ("day", "daily"), "billing_monthlyusage": ("month", "monthly")}
# A line may span several days. Each day's share by seconds is exact, because quantities and charges are products of seconds.
DAILY = sql.SQL("""
SELECT date '1970-01-01' + day::integer AS day, appcode_id, business_line, cluster, "user", framework,
    CASE resource WHEN 'gpu' THEN {model} ELSE '' END AS gpu_model, {sums}
FROM (
    SELECT day, appcode_id, business_line, cluster, "user", framework, sku,
        CASE WHEN {of_gpus} THEN 'gpu' ELSE sku END AS resource,
        sum(quantity) AS quantity, sum(charge) AS charge
    FROM (
        SELECT begun / 86400 AS day, appcode_id, business_line, cluster, "user", framework, sku, quantity, charge
        FROM {lines} line WHERE begun / 86400 = (over - 1) / 86400
        UNION ALL
        SELECT day, appcode_id, business_line, cluster, "user", framework, sku,
            quantity / (over - begun) * of_day, charge / (over - begun) * of_day
        FROM {lines} line
        CROSS JOIN LATERAL generate_series(begun / 86400, (over - 1) / 86400) day
        CROSS JOIN LATERAL (SELECT least(over, (day + 1) * 86400) - greatest(begun, day * 86400) AS of_day) of_days
        WHERE begun / 86400 <> (over - 1) / 86400
    ) share
    GROUP BY 1, 2, 3, 4, 5, 6, 7
) by_sku
GROUP BY 1, 2, 3, 4, 5, 6, 7
""")
MONTHLY = sql.SQL(
    "SELECT date_trunc('month', day::timestamp)::date AS month, {grouped}, {sums} FROM daily GROUP BY 1, {grouped}"
)
KEY = sql.SQL("md5(jsonb_build_array({grouped})::text)::uuid").format(grouped=GROUPED)
ADD = sql.SQL("""
INSERT INTO {table} AS held ({time}, key, {grouped}, {names}) SELECT {time}, {key}, {grouped}, {names} FROM {source}
ON CONFLICT ({time}, key) DO UPDATE SET {added}
""")


def daily(lines: sql.Composable) -> sql.Composed:
    """A query for the sums by day of the ledger lines in the table or subquery `lines`."""
    shares = [
        sql.SQL("coalesce(sum({value}) FILTER (WHERE resource = {resource}), 0){cast} AS {name}").format(
            value=sql.Identifier(value), resource=sql.Literal(resource), name=sql.Identifier(name), cast=sql.SQL(cast_)
        )
        for value, cast_, names in (
            ("quantity", "::bigint", RESOURCES),
            ("charge", "", {resource: f"{resource}_charge" for resource in RESOURCES}),
        )
        for resource, name in names.items()
    ]
    return DAILY.format(lines=lines, model=MODEL_OF_SKU, of_gpus=OF_GPUS, sums=sql.SQL(", ").join(shares))


def monthly() -> sql.Composed:
    """The same by month, from the rows of a query `daily`."""
    sums = [
        sql.SQL("sum({0}){1} AS {0}").format(sql.Identifier(name), sql.SQL("::bigint" if "seconds" in name else ""))
        for name in SUMMED
    ]
    return MONTHLY.format(grouped=GROUPED, sums=sql.SQL(", ").join(sums))


def _add(table: str, time: str, source: str) -> sql.Composed:
    names = [sql.Identifier(name) for name in SUMMED]
    return ADD.format(
        table=sql.Identifier(table), time=sql.Identifier(time), source=sql.Identifier(source), grouped=GROUPED, key=KEY,
        names=sql.SQL(", ").join(names),
        added=sql.SQL(", ").join(sql.SQL("{0} = held.{0} + excluded.{0}").format(name) for name in names),
    )  # fmt: skip


ROLLUPS = sql.SQL(
    "daily AS MATERIALIZED ({daily}), monthly AS MATERIALIZED ({monthly}), by_day AS ({by_day}), by_month AS ({by_month})"
).format(
    daily=daily(sql.Identifier("changed")),
    monthly=monthly(),
    by_day=_add("billing_dailyusage", "day", "daily"),
    by_month=_add("billing_monthlyusage", "month", "monthly"),
)
POST = STATEMENT.format(
    terms=TERMS, model_key=MODEL_KEY, gpu_sku=GPU_SKU, owners=OWNERS.format(noted=CHANGED_OWNERS), line=LINE, new=NEW,
    seconds=SECONDS, labels=LABELS, rollups=ROLLUPS
)  # fmt: skip
PLANNING = """
SET LOCAL enable_seqscan = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_nestloop = off; SET LOCAL enable_sort = off;
SET LOCAL work_mem = '64MB'
"""


@dataclass(frozen=True)
class Posted:
    """Numbers of segments processed, and of lines added and reversed."""

    segments: int = 0
    added: int = 0
    reversed: int = 0

    def __add__(self, other: Posted) -> Posted:
        return Posted(self.segments + other.segments, self.added + other.added, self.reversed + other.reversed)


def keep_others_out() -> None:
    """Waits for running postings and blocks new ones until this transaction ends. Used by closings."""
    lock_until_commit(Lock.POSTING)


def post(now: dt.datetime | None = None) -> Posted:
    """Posts everything due at `now`; each portion is its own transaction."""
    now = now or timezone.now()
    total = Posted()
    for shard in range(SHARDS):
        first = post_portion(now, shard)
        total += first
        if first.segments == PORTION:
            # A long queue, for example at the end of a month.
            return sum(_side_by_side(now), total)
    return total


def _side_by_side(now: dt.datetime) -> list[Posted]:
    """Works off each shard in its own thread and database connection."""

    def work_off(shard: int) -> Posted:
        try:
            total = Posted()
            while (posted := post_portion(now, shard)).segments:
                total += posted
            return total
        finally:
            connections.close_all()

    with ThreadPoolExecutor(SHARDS) as pool:
        return list(pool.map(work_off, range(SHARDS)))


@transaction.atomic
def post_portion(now: dt.datetime, shard: int, size: int = PORTION) -> Posted:
    """Posts up to `size` segments due at `now` of one shard's appcodes."""
    lock_until_commit(Lock.POSTING, shared=True)
    lock_until_commit(Lock.POSTING_SHARD, str(shard))
    with connection.cursor() as cursor:
        cursor.execute(TAKE, [now, SHARDS, shard, size])
        taken = cursor.fetchall()
        if not taken:
            return Posted()
        # Terms and owners are read under the lock, so they include what its previous holder committed.
        parameters: dict[str, Any] = {
            "now": floor(now),
            # As text: parsing a list of constants would take as long as the query itself.
            "segments": _array(str(segment_id) for segment_id, _ in taken),
            "posted": _array("t" if posted else "f" for _, posted in taken),
            **terms_of(price_book()),
        }
        # A portion is a small part of large tables, whatever their statistics say; its own rows fit in memory.
        cursor.execute(PLANNING)
        cursor.execute(cast("Any", POST), parameters)
        return Posted(*cursor.fetchone())


def _array(texts: Iterable[str]) -> str:
    return "{" + ",".join(texts) + "}"


def again(segment_ids: Iterable[int]) -> None:
    """Queues segments for posting again, whatever was posted of them."""
    rows = UsageSegment.objects.filter(pk__in=list(segment_ids)).order_by("pk")
    Due.objects.bulk_create(
        (Due(segment_id=row.pk, due_at=row.started, appcode_id=row.appcode_id, posted=True) for row in rows),
        update_conflicts=True,
        unique_fields=["segment"],
        update_fields=["due_at", "posted"],
    )


def reverse(line: LedgerEntry) -> None:
    """Reverses one line of a segment that no longer exists."""
    facts = {name: getattr(line, name) for name in REVERSED}
    facts |= {"quantity": -line.quantity, "charge": -line.charge}
    LedgerEntry.objects.create(kind=LedgerEntry.Kind.REVERSAL, reverses=line, **facts)


def wrong_sums() -> dict[str, list[str]]:
    """The cells of each table of sums that differ from the ledger's lines, at most 1000 per table."""
    found = {}
    same = [sql.SQL("held.{0} = made.{0}").format(name) for name in map(sql.Identifier, GROUPING)]
    differ = [sql.SQL("coalesce(held.{0}, 0) <> coalesce(made.{0}, 0)").format(sql.Identifier(name)) for name in SUMMED]
    for table, (time, made) in SUMS.items():
        statement = sql.SQL(
            "WITH daily AS ({daily}), monthly AS ({monthly}), made AS (SELECT {key} AS key, * FROM {made})"
            " SELECT coalesce(held.{time}, made.{time}), row_to_json(held)::text, row_to_json(made)::text"
            " FROM {table} held FULL JOIN made ON held.{time} = made.{time} AND {same}"
            " WHERE {differ} OR held.key <> made.key LIMIT 1000"
        ).format(
            daily=daily(LINES), monthly=monthly(), key=KEY, made=sql.Identifier(made), time=sql.Identifier(time),
            table=sql.Identifier(table), same=sql.SQL(" AND ").join(same), differ=sql.SQL(" OR ").join(differ),
        )  # fmt: skip
        with connection.cursor() as cursor:
            cursor.execute(cast("Any", statement))
            found[table] = [
                f"{time} {at}: kept {held}, but the lines say {made}" for at, held, made in cursor.fetchall()
            ]
    return found


@transaction.atomic
def rebuild_sums() -> None:
    """Recomputes all sums from the ledger."""
    keep_others_out()
    with connection.cursor() as cursor:
        for table, (time, made) in SUMS.items():
            statement = sql.SQL("DELETE FROM {table}; WITH daily AS ({daily}), monthly AS ({monthly}) {add}").format(
                table=sql.Identifier(table), daily=daily(LINES), monthly=monthly(), add=_add(table, time, made)
            )
            cursor.execute(cast("Any", statement))
