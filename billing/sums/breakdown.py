"""What a cost is made of: SKU × seconds × price, for filtered usage in a time window until now. One statement.

It splits like `prices.split`: parts add up to the unit-second and to the last digit, so posted parts equal the ledger.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from django.db import connection
from psycopg2 import sql

from billing.metering.segments import floor
from billing.money import ORDER, UNITS, family, hours, money
from billing.prices.book import price_book
from billing.prices.split import GPU_SKU, MODEL_KEY, OWNERS, TERMS, narrowing, terms_of

STATEMENT = sql.SQL("""
WITH {terms},
part AS (
    SELECT s.gpus, s.cpu_milli, s.memory_mb, s.storage_mb, {gpu_sku} AS gpu_sku,
        {model_key} AS model_key, coalesce(p.payer, 0) * %(keys)s AS payer_key,
        greatest(s.started, %(since)s, o.since) AS since,
        least(coalesce(s.ended, %(until)s), %(until)s, %(now)s, o.until) AS until,
        s.ended IS NULL AND %(until)s >= %(now)s AND o.until > %(now)s AS live
    FROM billing_usagesegment s LEFT JOIN payer p ON p.appcode_id = s.appcode_id
    JOIN {owned} o.since < coalesce(s.ended, 'infinity') AND o.until > s.started
    WHERE s.started <= %(now)s AND s.started < %(until)s AND (s.ended IS NULL OR s.ended > %(since)s) AND {where}
)
SELECT r.sku, t.price_id IS NOT NULL, t.per_hour, t.discount,
    sum(greatest(0, date_part('epoch', least(t.until, part.until) - greatest(t.since, part.since)))::bigint * units) AS quantity,
    sum(greatest(0, date_part('epoch', least(t.until, part.until) - greatest(t.since, part.since)))::bigint * units * t.rate),
    coalesce(sum(units) FILTER (WHERE live AND t.since <= %(now)s AND t.until > %(now)s), 0)
FROM part
CROSS JOIN LATERAL (VALUES
    (payer_key + model_key, gpu_sku, gpus),
    (payer_key + %(keys)s - 3, 'cpu', cpu_milli),
    (payer_key + %(keys)s - 2, 'memory', memory_mb),
    (payer_key + %(keys)s - 1, 'storage', storage_mb)
) r(key, sku, units)
JOIN terms t ON t.key = r.key AND t.since <= part.until AND t.until > part.since
WHERE units > 0
GROUP BY 1, 2, 3, 4
HAVING sum(greatest(0, date_part('epoch', least(t.until, part.until) - greatest(t.since, part.since)))::bigint * units) > 0
    OR count(*) FILTER (WHERE live AND t.since <= %(now)s AND t.until > %(now)s) > 0
""")
# Which ownership counts: any, or only while the appcode belonged to a business line.
ALWAYS = sql.SQL("(VALUES ('-infinity'::timestamptz, 'infinity'::timestamptz)) o(since, until) ON")
OF_LINE = sql.SQL("({owners}) o ON o.business_line = %(line)s AND o.appcode_id = s.appcode_id AND").format(
    owners=OWNERS.format(noted=sql.SQL("billing_ownership"))
)
BEGINNING, END = dt.datetime(2000, 1, 1, tzinfo=dt.UTC), dt.datetime(2200, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Part:
    """All usage of one SKU at one price and discount: `quantity` in unit-seconds and `charge` in `money.UNIT`s, both
    exact; `held` are the units held now."""

    sku: str
    priced: bool
    per_hour: Decimal
    discount: Decimal
    quantity: int
    charge: Decimal
    held: int

    @property
    def cost(self) -> Decimal:
        return money(self.charge)

    @property
    def hours(self) -> Decimal:
        return hours(self.sku, self.quantity)

    @property
    def family(self) -> str:
        return family(self.sku)

    @property
    def unit(self) -> str:
        return UNITS[family(self.sku)]

    @property
    def one_unit(self) -> str:
        """ "GPU-hour": what the price is for."""
        return self.unit.removesuffix("s")


def parts(
    now: dt.datetime,
    *,
    window: tuple[dt.datetime, dt.datetime] = (BEGINNING, END),
    appcodes: Sequence[int] | None = None,
    consumers: Sequence[str] | None = None,
    cluster: str | None = None,
    run: str | None = None,
    line: str | None = None,
) -> list[Part]:
    """The parts, GPUs first. Filters are combined with AND; `line` selects what appcodes used while they belonged to
    that business line (its path). One query besides the price book's."""
    where, narrowed = narrowing(appcodes=appcodes, consumers=consumers, cluster=cluster, run=run)
    statement = STATEMENT.format(
        terms=TERMS, model_key=MODEL_KEY, gpu_sku=GPU_SKU, owned=ALWAYS if line is None else OF_LINE, where=where
    )
    since, until = window
    parameters = {
        "now": floor(now), "since": floor(since), "until": floor(until), "line": line, **narrowed, **terms_of(price_book()),
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(cast("Any", statement), parameters)
        found = [
            Part(sku, priced, per_hour, discount, int(quantity), charge, int(held))
            for sku, priced, per_hour, discount, quantity, charge, held in cursor.fetchall()
        ]
    return sorted(found, key=lambda part: (ORDER[family(part.sku)], part.sku, -part.per_hour, part.discount))
