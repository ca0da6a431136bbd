"""Usage over time by any group: the sums by day and month that posting keeps, plus usage that is not in the ledger yet.

One statement reads both, so that they are consistent: the rollups have what was posted, `fresh` what segments waiting
for posting hold now, and `standing` subtracts what the ledger already has of these. So every second counts once,
whether it was posted, is waiting or is being corrected; a test compares the sums with the segments. Callers pass
appcodes that the user may see (`portal.access`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from django.db import connection, transaction
from psycopg2 import sql

from billing import periods
from billing.ledger.models import COLUMNS, Group
from billing.metering.segments import floor
from billing.money import Used
from billing.periods import Range, midnight
from billing.prices.book import price_book
from billing.prices.split import GPU_CLASS, MODEL_OF_SKU, OF_GPUS, OWNERS_OF_DUE, TERMS, terms_of

DAILY, MONTHLY, SPENDING = "billing_dailyusage", "billing_monthlyusage", "billing_monthlyspending"


@dataclass(frozen=True)
class Dashboard:
    """Sums over a range. `by_group` has the chosen group's values in each column ("" if unnamed; an appcode's id as
    text), `by` the same over the whole range for every requested group."""

    range: Range
    now: dt.datetime
    by_group: Mapping[dt.date, Mapping[str, Used]]
    by: Mapping[Group, Mapping[str, Used]] = field(default_factory=dict)

    @property
    def total(self) -> Used:
        return sum((each for column in self.by_group.values() for each in column.values()), Used())

    @property
    def totals(self) -> list[tuple[dt.date, Used]]:
        return [(since, sum(self.by_group[since].values(), Used())) for since, _ in self.range.columns]


# `due` are segments waiting for posting, with their owners over time; `fresh` is what they hold in each piece of the range;
# `standing` is the negative of what the ledger has of them. A line's share of a piece is exact: it is a product of seconds.
STATEMENT = sql.SQL("""
WITH {terms},
piece(since, until) AS (SELECT * FROM unnest(%(pieces_since)s::timestamptz[], %(pieces_until)s::timestamptz[])),
due AS MATERIALIZED (
    SELECT s.id, s.appcode_id, s.labels, {gpu_class} AS class, s.gpu_model, s.gpus,
        s.cpu_milli, s.memory_mb, s.storage_mb, s.started,
        least(s.ended, %(now)s) AS ended, d.posted, coalesce(p.payer, 0) AS payer
    FROM billing_due d JOIN billing_usagesegment s ON s.id = d.segment_id
    LEFT JOIN payer p ON p.appcode_id = s.appcode_id
    WHERE {of_segments}
),
owner_ AS MATERIALIZED ({owners}),
part AS (
    SELECT due.*, coalesce(o.business_line, '') AS business_line, piece.since AS piece_since,
        greatest(due.started, piece.since, o.since) AS part_since, least(due.ended, piece.until, o.until) AS part_until
    FROM due JOIN piece ON due.started < piece.until AND due.ended > piece.since
    LEFT JOIN owner_ o ON o.appcode_id = due.appcode_id AND o.since < due.ended AND o.until > due.started
),
fresh AS (
    SELECT (part.piece_since AT TIME ZONE 'UTC')::date AS day, part.appcode_id, part.business_line, part.labels,
        CASE resource WHEN 'gpu' THEN part.gpu_model ELSE '' END AS gpu_model,
        CASE resource WHEN 'gpu' THEN part.gpus * seconds ELSE 0 END AS gpu_seconds,
        units * seconds * rate AS charge
    FROM part
    CROSS JOIN LATERAL (VALUES
        ('gpu', part.gpus), ('cpu', part.cpu_milli), ('memory', part.memory_mb), ('storage', part.storage_mb)
    ) r(resource, units)
    JOIN terms t USING (resource)
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM least(part.part_until, t.until) - greatest(part.part_since, t.since))::bigint AS seconds
    ) s
    WHERE units > 0 AND t.payer = part.payer AND t.since < part.part_until AND t.until > part.part_since
        AND part.part_since < part.part_until
        AND (resource <> 'gpu' OR t.class = part.class
            AND t.model = CASE WHEN part.gpu_model = ANY(%(models)s) THEN part.gpu_model ELSE '' END)
),
standing AS (
    SELECT (piece.since AT TIME ZONE 'UTC')::date AS day, line.appcode_id, line.business_line, line.labels,
        CASE WHEN {of_gpus} THEN {model} ELSE '' END AS gpu_model,
        CASE WHEN {of_gpus} THEN -quantity / whole * seconds ELSE 0 END AS gpu_seconds,
        -charge / whole * seconds AS charge
    FROM due CROSS JOIN LATERAL (
        SELECT * FROM billing_ledgerentry WHERE segment_id = due.id AND kind <> 'credit' OFFSET 0
    ) line
    JOIN piece ON line.since < piece.until AND line.until > piece.since
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM line.until - line.since)::bigint AS whole,
            extract(epoch FROM least(line.until, piece.until) - greatest(line.since, piece.since))::bigint AS seconds
    ) s
    WHERE due.posted
),
used AS (
    {rollups}
    UNION ALL
    SELECT day, appcode_id, business_line, coalesce(left(labels->>'cluster', 200), ''),
        coalesce(left(labels->>'user', 200), ''), coalesce(left(labels->>'framework', 200), ''), gpu_model, gpu_seconds, charge
    FROM (SELECT * FROM fresh UNION ALL SELECT * FROM standing) live
),
placed AS (SELECT {place} AS place, {names}, gpu_seconds, charge FROM used WHERE {condition})
SELECT GROUPING({grouped}), place, {texts}, sum(gpu_seconds)::bigint, sum(charge)
FROM placed GROUP BY GROUPING SETS ({sets})
HAVING sum(gpu_seconds) <> 0 OR sum(charge) <> 0
""")
# The rows of each table of sums, with charges added up.
ROLLUP = sql.SQL("""SELECT {time} AS day, appcode_id, business_line, {cluster} AS cluster, "user", framework, gpu_model,
    gpu_seconds, {charge} AS charge
    FROM {table} WHERE {time} >= {since} AND {time} < {until} AND {condition}""")


def read(
    range_: Range,
    by: Group,
    now: dt.datetime,
    *,
    appcodes: Sequence[int] | None = None,
    where: Mapping[Group, str] | None = None,
    also: Iterable[Group] = (),
) -> Dashboard:
    """Sums of the range by `by` in each column, and over the whole range by each of `also`. One query besides the price
    book's. `appcodes` are the ids that count (None: all). `where` narrows to one value of a group; for an appcode that
    is its id as text."""
    now = floor(now)
    groups: list[Group] = list(dict.fromkeys([by, *also]))
    names = [sql.Identifier(COLUMNS[group]) for group in groups]
    midnights = [(midnight(since), midnight(until)) for since, until in range_.columns]
    parameters: dict[str, Any] = {
        "now": now, "first": range_.since, "pieces_since": [since for since, _ in midnights],
        "pieces_until": [until for _, until in midnights], **terms_of(price_book()),
    }  # fmt: skip
    wanted: list[sql.Composable] = []
    rollups = []
    of_segments = sql.SQL("true")
    if appcodes is not None:
        parameters["appcodes"] = list(appcodes)
        of_segments = sql.SQL("s.appcode_id = ANY(%(appcodes)s)")
        wanted.append(sql.SQL("appcode_id = ANY(%(appcodes)s)"))
    for group, value in (where or {}).items():
        parameters[f"where_{group}"] = value
        form = "{}::text = {}" if group == "appcode" else "{} = {}"
        wanted.append(sql.SQL(form).format(sql.Identifier(COLUMNS[group]), sql.Placeholder(f"where_{group}")))
    condition = sql.SQL(" AND ").join(wanted) if wanted else sql.SQL("true")
    months = MONTHLY if "cluster" in {*groups, *(where or {})} else SPENDING
    for n, (table, since, until) in enumerate(_rollups(range_, months)):
        parameters |= {f"since_{n}": since, f"until_{n}": until}
        summed = "charge" if table == SPENDING else "gpu_charge + cpu_charge + memory_charge + storage_charge"
        rollups.append(
            ROLLUP.format(
                time=sql.Identifier("day" if table == DAILY else "month"), table=sql.Identifier(table),
                cluster=sql.SQL("''" if table == SPENDING else "cluster"), charge=sql.SQL(summed),
                since=sql.Placeholder(f"since_{n}"), until=sql.Placeholder(f"until_{n}"), condition=condition,
            )
        )  # fmt: skip
    first = sql.SQL("(place, {})").format(names[0])
    statement = STATEMENT.format(
        terms=TERMS,
        of_gpus=OF_GPUS,
        gpu_class=GPU_CLASS,
        model=MODEL_OF_SKU,
        owners=OWNERS_OF_DUE,
        of_segments=of_segments,
        rollups=sql.SQL(" UNION ALL ").join(rollups),
        place=sql.SQL("day" if range_.step == "day" else "greatest(date_trunc('month', day::timestamp)::date, %(first)s)"),
        names=sql.SQL(", ").join(names),
        texts=sql.SQL(", ").join(sql.SQL("{}::text").format(name) for name in names),
        grouped=sql.SQL(", ").join([sql.SQL("place"), *names]),
        condition=condition,
        sets=sql.SQL(", ").join([first, *(sql.SQL("({})").format(name) for name in names[1:])]),
    )  # fmt: skip
    with transaction.atomic(), connection.cursor() as cursor:
        # Many rows are summed into few: hash them in memory.
        cursor.execute("SET LOCAL work_mem = '32MB'; SET LOCAL enable_sort = off")
        cursor.execute(cast("Any", statement), parameters)
        return _dashboard(range_, now, groups, cursor.fetchall())


def _dashboard(range_: Range, now: dt.datetime, groups: Sequence[Group], rows: Iterable[Sequence[Any]]) -> Dashboard:
    columns: dict[dt.date, dict[str, Used]] = {since: {} for since, _ in range_.columns}
    by: dict[Group, dict[str, Used]] = {group: {} for group in groups}
    for grouping, place, *values, gpu_seconds, charge in rows:
        used = Used(gpu_seconds, charge)
        # GROUPING has a bit for each column that was summed over; the last column is the lowest bit.
        here = [n for n in range(len(groups)) if not grouping >> (len(groups) - 1 - n) & 1]
        name = values[here[0]]
        if place is not None:
            columns[place][name] = used
        by[groups[here[0]]][name] = by[groups[here[0]]].get(name, Used()) + used
    return Dashboard(range_, now, columns, by)


def _rollups(range_: Range, months: str) -> list[tuple[str, dt.date, dt.date]]:
    """The rows that make up the range: whole months, and days at its edges."""
    if range_.step == "day":
        return [(DAILY, range_.since, range_.until)]
    first = range_.since if range_.since.day == 1 else periods.following(range_.since)
    last = range_.until.replace(day=1)
    if first >= last:
        return [(DAILY, range_.since, range_.until)]
    found = [(DAILY, range_.since, first), (months, first, last), (DAILY, last, range_.until)]
    return [(table, since, until) for table, since, until in found if since < until]
