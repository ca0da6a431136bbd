"""Usage summed by the database: the same split at price changes as in `rates`, for any grouping, in one statement.

`rates.Prices` decides which rate applies to whom and when. Its rates are sent along as rows, so that the rule exists
only once. The results are exact sums (seconds × amount × rate); `money.money` does the only division.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, cast

from django.db import connection
from psycopg2 import sql

from billing.metering.segments import floor
from billing.money import CLASSES, SECONDS_PER_HOUR, WORTH, class_of, family, money
from billing.prices.rates import ANYBODY, BEGINNING, Prices

Group = Literal["appcode", "consumer", "cluster", "run", "role"]
_CLASSES = sql.Literal(list(CLASSES))
# Of a segment `s`: the class of its GPUs (`segments.gpu_class` is the reference), their place among the SKUs of TERMS, and their
# SKU.
GPU_CLASS = sql.SQL("CASE WHEN s.labels->>'class' = ANY({}) THEN s.labels->>'class' ELSE '' END").format(_CLASSES)
MODEL_KEY = sql.SQL("""coalesce(array_position(%(models)s::text[], s.gpu_model), 0)
            + %(of_class)s * coalesce(array_position({}, s.labels->>'class'), 0)""").format(_CLASSES)
GPU_SKU = sql.SQL("""CASE WHEN s.labels->>'class' = ANY({}) THEN s.labels->>'class' || '-gpu' ELSE 'gpu' END
            || CASE s.gpu_model WHEN '' THEN '' ELSE ':' || s.gpu_model END""").format(_CLASSES)
# Of a ledger line: whether it is of GPUs, and their model.
_GPUS = ["gpu", *(f"{each}-gpu" for each in CLASSES)]
OF_GPUS = sql.SQL("({})").format(
    sql.SQL(" OR ").join(sql.SQL("starts_with(sku, {})").format(sql.Literal(each)) for each in _GPUS)
)
MODEL_OF_SKU = sql.SQL("regexp_replace(sku, {}, '')").format(sql.Literal(f"^(({'|'.join(CLASSES)})-)?gpu:?"))
# Columns to group and filter by. Values are text, None if a segment lacks the label.
COLUMNS: dict[Group, sql.SQL] = {
    "appcode": sql.SQL("s.appcode_id::text"),
    "consumer": sql.SQL("s.consumer"),
    "cluster": sql.SQL("s.labels->>'cluster'"),
    "run": sql.SQL("s.labels->>'run'"),
    "role": sql.SQL("s.labels->>'role'"),
}
# Takes a segment's part in a window, then each of its SKUs at the rates in force during that part. One extra row counts
# the pod; volumes have none. Times are whole seconds, so epochs are exact; terms cover all time, so priced rows also
# add up to the quantities.
STATEMENT = sql.SQL("""
WITH window_(since, until) AS (SELECT * FROM unnest(%(since)s::timestamptz[], %(until)s::timestamptz[])),
{terms},
part AS (
    SELECT {groups}, w.since AS window_since, s.gpus, s.cpu_milli, s.memory_mb, s.storage_mb,
        {model_key} AS model_key, coalesce(p.payer, 0) * %(keys)s AS payer_key,
        greatest(s.started, w.since) AS since, least(coalesce(s.ended, w.until), w.until, %(now)s) AS until,
        s.ended IS NULL AND w.until >= %(now)s AS live
    FROM billing_usagesegment s
    JOIN window_ w ON s.started < w.until AND (s.ended IS NULL OR s.ended > w.since)
    LEFT JOIN payer p ON p.appcode_id = s.appcode_id
    WHERE s.started <= %(now)s AND w.since <= %(now)s AND {where}
),
priced AS (
    SELECT {names}, window_since, r.resource, live, units, terms.rate,
        greatest(0, date_part('epoch', least(terms.until, part.until) - greatest(terms.since, part.since)))::bigint * units
            AS quantity,
        live AND terms.since <= %(now)s AND terms.until > %(now)s AS holds
    FROM part
    CROSS JOIN LATERAL (VALUES
        ('pod', -1, (storage_mb = 0 OR greatest(gpus, cpu_milli, memory_mb) > 0)::int),
        ('gpu', payer_key + model_key, gpus),
        ('cpu', payer_key + %(keys)s - 3, cpu_milli),
        ('memory', payer_key + %(keys)s - 2, memory_mb),
        ('storage', payer_key + %(keys)s - 1, storage_mb)
    ) r(resource, key, units)
    LEFT JOIN terms ON terms.key = r.key AND terms.since <= part.until AND terms.until > part.since
    WHERE units > 0
)
SELECT {names}, window_since, count(*) FILTER (WHERE live AND resource = 'pod'),
    coalesce(sum(quantity) FILTER (WHERE resource = 'gpu'), 0), coalesce(sum(quantity) FILTER (WHERE resource = 'cpu'), 0),
    coalesce(sum(quantity) FILTER (WHERE resource = 'memory'), 0),
    coalesce(sum(quantity) FILTER (WHERE resource = 'storage'), 0), coalesce(sum(quantity * rate), 0),
    coalesce(sum(units) FILTER (WHERE holds AND resource = 'gpu'), 0), coalesce(sum(units * rate) FILTER (WHERE holds), 0)
