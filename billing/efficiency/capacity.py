"""Available GPUs over time: one row per change, recorded by each cloud's follower, as the reference for usage.

Before the first row of a model the capacity is unknown, and no utilisation is shown.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from django.db import connection

from billing.metering.segments import floor
from billing.money import Used
from billing.periods import Range, midnight

# Finds the latest row of each model that the cloud ever had by a loose index scan, and compares it with the new counts.
RECORD = """
WITH RECURSIVE model(gpu_model) AS (
    SELECT min(gpu_model) FROM billing_capacityrecord WHERE cloud = %(cloud)s
    UNION ALL
    SELECT (SELECT min(r.gpu_model) FROM billing_capacityrecord r WHERE r.cloud = %(cloud)s AND r.gpu_model > model.gpu_model)
    FROM model WHERE model.gpu_model IS NOT NULL
),
latest AS (
    SELECT r.* FROM model CROSS JOIN LATERAL (
        SELECT gpu_model, gpus, simulated FROM billing_capacityrecord
        WHERE cloud = %(cloud)s AND gpu_model = model.gpu_model ORDER BY at DESC, id DESC LIMIT 1
    ) r
),
told(gpu_model, gpus, simulated) AS (SELECT * FROM unnest(%(models)s::text[], %(gpus)s::int[], %(simulated)s::int[]))
INSERT INTO billing_capacityrecord (cloud, gpu_model, gpus, simulated, at)
SELECT %(cloud)s, gpu_model, coalesce(told.gpus, 0), coalesce(told.simulated, 0), %(at)s
FROM told FULL JOIN latest USING (gpu_model)
WHERE (coalesce(told.gpus, 0), coalesce(told.simulated, 0)) <> (coalesce(latest.gpus, 0), coalesce(latest.simulated, 0))
"""
AVAILABLE = """
WITH piece(since, until) AS (SELECT * FROM unnest(%(since)s::timestamptz[], %(until)s::timestamptz[])),
step AS (
    SELECT gpu_model, gpus, simulated, at AS since, lead(at, 1, 'infinity') OVER same AS until FROM billing_capacityrecord
    WINDOW same AS (PARTITION BY cloud, gpu_model ORDER BY at, id)
)
SELECT (piece.since AT TIME ZONE 'UTC')::date, gpu_model, sum(gpus * seconds)::bigint, sum(simulated * seconds)::bigint
FROM step JOIN piece ON step.since < piece.until AND step.until > piece.since
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM least(step.until, piece.until, %(now)s) - greatest(step.since, piece.since))::bigint AS seconds
) length
WHERE seconds > 0 AND gpus > 0 GROUP BY 1, 2
"""


@dataclass(frozen=True)
class Share:
    """GPU-seconds held and available. `part` is None if the capacity is unknown."""

    held: int
    available: int

    @property
    def part(self) -> Decimal | None:
        """From 0 to 1. If more was held than available, part of the time is from before the first record."""
        return Decimal(self.held) / self.available if 0 < self.available >= self.held else None

    @property
    def percent(self) -> Decimal | None:
        return None if self.part is None else self.part * 100

    @property
    def free(self) -> int | None:
        """GPU-seconds that were not held."""
        return None if self.part is None else self.available - self.held


def record(cloud: str, gpus: Mapping[str, tuple[int, int]], at: dt.datetime) -> None:
    """Records the cloud's GPUs from `at` on, by model as (all, simulated ones among them); other models count as gone.
    Writes nothing if nothing changed."""
    there = {model: counts for model, counts in gpus.items() if counts[0]}
    with connection.cursor() as cursor:
        cursor.execute(
            RECORD,
            {
                "cloud": cloud, "at": floor(at), "models": list(there), "gpus": [count for count, _ in there.values()],
                "simulated": [count for _, count in there.values()],
            },
        )  # fmt: skip


def available(range_: Range, now: dt.datetime) -> dict[dt.date, dict[str, tuple[int, int]]]:
    """Available GPU-seconds up to `now`, by column and model, and those of simulated GPUs among them. One query."""
    columns: dict[dt.date, dict[str, tuple[int, int]]] = {since: {} for since, _ in range_.columns}
    parameters: dict[str, Any] = {
        "since": [midnight(since) for since, _ in range_.columns],
        "until": [midnight(until) for _, until in range_.columns],
        "now": floor(now),
    }
    with connection.cursor() as cursor:
        cursor.execute(cast("Any", AVAILABLE), parameters)
        for since, model, there, simulated in cursor.fetchall():
            columns[since][model] = there, simulated
    return columns


def shares(
    used: Mapping[dt.date, Mapping[str, Used]], there: Mapping[dt.date, Mapping[str, tuple[int, int]]]
) -> dict[dt.date, dict[str, Share]]:
    """The share of GPU-seconds held (`used`) of those `available`, by column and GPU model."""
    return {
        since: {
            model: Share(held[model].gpu_seconds if model in held else 0, there[since].get(model, (0, 0))[0])
            for model in sorted({*there[since], *(model for model, used in held.items() if used.gpu_seconds)})
        }
        for since, held in used.items()
    }


def total(shares: Iterable[Share]) -> Share:
    """The sum of those shares whose capacity is known."""
    known = [share for share in shares if share.part is not None]
    return Share(sum(share.held for share in known), sum(share.available for share in known))
