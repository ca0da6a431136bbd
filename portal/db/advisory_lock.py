"""The PostgreSQL advisory locks of the portal: each lets one process at a time do something.

A lock is a number, or a number and the name of a part; these two kinds never conflict. `advisory_lock` belongs to the thread's
database session, outside any transaction, and ends with the connection; `lock_until_commit` belongs to the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum

from django.db import InterfaceError, OperationalError, connection
from psycopg2.errors import LockNotAvailable


class Lock(IntEnum):
    """The numbers are also used in billing/sql/*.sql, and by programs of two releases side by side: they keep their meaning.
    Take METERING before POSTING."""

    # Shared by recordings of sightings, exclusive for changes of recorded data.
    METERING = 1
    # By cloud: one transaction at a time sums up a cloud's pods.
    METERING_CLOUD = 2
    # Shared by portions of posting; exclusive for triggers on prices, discounts and owners, and for closing a month.
    POSTING = 3
    # By shard of appcodes.
    POSTING_SHARD = 4
    # Moves of appcodes and of nodes, so that each sees the other.
    OWNERS = 5
    # The sums by day of all clouds' measurements.
    GPU_USE = 6
    # By cloud: the process that follows it.
    FOLLOWER = 7
    # By loop that copies logs.
    LOG_COPIES = 8
    # Purges the logs of one deleted cluster at a time.
    PURGE = 9
    WEBHOOKS = 10
    # By object storage: changes of it and of its keys.
    STORAGE = 11
    # One sweep of the trash at a time; by removal that is being continued.
    TRASH = 12
    # By datastore: shared by changes of files, exclusive for making a version of them.
    FILES = 13
    # One sweep of the rules of datastores at a time.
    RULES = 14
    # By appcode: listing what its runs wrote.
    OUTPUTS = 15
    # By sweep: its loop.
    SWEEP = 16
    # By appcode: hooks after its runs.
    HOOKS = 17
    # By appcode: reading the metrics of its sweeps' trials.
    TRIALS = 18
    # By appcode: deciding whether stages of its pipelines can be reused.
    PIPELINES = 19
    # By appcode: reading the files of its model versions.
    MODELS = 20
    # By appcode: computing the cost of its runs' crashes.
    CRASHES = 21
    # The process whose loop supervises services; with a part: what that reads once a minute.
    SERVICES = 22
    # One sweep of the retention rules of models at a time.
    MODEL_RULES = 23
    # By cloud: giving runs their places.
    PLACES = 24
    # By cloud: one worker at a time makes passes over the runs that wait for places. Before PLACES.
    PASS = 25
    # By cloud: computing when runs that wait will start.
    FORECASTS = 26
    # By appcode: listing what its running runs have saved.
    CHECKPOINTS = 27
    # By appcode: reading the numbers of its runs.
    NUMBERS = 28


@contextmanager
def advisory_lock(lock: Lock, part: str = "", *, seconds: float = 0, shared: bool = False) -> Iterator[bool]:
    """Yields True if this session holds the lock for the block, False if another one still holds it after `seconds`.
    Use it inside a transaction only with `seconds` 0."""
    kind = "_shared" if shared else ""
    with connection.cursor() as cursor:
        if not seconds:
            cursor.execute(*_calling(f"pg_try_advisory_lock{kind}", lock, part))
            held = bool(cursor.fetchone()[0])
        else:
            statement, keys = _calling(f"pg_advisory_lock{kind}", lock, part)
            try:
                # A multi-statement message is one transaction: the timeout ends with it, the session lock stays.
                limit = "SELECT set_config('lock_timeout', %s, true)"
                cursor.execute(f"{limit}; {statement}", [f"{seconds * 1000:.0f}ms", *keys])
                held = True
            except OperationalError as error:
                if not isinstance(error.__cause__, LockNotAvailable):
                    raise
                held = False
    try:
        yield held
    finally:
        if held and connection.connection is not None:
            # If the connection is lost, the lock is released already.
            with suppress(OperationalError, InterfaceError), connection.cursor() as cursor:
                cursor.execute(*_calling(f"pg_advisory_unlock{kind}", lock, part))


def lock_until_commit(lock: Lock, part: str = "", *, shared: bool = False) -> None:
    """Waits for the lock and holds it until the transaction ends. The next statement (READ COMMITTED) sees what earlier
    holders wrote."""
    with connection.cursor() as cursor:
        cursor.execute(*_calling(f"pg_advisory_xact_lock{'_shared' if shared else ''}", lock, part))


def _calling(function: str, lock: Lock, part: str) -> tuple[str, list[int | str]]:
    return (f"SELECT {function}(%s, hashtext(%s))", [lock, part]) if part else (f"SELECT {function}(%s)", [lock])