FROM priced
GROUP BY {names}, window_since
ORDER BY {names}, window_since
""")


@dataclass(frozen=True)
class Sum:
    """Usage of one group in one window: `key` holds the group's values in the requested order, `since` is the window's start.

    Quantities are seconds × amount until the earlier of the window's end and now; `charge` is exact, in UNITs. `pods`
    and `gpus` are running now, and `cost_per_hour` is the cost of everything running now, volumes included; all three
    are 0 for a past window.
    """

    key: tuple[str | None, ...]
    since: dt.datetime
    gpu_seconds: int
    cpu_milli_seconds: int
    memory_mb_seconds: int
    storage_mb_seconds: int
    charge: Decimal
    pods: int
    gpus: int
    cost_per_hour: Decimal

    @property
    def cost(self) -> Decimal:
        return money(self.charge)


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
    """Sums for each group with usage in each of the `windows` [since, until), in one query. Filters are combined with AND."""
    where, narrowed = narrowing(appcodes=appcodes, consumers=consumers, cluster=cluster, run=run)
    statement = STATEMENT.format(
        terms=TERMS,
        model_key=MODEL_KEY,
        groups=sql.SQL(", ").join(sql.SQL("{} AS {}").format(COLUMNS[group], sql.Identifier(group)) for group in by),
        names=sql.SQL(", ").join(map(sql.Identifier, by)),
        where=where,
    )
    parameters = {
        **narrowed,
        "now": floor(now),
        "since": [floor(since) for since, _ in windows],
        "until": [floor(until) for _, until in windows],
        **terms_of(prices),
    }
    with connection.cursor() as cursor:
        cursor.execute(cast("Any", statement), parameters)
        return [_sum(row, len(by)) for row in cursor.fetchall()]


def narrowing(
    *, appcodes: Sequence[int] | None, consumers: Sequence[str] | None, cluster: str | None, run: str | None
) -> tuple[sql.Composable, dict[str, Any]]:
    """The SQL condition on segments `s` for the filters (None is no filter, the others are combined with AND), and its
    parameters."""
    filters: dict[str, tuple[str, Any]] = {
        "appcodes": ("s.appcode_id = ANY(%(appcodes)s)", appcodes),
        "consumers": ("s.consumer = ANY(%(consumers)s)", consumers),
        "cluster": ("s.labels->>'cluster' = %(cluster)s", cluster),
        "run": ("s.labels->>'run' = %(run)s", run),
    }
    asked = {name: (text, value) for name, (text, value) in filters.items() if value is not None}
    where = sql.SQL(" AND ").join([sql.SQL(text) for text, _ in asked.values()]) if asked else sql.SQL("true")
    return where, {name: value if isinstance(value, str) else list(value) for name, (_, value) in asked.items()}


# The rates of a price book as rows, with the parameters of `terms_of`: `rate` is UNITs per unit-second, model "" stands
# for every model without terms of its own, and payer 0 is every payer not in the table `payer`. All time is covered
# without gaps. `key` is payer × keys + the model's place in `models` (from 1; 0 for any other) + `of_class` × the
# place of the class in CLASSES (from 1; 0 for none), or for cpu, memory and storage the last three.
TERMS = sql.SQL("""terms(
    key, payer, resource, model, class, price_id, per_hour, discount, rate, since, until
) AS MATERIALIZED (
    SELECT * FROM unnest(%(key)s::int[], %(payer)s::int[], %(resource)s::text[], %(model)s::text[], %(gpu_class)s::text[],
        %(price_id)s::bigint[], %(per_hour)s::numeric[], %(discount)s::numeric[], %(rate)s::numeric[],
        %(terms_since)s::timestamptz[], %(terms_until)s::timestamptz[])),
