"""Billing's Prometheus metrics: GPU-seconds, age and queue of posting, and what waits in the outbox and in quarantine.

A Prometheus counter must never go down: it would look like a restart from zero. Usage may go down: by corrections, and
because running usage is counted until now although its reported end may be a second earlier. So GpuCounter keeps the
highest exported value, which is exported until the usage has caught up.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, cast

from django.db import connection
from django.utils import timezone
from prometheus_client.core import CounterMetricFamily, Metric
from psycopg2 import sql

from billing.metering.segments import floor
from billing.prices.split import MODEL_OF_SKU, OF_GPUS, OWNERS_OF_DUE
from portal.monitoring.metrics import gauge

# Appcodes beyond this number, in order of creation, share one series per business line and model.
MAX_APPCODES = 1000
OTHERS = "_other"

# The dashboard's sum: posted usage, plus what unposted segments hold now, less what the ledger already has of those.
# Only series that grew are written, because ON CONFLICT locks even rows that it leaves alone; every value exported
# before this statement began is in `before`. No month is read: late usage corrects old months, but GpuTotal keeps the
# total of all months in the same transaction.
COUNTED = sql.SQL("""
WITH due AS MATERIALIZED (
    SELECT s.id, s.appcode_id, s.gpu_model, s.gpus, s.started, least(s.ended, %(now)s) AS ended, d.posted
    FROM billing_due d JOIN billing_usagesegment s ON s.id = d.segment_id WHERE s.gpus > 0
),
owner_ AS MATERIALIZED ({owners}),
used AS (
    SELECT appcode_id, business_line, gpu_model, gpu_seconds FROM billing_gputotal
    UNION ALL
    SELECT due.appcode_id, coalesce(o.business_line, ''), due.gpu_model,
        due.gpus * greatest(0, extract(epoch FROM least(due.ended, o.until) - greatest(due.started, o.since)))::bigint
    FROM due LEFT JOIN owner_ o ON o.appcode_id = due.appcode_id
    UNION ALL
    SELECT line.appcode_id, line.business_line, {model}, -line.quantity
    FROM due CROSS JOIN LATERAL (
        SELECT * FROM billing_ledgerentry WHERE segment_id = due.id AND kind <> 'credit' OFFSET 0
    ) line
    WHERE due.posted AND {of_gpus}
),
named AS (
    SELECT id, CASE WHEN row_number() OVER (ORDER BY id) <= %(most)s THEN code ELSE %(others)s END AS code FROM portal_appcode
),
summed AS (
    SELECT named.code, business_line, gpu_model, sum(gpu_seconds)::bigint AS seconds
    FROM used JOIN named ON named.id = used.appcode_id GROUP BY 1, 2, 3 HAVING sum(gpu_seconds) > 0
),
counted AS MATERIALIZED (
    SELECT code, business_line, gpu_model, summed.seconds, told.seconds AS before
    FROM summed LEFT JOIN billing_gpucounter told USING (code, business_line, gpu_model)
),
kept AS (
    INSERT INTO billing_gpucounter AS told (code, business_line, gpu_model, seconds)
    SELECT code, business_line, gpu_model, seconds FROM counted WHERE before IS NULL OR before < seconds ORDER BY 1, 2, 3
    ON CONFLICT (code, business_line, gpu_model) DO UPDATE SET seconds = excluded.seconds WHERE told.seconds < excluded.seconds
)
SELECT code, business_line, gpu_model, greatest(seconds, before) FROM counted
""").format(owners=OWNERS_OF_DUE, model=MODEL_OF_SKU, of_gpus=OF_GPUS)
STATE = """
SELECT
    (SELECT posted_at FROM billing_ledgerentry WHERE kind <> 'credit' ORDER BY id DESC LIMIT 1),
    (SELECT min(due_at) FROM billing_due WHERE due_at <= %(now)s),
    (SELECT count(*) FROM billing_due WHERE due_at <= %(now)s),
    (SELECT count(*) FROM billing_mail WHERE sent_at IS NULL AND give_up_at > %(now)s),
    (SELECT count(*) FROM billing_mail WHERE sent_at IS NULL AND give_up_at <= %(now)s),
    (SELECT count(*) FROM billing_quarantined WHERE resolved_at IS NULL)
"""


def metrics() -> Iterator[Metric]:
    """Two queries."""
    now = timezone.now()
    yield gpu_seconds(now)
    with connection.cursor() as cursor:
        cursor.execute(STATE, {"now": now})
        posted_at, waiting_since, waiting, mails, given_up, quarantined = cursor.fetchone()
    if posted_at:
        yield gauge(
            "portal_posting_age_seconds",
            "Time since a line was written to the ledger.",
            (),
            [((), _age(posted_at, now))],
        )
    yield gauge(
        "portal_posting_delay_seconds", "For how long the segment that waits longest should have been posted.", (),
        [((), _age(waiting_since, now) if waiting_since else 0)],
    )  # fmt: skip
    yield gauge("portal_posting_queue", "Segments that are to be posted now.", (), [((), waiting)])
    yield gauge(
        "portal_mails", "Mails in the outbox, waiting or given up.", ("state",),
        [(("waiting",), mails), (("given-up",), given_up)],
    )  # fmt: skip
    yield gauge("portal_quarantined_sightings", "Sightings that nobody has understood yet.", (), [((), quarantined)])


def gpu_seconds(now: dt.datetime) -> Metric:
    family = CounterMetricFamily(
        "portal_gpu_seconds", "GPU-seconds used until now, of tasks that run included.",
        labels=("appcode", "business_line", "gpu_model"),
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(cast("Any", COUNTED), {"now": floor(now), "most": MAX_APPCODES, "others": OTHERS})
        for *labels, seconds in cursor.fetchall():
            family.add_metric(labels, seconds)
    return family


def _age(moment: dt.datetime, now: dt.datetime) -> float:
    return max(0.0, (now - moment).total_seconds())
