"""Usage added up by the database: the same split at price changes as `rating`, for any grouping, in one statement.

`rating.Prices` decides which price holds when; those spans are sent along as rows, so that the rule exists once. What
comes back are exact sums (seconds × amount × price), and the one division happens here, in `rating.decimal`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, cast

from django.db import connection
from psycopg2 import sql

from billing.rating import SECONDS_PER_HOUR, Prices, decimal
from billing.usage import floor

Group = Literal["appcode", "consumer", "cluster", "run", "role"]
# What may be grouped and filtered by; values come back as text, None where a segment has no such label.
COLUMNS: dict[Group, sql.SQL] = {
    "appcode": sql.SQL("s.appcode_id::text"),
    "consumer": sql.SQL("s.consumer"),
    "cluster": sql.SQL("s.labels->>'cluster'"),
    "run": sql.SQL("s.labels->>'run'"),
    "role": sql.SQL("s.labels->>'role'"),
}
CORE, GIB = 1000, 1024

# A segment's part in a window, then the prices that held during that part. Times are whole seconds, so epochs are
# exact.
STATEMENT = sql.SQL("""
WITH window_(since, until) AS (SELECT * FROM unnest(%(since)s::timestamptz[], %(until)s::timestamptz[])),
price(resource, model, per_hour, since, until) AS (SELECT * FROM unnest(
    %(resource)s::text[], %(model)s::text[], %(per_hour)s::numeric[], %(from)s::timestamptz[], %(to)s::timestamptz[])),
part AS (
    SELECT {groups}, w.since AS window_since, s.gpus, s.cpu_milli, s.memory_mb,
        CASE WHEN s.gpu_model = ANY(%(models)s) THEN s.gpu_model ELSE '' END AS model,
        greatest(s.started, w.since) AS since, least(coalesce(s.ended, w.until), w.until, %(now)s) AS until,
        s.ended IS NULL AND w.until >= %(now)s AS live
    FROM billing_usagesegment s
    JOIN window_ w ON s.started < w.until AND (s.ended IS NULL OR s.ended > w.since)
    WHERE s.started <= %(now)s AND w.since <= %(now)s AND {where}
)
SELECT {names}, window_since, count(*) FILTER (WHERE live),
    sum(seconds * gpus), sum(seconds * cpu_milli), sum(seconds * memory_mb),
    coalesce(sum(gpu * gpus), 0), coalesce(sum(cpu * cpu_milli), 0), coalesce(sum(memory * memory_mb), 0),
    coalesce(sum(gpus) FILTER (WHERE live), 0),
    coalesce(sum(gpu_now * gpus) FILTER (WHERE live), 0), coalesce(sum(cpu_now * cpu_milli) FILTER (WHERE live), 0),
    coalesce(sum(memory_now * memory_mb) FILTER (WHERE live), 0)