payer(appcode_id, payer) AS MATERIALIZED (SELECT * FROM unnest(%(code)s::bigint[], %(code_payer)s::int[]))""")
COLUMNS_OF_TERMS = (
    "key", "payer", "resource", "model", "gpu_class", "price_id", "per_hour", "discount", "rate", "terms_since", "terms_until",
)  # fmt: skip
# Which business line owned an appcode when, from the ownership rows in `noted`: a table or subquery, optionally with a
# WHERE. The first owner applies from the beginning, the last one for ever.
OWNERS = sql.SQL("""SELECT appcode_id, business_line,
        CASE WHEN lag(valid_from) OVER changes IS NULL THEN '-infinity' ELSE valid_from END AS since,
        lead(valid_from, 1, 'infinity') OVER changes AS until
    FROM {noted}
    WINDOW changes AS (PARTITION BY appcode_id ORDER BY valid_from)""")
# For the appcodes in the CTE `due`.
OWNERS_OF_DUE = OWNERS.format(noted=sql.SQL("billing_ownership WHERE appcode_id IN (SELECT appcode_id FROM due)"))


def terms_of(prices: Prices) -> dict[str, Any]:
    """The parameters of TERMS. Payers with the same terms share their rows."""
    models = sorted(prices.gpu_models)
    skus = [("", "gpu"), *((model, f"gpu:{model}") for model in models)]
    skus += [(model, f"{each}-{sku}") for each in CLASSES for model, sku in skus[:]]
    skus += [("", sku) for sku in ("cpu", "memory", "storage")]
    payers = {payer: number for number, payer in enumerate(dict.fromkeys([ANYBODY, *prices.payers.values()]))}
    rows = [
        (
            number * len(skus) + place, number, family(sku), model, class_of(sku), rate.price and rate.price.id,
            rate.list_price, rate.discount, rate.per_hour * WORTH[family(sku)],
            "-infinity" if rate.since == BEGINNING else rate.since.isoformat(),
            rate.until.isoformat() if rate.until else "infinity",
        )
        for payer, number in payers.items()
        for place, (model, sku) in enumerate(skus)
        for rate in prices.rates_of(payer, sku)
    ]  # fmt: skip
    columns = (list(column) for column in zip(*rows, strict=True))
    return {
        "models": models,
        "keys": len(skus),
        "of_class": len(models) + 1,
        **dict(zip(COLUMNS_OF_TERMS, columns, strict=True)),
        "code": list(prices.payers),
        "code_payer": [payers[payer] for payer in prices.payers.values()],
    }


def _sum(row: Sequence[Any], groups: int) -> Sum:
    since, pods, gpu_s, cpu_s, memory_s, storage_s, charge, gpus, charge_now = row[groups:]
    return Sum(
        key=tuple(row[:groups]),
        since=since,
        gpu_seconds=int(gpu_s),
        cpu_milli_seconds=int(cpu_s),
        memory_mb_seconds=int(memory_s),
        storage_mb_seconds=int(storage_s),
        charge=Decimal(charge),
        pods=pods,
        gpus=int(gpus),
        cost_per_hour=money(charge_now * SECONDS_PER_HOUR),
    )
