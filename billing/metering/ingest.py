"""Stores observations and updates their segments in one statement, for any number of sightings.

`segments.segment_of` is the reference. STATEMENT computes the same in SQL, because fetching every sighting of every pod
would be fifty times slower. A test compares the two, and `manage.py replay --verify` compares the stored rows.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Collection, Sequence
from typing import Any, cast

import orjson
from django.db import connection
from psycopg2 import sql

from billing.metering.segments import MAX_SKEW, PHASE_ORDER, TERMINAL, PodState
from billing.money import CLASSES
from portal.db.advisory_lock import Lock

# Rows arrive in a temporary table, emptied at the end of the transaction. DELETE: a transaction may record twice.
INCOMING = """
CREATE TEMPORARY TABLE IF NOT EXISTS billing_incoming (
    uid text, digest text, cloud text, appcode_id bigint, consumer text, labels jsonb, phase text, gpus integer, gpu_model text,
    cpu_milli integer, memory_mb integer, storage_mb integer, scheduled_at timestamptz, started_at timestamptz,
    finished_at timestamptz, estimated boolean
) ON COMMIT DELETE ROWS;
DELETE FROM billing_incoming
"""
FIELDS = (
    "uid", "digest", "cloud", "appcode_id", "consumer", "labels", "phase", "gpus", "gpu_model", "cpu_milli", "memory_mb",
    "storage_mb", "scheduled_at", "started_at", "finished_at", "estimated",
)  # fmt: skip
COPY = f"COPY billing_incoming ({', '.join(FIELDS)}) FROM STDIN"
# What a segment takes from the last sighting of its pod.
TAKEN = ("appcode_id", "consumer", "labels", "gpus", "gpu_model", "cpu_milli", "memory_mb", "storage_mb")
AMOUNTS = ("gpus", "gpu_model", "cpu_milli", "memory_mb", "storage_mb")
# `segments.gpu_class` as a number.
CLASS = sql.SQL("coalesce(array_position({}, labels->>'class'), 0)").format(sql.Literal(list(CLASSES)))

# `fresh` are new sightings; only their pods are recomputed. `seen` are all sightings of these, `mended` the same with
# possible times, `made` the results. Every join uses an index, so that statistics cannot lead to another plan.
STATEMENT = sql.SQL("""
WITH fresh AS (
    INSERT INTO billing_observation (seen_at, {fields})
    SELECT %(seen_at)s, {fields} FROM billing_incoming ORDER BY uid, digest
    ON CONFLICT (uid, digest) DO NOTHING RETURNING id, seen_at, {fields}
),
pod AS MATERIALIZED (SELECT DISTINCT uid FROM fresh),
seen AS (
    SELECT * FROM fresh
    UNION ALL
    SELECT o.* FROM pod CROSS JOIN LATERAL (
        SELECT id, seen_at, {fields} FROM billing_observation WHERE uid = pod.uid OFFSET 0
    ) o
),
mended AS (
    SELECT seen.*, ended, rank,
        CASE WHEN scheduled > latest THEN known ELSE scheduled END AS reserved,
        CASE WHEN began > latest THEN known ELSE began END AS running,
        CASE WHEN ended THEN CASE WHEN finished > latest THEN known ELSE finished END END AS finish,
        coalesce(scheduled > latest, false) OR coalesce(began > latest, false) AS start_clamped,
        ended AND coalesce(finished > latest, false) AS end_clamped
    FROM seen
    CROSS JOIN LATERAL (
        SELECT date_trunc('second', seen_at) AS known, date_trunc('second', seen_at) + {skew} AS latest,
            date_trunc('second', scheduled_at) AS scheduled, date_trunc('second', started_at) AS began,
            date_trunc('second', finished_at) AS finished, phase IN {terminal} AS ended,
            CASE phase {ranks} ELSE 0 END AS rank
    ) told
),
ranked AS (
    SELECT *, 1 = row_number() OVER (
        PARTITION BY uid ORDER BY running IS NOT NULL DESC, rank DESC, digest COLLATE "C" DESC
    ) AS last FROM mended
),
summed AS (
    SELECT uid, min(reserved) AS reserved, min(running) AS running,
        greatest(max(reserved), max(running)) AS last_known, bool_or(ended) AS ended,
        max(finish) FILTER (WHERE NOT estimated) AS certain, max(finish) FILTER (WHERE estimated) AS guess,
        bool_or(start_clamped) AS start_clamped, bool_or(end_clamped) AS end_clamped, {changed} AS changed, {last}
    FROM ranked GROUP BY uid HAVING min(running) IS NOT NULL
),
made AS (
    SELECT summed.*, begun, early, finish
    FROM summed
    CROSS JOIN LATERAL (SELECT coalesce(running < reserved - {skew}, false) AS early) a
    CROSS JOIN LATERAL (SELECT CASE WHEN early THEN reserved ELSE running END AS begun) b
    CROSS JOIN LATERAL (SELECT CASE WHEN ended THEN coalesce(certain, guess, last_known) END AS finish) c
)
INSERT INTO billing_usagesegment AS held (uid, started, ended, flags, {taken})
SELECT made.uid, begun, CASE WHEN finish < begun THEN begun ELSE finish END, to_jsonb(array_remove(ARRAY[
        CASE WHEN start_clamped OR early THEN 'start-clamped' END,
        CASE WHEN end_clamped OR finish < begun THEN 'end-clamped' END,
        CASE WHEN ended AND certain IS NULL AND guess IS NULL THEN 'end-missing' END,
        CASE WHEN ended AND certain IS NULL AND guess IS NOT NULL THEN 'end-estimated' END,
        CASE WHEN changed THEN 'amounts-changed' END
    ], NULL)), {taken}