FROM part
CROSS JOIN LATERAL (SELECT greatest(0, extract(epoch FROM part.until - part.since))::bigint AS seconds) length
CROSS JOIN LATERAL (
    SELECT sum(priced * per_hour) FILTER (WHERE resource = 'gpu') AS gpu,
        sum(priced * per_hour) FILTER (WHERE resource = 'cpu') AS cpu,
        sum(priced * per_hour) FILTER (WHERE resource = 'memory') AS memory,
        sum(per_hour) FILTER (WHERE resource = 'gpu' AND holds) AS gpu_now,
        sum(per_hour) FILTER (WHERE resource = 'cpu' AND holds) AS cpu_now,
        sum(per_hour) FILTER (WHERE resource = 'memory' AND holds) AS memory_now
    FROM (
        SELECT resource, per_hour, price.since <= %(now)s AND price.until > %(now)s AS holds,
            greatest(0, extract(epoch FROM least(price.until, part.until) - greatest(price.since, part.since)))::bigint
                AS priced
        FROM price WHERE resource <> 'gpu' OR price.model = part.model
    ) priced
) money
GROUP BY {names}, window_since
ORDER BY {names}, window_since
""")


@dataclass(frozen=True)
class Sum:
    """Usage of one group in one window: `key` holds the group's values in the order asked for, `since` is the window's.

    Quantities are seconds × amount until the window's end or now. `gpus` are held at this moment by `pods` running
    pods, and `cost_per_hour` is what everything now running costs; all three are 0 for a window that is over.
    """

    key: tuple[str | None, ...]
    since: dt.datetime
    gpu_seconds: int
    cpu_milli_seconds: int
    memory_mb_seconds: int
    cost: Decimal
    pods: int
    gpus: int
    cost_per_hour: Decimal


def usage(
    prices: Prices,
    *,
    by: Sequence[Group],
    windows: Sequence[tuple[dt.datetime, dt.datetime]],
    now: dt.datetime,
    appcodes: Sequence[int] | None = None,
    consumers: Sequence[str] | None = None,
    cluster: str | None = None,
    run: str | None = None,
) -> list[Sum]:
    """Sums for each group with any usage in each of the `windows` [since, until), in one query; the filters add up."""
    filters = {"appcodes": appcodes, "consumers": consumers, "cluster": cluster, "run": run}
    conditions = {
        "appcodes": sql.SQL("s.appcode_id = ANY(%(appcodes)s)"),
        "consumers": sql.SQL("s.consumer = ANY(%(consumers)s)"),
        "cluster": sql.SQL("s.labels->>'cluster' = %(cluster)s"),
        "run": sql.SQL("s.labels->>'run' = %(run)s"),
    }
    where = [conditions[name] for name, value in filters.items() if value is not None]
    statement = STATEMENT.format(
        groups=sql.SQL(", ").join(sql.SQL("{} AS {}").format(COLUMNS[group], sql.Identifier(group)) for group in by),
        names=sql.SQL(", ").join(map(sql.Identifier, by)),
        where=sql.SQL(" AND ").join(where) if where else sql.SQL("true"),
    )
    parameters = {
        **{
            name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
            for name, value in filters.items()
        },
        "now": floor(now),
        "since": [floor(since) for since, _ in windows],
        "until": [floor(until) for _, until in windows],
        **_price_rows(prices),
    }
    with connection.cursor() as cursor:
        cursor.execute(cast("Any", statement), parameters)
        return [_sum(row, len(by)) for row in cursor.fetchall()]


def _price_rows(prices: Prices) -> dict[str, list[Any]]:
    """The spans of every SKU as columns; model "" stands for each model without a price of its own."""
    models = sorted(prices.gpu_models)
    skus = [
        ("gpu", "", "gpu"),
        *(("gpu", model, f"gpu:{model}") for model in models),
        ("cpu", "", "cpu"),
        ("memory", "", "memory"),
    ]
    rows = [
        (resource, model, span.per_hour, span.since.isoformat(), span.until.isoformat() if span.until else "infinity")
        for resource, model, sku in skus
        for span in prices.spans(sku)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(5)]
    return {"models": models, **dict(zip(("resource", "model", "per_hour", "from", "to"), columns, strict=True))}


def _sum(row: Sequence[Any], groups: int) -> Sum:
    since, pods, gpu_s, cpu_s, memory_s, gpu, cpu, memory, gpus, gpu_now, cpu_now, memory_now = row[groups:]
    return Sum(
        key=tuple(row[:groups]),
        since=since,
        gpu_seconds=int(gpu_s),
        cpu_milli_seconds=int(cpu_s),
        memory_mb_seconds=int(memory_s),
        cost=_money(gpu, cpu, memory, SECONDS_PER_HOUR),
        pods=pods,
        gpus=int(gpus),
        cost_per_hour=_money(gpu_now, cpu_now, memory_now, 1),
    )


def _money(gpu: Decimal, cpu: Decimal, memory: Decimal, divisor: int) -> Decimal:
    """From sums over GPUs, thousandths of a core and MiB to money."""
    units = Fraction(gpu) + Fraction(cpu) / CORE + Fraction(memory) / GIB
    return decimal(units / divisor)
