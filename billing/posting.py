"""From segments to the ledger: what is final is posted, once, in portions of one statement each.

A portion takes segments that are due, makes the lines that `ledger.entries_of` describes, and compares them with those that
stand: what stands and should not is reversed, what should and does not is added, and the sums by day and month follow, all in
the same statement. So posting may be repeated, killed anywhere and run twice at once, and it needs the same memory for any
number of segments.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, cast

from django.db import connection, transaction
from django.utils import timezone
from psycopg2 import sql

from billing.metering import price_book
from billing.sums import TERMS, terms_of
from billing.usage import floor

# The key of the advisory lock of posting: "post" in ASCII. Triggers on prices, discounts and owners take it, too.
POSTING = 0x706F7374
PORTION = 20_000

# `due`: a segment that somebody is just changing is left for the next time, so that nobody waits for each other in a circle.
# `final`: the end of what cannot grow any more (`ledger.final_until`). Everything is cut at months, at changes of the owner and
# at changes of the rate. `standing` is what was posted and not reversed; segments that never were are not looked for.
STATEMENT = sql.SQL("""
WITH {terms},
due AS MATERIALIZED (
    SELECT s.*, CASE WHEN s.ended <= %(now)s THEN s.ended ELSE billing_month(%(now)s) END AS final,
        CASE WHEN s.gpu_model = ANY(%(models)s) THEN s.gpu_model ELSE '' END AS model, coalesce(p.payer, 0) AS payer
    FROM billing_usagesegment s LEFT JOIN payer p ON p.appcode_id = s.appcode_id
    WHERE s.due_at <= %(now)s ORDER BY s.due_at LIMIT %(portion)s FOR UPDATE OF s SKIP LOCKED
),
month_(since, until) AS MATERIALIZED (
    SELECT since, billing_month_end(since) FROM (
        SELECT m AT TIME ZONE 'UTC' AS since FROM generate_series(
            (SELECT billing_month(min(started)) FROM due) AT TIME ZONE 'UTC', %(now)s AT TIME ZONE 'UTC', interval '1 month'
        ) m) months
),
owner_ AS MATERIALIZED (
    SELECT appcode_id, business_line,
        CASE WHEN lag(valid_from) OVER changes IS NULL THEN '-infinity' ELSE valid_from END AS since,
        lead(valid_from, 1, 'infinity') OVER changes AS until
    FROM (
        SELECT appcode_id, business_line, valid_from,
            lag(business_line) OVER (PARTITION BY appcode_id ORDER BY valid_from) AS before
        FROM billing_ownership
    ) noted
    WHERE business_line IS DISTINCT FROM before
    WINDOW changes AS (PARTITION BY appcode_id ORDER BY valid_from)
),
part AS (
    SELECT d.*, coalesce(o.business_line, '') AS business_line,
        greatest(d.started, m.since, o.since) AS part_since, least(d.final, m.until, o.until) AS part_until
    FROM due d
    JOIN month_ m ON m.since < d.final AND m.until > d.started
    LEFT JOIN owner_ o ON o.appcode_id = d.appcode_id
    WHERE d.started < d.final
        AND greatest(d.started, m.since, o.since) < least(d.final, m.until, o.until)
),
expected AS MATERIALIZED (
    SELECT p.uid, r.sku, greatest(p.part_since, t.since) AS since, least(p.part_until, t.until) AS until,
        q.quantity, t.price_id, t.per_hour, t.discount, (q.quantity * t.rate)::numeric(50, 10) AS charge,
        p.appcode_id, p.business_line, p.consumer, p.labels, p.posted_until IS NOT NULL AS posted
    FROM part p
    CROSS JOIN LATERAL (VALUES
        ('gpu', CASE p.gpu_model WHEN '' THEN 'gpu' ELSE 'gpu:' || p.gpu_model END, p.model, p.gpus),
        ('cpu', 'cpu', '', p.cpu_milli), ('memory', 'memory', '', p.memory_mb), ('storage', 'storage', '', p.storage_mb)
    ) r(resource, sku, model, units)
    JOIN terms t ON t.payer = p.payer AND t.resource = r.resource AND t.model = r.model
        AND t.since < p.part_until AND t.until > p.part_since
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM least(p.part_until, t.until) - greatest(p.part_since, t.since))::bigint * r.units AS quantity
    ) q
    WHERE r.units > 0
),
standing AS MATERIALIZED (
    SELECT e.* FROM due JOIN billing_ledgerentry e ON e.uid = due.uid
    WHERE due.posted_until IS NOT NULL AND e.kind = 'usage'
        AND NOT EXISTS (SELECT 1 FROM billing_ledgerentry r WHERE r.reverses_id = e.id)
),
reversed AS (
    INSERT INTO billing_ledgerentry (kind, uid, reverses_id, sku, since, until, quantity, price_id, per_hour, discount, charge,
        appcode_id, business_line, consumer, labels)
    SELECT 'reversal', uid, id, sku, since, until, -quantity, price_id, per_hour, discount, -charge, appcode_id, business_line,
        consumer, labels
    FROM standing s WHERE NOT EXISTS (SELECT 1 FROM expected e WHERE e.posted AND {same})
    RETURNING {columns}
),
added AS (
    INSERT INTO billing_ledgerentry (kind, uid, sku, since, until, quantity, price_id, per_hour, discount, charge, appcode_id,
        business_line, consumer, labels)
    SELECT 'usage', uid, sku, since, until, quantity, price_id, per_hour, discount, charge, appcode_id, business_line, consumer,
        labels
    FROM expected e WHERE NOT (posted AND EXISTS (SELECT 1 FROM standing s WHERE {same}))
    RETURNING {columns}
),
posted AS MATERIALIZED (SELECT * FROM reversed UNION ALL SELECT * FROM added),
{rollups},
done AS (
    UPDATE billing_usagesegment s SET
        posted_until = CASE WHEN due.final > due.started OR due.posted_until IS NOT NULL THEN due.final END,
        due_at = CASE WHEN s.ended <= %(now)s THEN NULL ELSE least(s.ended, billing_month_end(%(now)s)) END
    FROM due WHERE s.id = due.id
)
SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM added), (SELECT count(*) FROM reversed)
""")
COLUMNS = sql.SQL("uid, sku, since, until, quantity, charge, appcode_id, business_line, labels")
SAME = sql.SQL(" AND ").join(
    sql.SQL("s.{0} = e.{0}" if name != "price_id" else "s.{0} IS NOT DISTINCT FROM e.{0}").format(sql.Identifier(name))
    for name in (
        "uid", "sku", "since", "until", "quantity", "price_id", "per_hour", "discount", "charge", "appcode_id",
        "business_line", "consumer", "labels",
    )
)  # fmt: skip

RESOURCES = {
    "gpu": "gpu_seconds",
    "cpu": "cpu_milli_seconds",
    "memory": "memory_mb_seconds",
    "storage": "storage_mb_seconds",
}
GROUPED = sql.SQL('appcode_id, business_line, cluster, "user", framework, gpu_model')
SUMMED = [*RESOURCES.values(), *(f"{resource}_charge" for resource in RESOURCES)]
# A line may last for many days; each gets the share of its seconds, which is exact because quantities and charges are products
# of seconds.
DAILY = sql.SQL("""
SELECT day, appcode_id, business_line, coalesce(left(labels->>'cluster', 200), '') AS cluster,
    coalesce(left(labels->>'user', 200), '') AS "user", coalesce(left(labels->>'framework', 200), '') AS framework,
    CASE resource WHEN 'gpu' THEN substr(sku, 5) ELSE '' END AS gpu_model, {sums}