FROM made
ORDER BY made.uid
ON CONFLICT (uid) DO UPDATE SET {updated} WHERE ({held}) IS DISTINCT FROM ({excluded})
RETURNING consumer
""")

# Two sightings of one pod must be recorded one after the other; pods of different clouds are independent. Each
# statement sees everything committed before it began; all are sent in one message.
TURNS = sql.SQL("""
SELECT pg_advisory_xact_lock_shared(%(recording)s);
SELECT pg_advisory_xact_lock(%(turn)s, number)
    FROM (SELECT DISTINCT hashtext(cloud) AS number FROM unnest(%(clouds)s::text[]) cloud ORDER BY 1) numbers;
""")


def _names(names: Sequence[str], form: str = "{}") -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL(form).format(sql.Identifier(name)) for name in names)


WRITTEN = ("started", "ended", "flags", *TAKEN)
INGEST = STATEMENT.format(
    fields=_names(FIELDS),
    skew=sql.SQL("interval {}").format(sql.Literal(f"{int(MAX_SKEW.total_seconds())} seconds")),
    terminal=sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, sorted(TERMINAL)))),
    ranks=sql.SQL(" ").join(
        sql.SQL("WHEN {} THEN {}").format(sql.Literal(phase), sql.Literal(rank)) for phase, rank in PHASE_ORDER.items()
    ),
    changed=sql.SQL("({})").format(
        sql.SQL(" OR ").join(
            sql.SQL(
                "min({0}) FILTER (WHERE running IS NOT NULL) <> max({0}) FILTER (WHERE running IS NOT NULL)"
            ).format(amount)
            for amount in (*map(sql.Identifier, AMOUNTS), CLASS)
        )
    ),
    taken=_names(TAKEN),
    last=_names(TAKEN, "(array_agg({0}) FILTER (WHERE last))[1] AS {0}"),
    updated=_names(WRITTEN, "{0} = excluded.{0}"),
    held=_names(WRITTEN, "held.{}"),
    excluded=_names(WRITTEN, "excluded.{}"),
)


def bring(states: Sequence[PodState]) -> None:
    """Copies the sightings into this session's temporary table, without locking anything."""
    with connection.cursor() as cursor:
        cursor.execute(INCOMING)
        cursor.copy_expert(COPY, rows(states))


def add_up(seen_at: dt.datetime, clouds: Collection[str]) -> set[str]:
    """Adds the new sightings and updates the segments of their pods; returns the consumers of changed segments. It
    waits for other transactions that record for one of these clouds, and blocks new ones until this one ends."""
    values: dict[str, Any] = {
        "recording": Lock.METERING,
        "turn": Lock.METERING_CLOUD,
        "clouds": list(clouds),
        "seen_at": seen_at,
    }
    with connection.cursor() as cursor:
        cursor.execute(cast("Any", TURNS + INGEST), values)
        return {consumer for (consumer,) in cursor.fetchall()}


def rows(states: Sequence[PodState]) -> io.StringIO:
    """The input of COPY. Built by hand: `csv` takes three times as long, and this is a quarter of the total time."""
    return io.StringIO("".join([_row(state) for state in states]))


def _row(state: PodState) -> str:
    return (
        f"{_text(state.uid)}\t{state.digest}\t{_text(state.cloud)}\t{state.appcode_id}\t{_text(state.consumer)}\t"
        f"{_text(_json(dict(state.labels)))}\t{state.phase}\t{state.gpus}\t{_text(state.gpu_model)}\t{state.cpu_milli}\t"
        f"{state.memory_mb}\t{state.storage_mb}\t{state.scheduled_at or NULL}\t{state.started_at or NULL}\t"
        f"{state.finished_at or NULL}\t{state.estimated}\n"
    )


NULL = r"\N"
_ESCAPED = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def _text(text: str) -> str:
    return text if text.isprintable() and "\\" not in text else text.translate(_ESCAPED)


def _json(labels: dict[str, str | int]) -> str:
    try:
        return orjson.dumps(labels).decode()
    except TypeError:
        # An integer of more than 64 bits.
        return json.dumps(labels)
