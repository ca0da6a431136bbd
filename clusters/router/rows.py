"""SQL of the router on the rows of clusters/services/models.py. Without Django, so that a router starts fast and stays small.

Each function runs one statement, so it sees one snapshot: a route number and the replicas that belong to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Collection, Mapping
from typing import Any

import psycopg2
import psycopg2.extensions

from clusters.router.table import Service

ROUTES, WANTED = "services", "services_wanted"
# Seconds without a report after which a router counts as dead, and its share of token limits goes to the others.
DEAD = 15
Connection = psycopg2.extensions.connection

SERVICES = """
    SELECT s.id, CASE WHEN s.route IS DISTINCT FROM known.route THEN json_build_object(
        'id', s.id, 'label', s.label, 'route', s.route, 'running', s.desired = 'running',
        'requestSeconds', s.spec -> 'requestSeconds', 'target', s.spec -> 'replicas' -> 'target',
        'revisions', (
            SELECT json_agg(json_build_object(
                'id', r.id, 'number', r.number, 'weight', r.weight, 'mirrored', r.mirrored,
                'replicas', (
                    SELECT json_agg(json_build_object('id', p.id, 'address', p.address, 'proof', c.proof))
                    FROM clusters_replica p LEFT JOIN clusters_cluster c ON c.id = p.cluster_id
                    WHERE p.revision_id = r.id AND p.service_id = s.id AND p.state = 'serving' AND p.address <> ''
                )
            ) ORDER BY r.id)
            FROM clusters_revision r WHERE r.service_id = s.id AND (r.weight > 0 OR r.mirrored)
        ),
        'tokens', (
            SELECT json_agg(json_build_object(
                'digest', t.digest, 'id', t.id, 'name', t.name, 'perSecond', t.per_second, 'atOnce', t.at_once,
                'until', extract(epoch FROM t.expires_at)
            )) FROM clusters_servicetoken t WHERE t.service_id = s.id
        )
    ) END
    FROM clusters_service s
    LEFT JOIN unnest(%(ids)s::bigint[], %(routes)s::bigint[]) AS known (id, route) ON known.id = s.id
    WHERE s.deleted_at IS NULL
"""
REPORT = """
    INSERT INTO clusters_router (name, seen_at, services) VALUES (%(name)s, clock_timestamp(), %(services)s)
    ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, services = excluded.services
    RETURNING (
        SELECT count(*) FROM clusters_router
        WHERE seen_at > clock_timestamp() - make_interval(secs => %(dead)s) AND name <> %(name)s
    )
"""
GOODBYE = "DELETE FROM clusters_router WHERE name = %(name)s"
# Deletes rows of earlier routers at this host and port, and all rows not updated for a day.
FORGET = """
    DELETE FROM clusters_router
    WHERE (starts_with(name, %(place)s) AND name <> %(name)s) OR seen_at < clock_timestamp() - interval '1 day'
"""
# A minute's counters never decrease, whatever clocks do. The join drops minutes of deleted revisions.
MINUTES = """
    INSERT INTO clusters_serviceminute AS old (
        service_id, revision_id, router, minute, mirrored, requests, errors, refused, rows, latency, busy_ms, bytes_in, bytes_out
    )
    SELECT x.service, x.revision, %(name)s, x.minute, x.mirrored, x.requests, x.errors, x.refused, x.rows, x.latency,
           x.busy_ms, x.bytes_in, x.bytes_out
    FROM jsonb_to_recordset(%(rows)s) AS x (
        service bigint, revision bigint, minute timestamptz, mirrored boolean, requests int, errors int, refused int,
        rows bigint, latency int[], busy_ms bigint, bytes_in bigint, bytes_out bigint
    )
    JOIN clusters_revision r ON r.id = x.revision AND r.service_id = x.service
    ON CONFLICT (service_id, minute, revision_id, router, mirrored) DO UPDATE SET
        requests = excluded.requests, errors = excluded.errors, refused = excluded.refused, rows = excluded.rows,
        latency = excluded.latency, busy_ms = excluded.busy_ms, bytes_in = excluded.bytes_in, bytes_out = excluded.bytes_out
    WHERE old.requests <= excluded.requests
"""
USED = "UPDATE clusters_servicetoken SET used_at = clock_timestamp() WHERE id = ANY(%(ids)s)"


def connect(database: str) -> Connection:
    """Connects with TCP keepalives: a server whose machine vanished is noticed within 30 s."""
    connection = psycopg2.connect(
        database, connect_timeout=3, application_name="router", options="-c statement_timeout=10000", keepalives_idle=10,
        keepalives_interval=5, keepalives_count=4, tcp_user_timeout=30_000,
    )  # fmt: skip
    connection.autocommit = True
    return connection


def hang_up(connection: Connection | None) -> None:
    """Shuts the socket down, so that a query waiting in another thread fails."""
    if connection is not None and not connection.closed:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


def read(connection: Connection, known: Mapping[int, int]) -> tuple[list[Service], set[int]]:
    """Returns the services whose route differs from `known`, and the ids of all services."""
    with connection.cursor() as cursor:
        cursor.execute(SERVICES, {"ids": [*known], "routes": [*known.values()]})
        rows = cursor.fetchall()
    return [Service.of(said) for _, said in rows if said is not None], {number for number, _ in rows}


def report(connection: Connection, name: str, services: Mapping[str, Any]) -> int:
    """Writes this router's row and returns the number of other living routers."""
    with connection.cursor() as cursor:
        cursor.execute(REPORT, {"name": name, "services": json.dumps(services), "dead": DEAD})
        row = cursor.fetchone()
        return int(row[0]) if row else 0


def write(connection: Connection, name: str, minutes: Collection[Mapping[str, Any]]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(MINUTES, {"name": name, "rows": json.dumps([*minutes])})


def used(connection: Connection, tokens: Collection[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(USED, {"ids": [*tokens]})


def want(connection: Connection, services: Collection[int]) -> None:
    """Notifies the autoscaler that these services need replicas."""
    with connection.cursor() as cursor:
        for each in services:
            cursor.execute("SELECT pg_notify(%s, %s)", (WANTED, str(each)))


def forget(connection: Connection, place: str, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FORGET, {"place": place, "name": name})


def goodbye(connection: Connection, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(GOODBYE, {"name": name})