FROM {lines} line
CROSS JOIN LATERAL (
    SELECT split_part(sku, ':', 1) AS resource, extract(epoch FROM line.until - line.since)::bigint AS seconds
) whole
CROSS JOIN LATERAL (
    SELECT day::date AS day, extract(epoch FROM least(line.until AT TIME ZONE 'UTC', day + interval '1 day')
        - greatest(line.since AT TIME ZONE 'UTC', day))::bigint AS of_day
    FROM generate_series(date_trunc('day', line.since AT TIME ZONE 'UTC'),
        (line.until AT TIME ZONE 'UTC') - interval '1 second', interval '1 day') day
) days
GROUP BY 1, 2, 3, 4, 5, 6, 7
""")
MONTHLY = sql.SQL(
    "SELECT date_trunc('month', day::timestamp)::date AS month, {grouped}, {sums} FROM daily GROUP BY 1, {grouped}"
)
ADD = sql.SQL("""
INSERT INTO {table} AS held ({time}, key, {grouped}, {names})
SELECT {time}, md5(jsonb_build_array({grouped})::text)::uuid, {grouped}, {names} FROM {source}
ON CONFLICT ({time}, key) DO UPDATE SET {added}
""")


def daily(lines: sql.Composable) -> sql.Composed:
    """A query for the sums by day of ledger lines, which the table or subquery `lines` has."""
    shares = [
        sql.SQL(
            "coalesce(sum({value} / seconds * of_day) FILTER (WHERE resource = {resource}), 0){cast} AS {name}"
        ).format(
            value=sql.Identifier(value), resource=sql.Literal(resource), name=sql.Identifier(name), cast=sql.SQL(cast_)
        )
        for value, cast_, names in (
            ("quantity", "::bigint", RESOURCES),
            ("charge", "", {resource: f"{resource}_charge" for resource in RESOURCES}),
        )
        for resource, name in names.items()
    ]
    return DAILY.format(lines=lines, sums=sql.SQL(", ").join(shares))


def monthly() -> sql.Composed:
    """The same by month, of the rows of a query `daily`."""
    sums = [
        sql.SQL("sum({0}){1} AS {0}").format(sql.Identifier(name), sql.SQL("::bigint" if "seconds" in name else ""))
        for name in SUMMED
    ]
    return MONTHLY.format(grouped=GROUPED, sums=sql.SQL(", ").join(sums))


def _add(table: str, time: str, source: str) -> sql.Composed:
    names = [sql.Identifier(name) for name in SUMMED]
    return ADD.format(
        table=sql.Identifier(table), time=sql.Identifier(time), source=sql.Identifier(source), grouped=GROUPED,
        names=sql.SQL(", ").join(names),
        added=sql.SQL(", ").join(sql.SQL("{0} = held.{0} + excluded.{0}").format(name) for name in names),
    )  # fmt: skip


ROLLUPS = sql.SQL(
    "daily AS MATERIALIZED ({daily}), monthly AS MATERIALIZED ({monthly}), by_day AS ({by_day}), by_month AS ({by_month})"
).format(
    daily=daily(sql.Identifier("posted")),
    monthly=monthly(),
    by_day=_add("billing_dailyusage", "day", "daily"),
    by_month=_add("billing_monthlyusage", "month", "monthly"),
)
POST = STATEMENT.format(terms=TERMS, columns=COLUMNS, same=SAME, rollups=ROLLUPS)


@dataclass(frozen=True)
class Posted:
    """How many segments were looked at, and how many lines were added and reversed."""

    segments: int = 0
    added: int = 0
    reversed: int = 0

    def __add__(self, other: Posted) -> Posted:
        return Posted(self.segments + other.segments, self.added + other.added, self.reversed + other.reversed)


def keep_others_out() -> None:
    """Waits until no other transaction posts, and lets none begin before this one ends: whoever closes a month does so."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [POSTING])


def post(now: dt.datetime | None = None) -> Posted:
    """Posts everything that is due at `now`, in portions that are each a transaction of their own."""
    total = Posted()
    while (posted := post_portion(now or timezone.now())).segments:
        total += posted
    return total


@transaction.atomic
def post_portion(now: dt.datetime, size: int = PORTION) -> Posted:
    """Posts up to `size` segments that are due at `now`."""
    keep_others_out()
    # Read after the lock was given, so that terms and owners are those that whoever held it has left.
    parameters: dict[str, Any] = {"now": floor(now), "portion": size, **terms_of(price_book())}
    with connection.cursor() as cursor:
        cursor.execute(cast("Any", POST), parameters)
        return Posted(*cursor.fetchone())
