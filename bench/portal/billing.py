"""Metering and money: how fast pod states are recorded, priced, posted, read and invoiced, on a separate durable PostgreSQL.

Runs in a separate process (`python -m bench.portal.billing FOLDER`), because nothing else may post or record meanwhile. Two
clouds report at the same time, each in its own thread, as in the controller. Floors: COPY of the same rows into a table
with the same indexes, and INSERT … SELECT of the same lines into a table with the ledger's indexes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import random
import resource
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import alone
from bench.results import Result, quantile
from bench.sizes import size

if TYPE_CHECKING:
    from billing.metering.segments import PodState

APPCODES, LINES = size(500, 5), size(10, 5)
OBSERVATIONS, BATCH, CLOUDS = size(200_000, 400), 2000, 2
# Limit as a multiple of the floor, the time of a COPY of the same rows: 25,000 a second if the floor is 4.3 s.
TIMES_COPY = 2.0
DUPLICATES, LATE = 0.05, 0.05
SEGMENTS, TASKS = size(1_000_000, 500), 5
READS = size(20, 1)
YEAR = dt.datetime(2025, 11, 1, tzinfo=dt.UTC)
NOW = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


def billing(folder: Path) -> list[Result]:
    """metering, rating, posting, dashboards and invoices of 1,000,000 segments"""
    return alone.measured("bench.portal.billing", folder / "billing")


PARTS = (billing,)


def main(folder: Path) -> None:
    with alone.database(folder):
        found: list[Result] = []
        codes = _tenants()
        for measure in (_ingest, _rate_and_post, _read, _close):
            found += measure(codes)
    alone.tell(found)


def _tenants() -> list[int]:
    from django.db import transaction

    from billing.models import Price
    from portal.models import Appcode, Membership, OrgNode, User

    with transaction.atomic():
        owner = User.objects.create_user("bench", "bench@example.com")
        lines = OrgNode.objects.bulk_create(
            OrgNode(path=f"bench.line-{n}", title=f"Line {n}", namespace=f"line-{n}") for n in range(LINES)
        )
        codes = Appcode.objects.bulk_create(
            Appcode(code=f"bench-{n:03}", name="-", org_node=lines[n % LINES], emails=["b@example.com"], state="active")
            for n in range(APPCODES)
        )
        Membership.objects.bulk_create(Membership(user=owner, appcode=code, role="owner") for code in codes)
        for sku, per_hour in (("gpu", "1.2"), ("gpu:A100", "3.5"), ("cpu", "0.03"), ("memory", "0.004")):
            Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=dt.datetime(2024, 1, 1, tzinfo=dt.UTC))
    return [code.pk for code in codes]


def _ingest(codes: Sequence[int]) -> list[Result]:
    """Measures the way from states in memory to committed observations and segments."""
    from django.core.management import call_command
    from django.db import connection, connections, transaction

    from billing.metering import record
    from billing.models import Observation
    from clusters.runs.status.follower import tune

    tune()
    shares = [
        _told(random.Random(n), f"kubernetes-{n}", OBSERVATIONS // CLOUDS, codes)  # noqa: S311  the same every time
        for n in range(CLOUDS)
    ]

    def cloud(states: Sequence[PodState]) -> None:
        for n in range(0, len(states), BATCH):
            with transaction.atomic():
                record.record(states[n : n + BATCH])
        connections.close_all()

    threads = [threading.Thread(target=cloud, args=(share,)) for share in shares]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    kept = Observation.objects.count()
    expected = len({(state.uid, state.digest) for share in shares for state in share})
    if kept != expected:
        raise RuntimeError(f"{kept} observations were kept instead of {expected}")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE floor (LIKE billing_observation INCLUDING ALL)")
        cursor.execute("ALTER TABLE floor ALTER seen_at SET DEFAULT now()")
        floor = _timed(lambda: _copied(shares))
        cursor.execute("DROP TABLE floor")
        cursor.execute("VACUUM ANALYZE")
    proof = _timed(lambda: call_command("replay", "--verify", stdout=io.StringIO()))
    told = sum(map(len, shares))
    return [
        Result(
            f"{told:,} observations durable, 5 % twice and 5 % late ({told / seconds:,.0f} a second)", seconds, "s",
            floor=floor, times=TIMES_COPY,
        ),
        Result(f"replay --verify of {expected:,} observations", proof, "s"),
    ]  # fmt: skip


def _copied(shares: Sequence[Sequence[PodState]]) -> None:
    from django.db import connection, transaction

    from billing.metering import ingest

    once = list({(state.uid, state.digest): state for share in shares for state in share}.values())
    statement = ingest.COPY.replace("billing_incoming", "floor")
    for n in range(0, len(once), BATCH):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.copy_expert(statement, ingest.rows(once[n : n + BATCH]))


def _told(chance: random.Random, cloud: str, count: int, codes: Sequence[int]) -> list[PodState]:
    """A cloud's reports of pods, six per run: reserved, running, ended. Some are duplicated, some are late."""
    from billing.metering.segments import PodState

    told: list[tuple[float, PodState]] = []
    for pod in range(int(count * (1 - DUPLICATES)) // 4):
        begin = YEAR + dt.timedelta(seconds=pod / 50)
        run = pod // 6
        labels = {
            "cluster": f"train-{run % 10_000}", "run": str(run), "role": "worker", "index": str(pod % 6), "attempt": "0",
            "flavor": "middle-1-gpu", "framework": "tensorflow", "user": f"user-{run % 300}",
        }  # fmt: skip
        pending = PodState(
            str(uuid.UUID(int=chance.getrandbits(128))), cloud, codes[run % len(codes)], f"run {run}", labels, "Pending",
            1, "A100", 4000, 16384,
        )  # fmt: skip
        reserved = dataclasses.replace(pending, scheduled_at=begin)
        running = dataclasses.replace(reserved, phase="Running", started_at=begin + dt.timedelta(seconds=2.5))
        length = chance.uniform(20, 600)
        ended = dataclasses.replace(running, phase="Succeeded", finished_at=begin + dt.timedelta(seconds=length))
        moments = (0, 1, 3, length)
        told += zip([pod / 50 + moment for moment in moments], (pending, reserved, running, ended), strict=True)
    told += [(at + 60, state) for at, state in chance.sample(told, int(len(told) * DUPLICATES))]
    late = [(at + chance.uniform(0, 300) if chance.random() < LATE else at, state) for at, state in told]
    return [state for _, state in sorted(late, key=lambda pair: pair[0])]


SEED = """
INSERT INTO billing_usagesegment (uid, appcode_id, consumer, labels, gpus, gpu_model, cpu_milli, memory_mb, started, ended, flags)
SELECT gen_random_uuid()::text, code.id, 'run ' || run, jsonb_build_object(
        'cluster', 'train-' || run %% 20, 'run', run::text, 'role', CASE task WHEN 0 THEN 'ps' ELSE 'worker' END,
        'index', task::text, 'attempt', '0', 'flavor', 'middle-1-gpu', 'user', 'user-' || code.n + run %% 3,
        'framework', CASE run %% 3 WHEN 0 THEN 'pytorch' ELSE 'tensorflow' END),
    (task > 0)::integer, CASE WHEN task > 0 THEN (ARRAY['A100', 'H100', 'T4'])[run %% 3 + 1] ELSE '' END, 4000, 16384, begun,
    begun + (60 + power(random(), 3) * 40000)::integer * interval '1 second', '[]'
FROM (
    SELECT run, task, date_trunc('second', timestamptz %s + run * (interval '364 days' / %s)) AS begun
    FROM generate_series(1, %s) run, generate_series(0, %s) task
) pod
JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM portal_appcode) code ON code.n = run %% %s
"""


def _rate_and_post(codes: Sequence[int]) -> list[Result]:
    """A year of segments: measures rating all of them, and posting their ledger lines with the daily and monthly sums."""
    from django.db import connection

    from billing.ledger import posting
    from billing.models import LedgerEntry
    from billing.prices import split
    from billing.prices.book import price_book

    posting.post(NOW)
    before = LedgerEntry.objects.count()
    with connection.cursor() as cursor:
        cursor.execute("SELECT setseed(0.5)")
        runs = SEGMENTS // TASKS
        cursor.execute(SEED, [YEAR, runs, runs, TASKS - 1, len(codes)])
        cursor.execute("VACUUM ANALYZE")
    window = (YEAR - dt.timedelta(days=1), NOW + dt.timedelta(days=31))
    peak = _peak()
    rating = _timed(lambda: split.usage(price_book(), by=["appcode"], windows=[window], now=window[1]))
    posted: list[posting.Posted] = []
    seconds = _timed(lambda: posted.append(posting.post(window[1])))
    if posted[0].segments != SEGMENTS:
        raise RuntimeError(f"{posted[0].segments} segments were posted instead of {SEGMENTS}")
    grown = _peak() - peak
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE floor (LIKE billing_ledgerentry INCLUDING ALL)")
        floor = _timed(
            lambda: cursor.execute("INSERT INTO floor SELECT * FROM billing_ledgerentry WHERE id > %s", [before])
        )
        cursor.execute("DROP TABLE floor")
        cursor.execute("VACUUM ANALYZE")
    return [
        Result(f"Rating of {SEGMENTS:,} segments", rating, "s", 10),
        Result(f"Rating and posting of {SEGMENTS:,} segments as {posted[0].added:,} lines", seconds, "s", None, floor),
        Result("Memory that this took in the process that posts", grown, "MB", 64),
    ]


def _read(codes: Sequence[int]) -> list[Result]:
    """Measures the dashboard's sums over twelve months, for each grouping that it offers."""
    from billing.ledger.models import GROUPS
    from billing.periods import Range
    from billing.sums import over_time

    year = Range(YEAR.date(), NOW.date(), "month")
    times = [
        _timed(lambda group=group: over_time.read(year, group, NOW, also=GROUPS))  # type: ignore[misc]
        for group in GROUPS
        for _ in range(READS)
    ]
    return [
        Result(f"Dashboard over 12 months of {SEGMENTS:,} segments: p99", quantile(times, 0.99) * 1000, "ms", 300),
        Result(f"Dashboard over 12 months of {SEGMENTS:,} segments: median", quantile(times, 0.5) * 1000, "ms"),
    ]


def _close(codes: Sequence[int]) -> list[Result]:
    """Closes twelve months one after the other. Their ledger lines were posted in one go: each closing reads all of them."""
    from billing.invoices import closing as invoices_closing
    from billing.models import Closing, Invoice

    invoices_closing.plan(NOW)
    times = []
    for closing in Closing.objects.order_by("month")[:12]:
        times.append(_timed(lambda closing=closing: invoices_closing.close(closing, NOW)))  # type: ignore[misc]
        made = Invoice.objects.filter(month=closing.month).count()
        if made != len(codes):
            raise RuntimeError(f"{closing} has {made} invoices instead of {len(codes)}")
    return [Result(f"Closing a month of {len(codes)} appcodes: the slowest of twelve", max(times), "s", 30)]


def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _peak() -> float:
    """Peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]))
