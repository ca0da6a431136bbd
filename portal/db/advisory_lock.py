"""The advisory locks of PostgreSQL that the portal takes, so that something is done by one process at a time.

A lock is one number, or a number and the name of a part of it: these two never meet. `advisory_lock` belongs to the session of
the thread, outside any transaction, and goes with its connection; `lock_until_commit` belongs to the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum

from django.db import InterfaceError, OperationalError, connection
from psycopg2.errors import LockNotAvailable


class Lock(IntEnum):
    """The numbers stand in billing/sql/*.sql, too. METERING before POSTING where both are taken."""

    # Recording of sightings holds it shared, changes of what was recorded hold it alone.
    METERING = 1
    # A part for each cloud, whose pods one transaction at a time adds up.
    METERING_CLOUD = 2
    # Portions of the ledger hold it shared; triggers on prices, discounts and owners, and the end of a month hold it alone.
    POSTING = 3
    # A part for each shard of appcodes.
    POSTING_SHARD = 4
    # Moves of appcodes and of nodes wait for each other, so that each sees the other's.
    OWNERS = 5
    # The sums of a day of all clouds' measurements.
    GPU_USE = 6
    # A part for each cloud: the process that follows it.
    FOLLOWER = 7
    # A part for each of the loops that copy logs.
    LOG_COPIES = 8
    # The logs of one deleted cluster at a time.
    PURGE = 9
    WEBHOOKS = 10
    # A part for each object storage: changes of it and of its keys.
    STORAGE = 11
    # One sweep of the trash at a time; a part for each removal that is carried on.
    TRASH = 12
    # A part for each datastore: who changes files holds it shared, who makes a version of them holds it alone.
    FILES = 13
    # One sweep of the rules of datastores at a time.
    RULES = 14
    # A part for each appcode: what its runs wrote is listed.
    OUTPUTS = 15
    # A part for each sweep: its loop.
    SWEEP = 16
    # A part for each appcode: what is done after its runs.
    HOOKS = 17
    # A part for each appcode: the numbers of the trials of its sweeps are read.
    TRIALS = 18
    # A part for each appcode: whether stages of its pipelines would do again what they have done.
    PIPELINES = 19
    # A part for each appcode: the files of versions of its models are read.
    MODELS = 20
    # A part for each appcode: what crashes of its runs have cost is counted.
    CRASHES = 21
    # The process whose loop looks after services; a part for what it reads once a minute.
    SERVICES = 22
    # One sweep of the retention rules of models at a time.
    MODEL_RULES = 23


@contextmanager
def advisory_lock(lock: Lock, part: str = "", *, seconds: float = 0, shared: bool = False) -> Iterator[bool]:
    """Whether this session has the lock for the block: False when another still has it after `seconds`. Not inside a
    transaction, unless `seconds` is 0."""
    kind = "_shared" if shared else ""
    with connection.cursor() as cursor:
        if not seconds:
            cursor.execute(*_calling(f"pg_try_advisory_lock{kind}", lock, part))
            held = bool(cursor.fetchone()[0])
        else:
            statement, keys = _calling(f"pg_advisory_lock{kind}", lock, part)
            try:
                # One message is one transaction, with which the limit ends; the lock stays.
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
            # With a lost connection the lock has gone, too.
            with suppress(OperationalError, InterfaceError), connection.cursor() as cursor:
                cursor.execute(*_calling(f"pg_advisory_unlock{kind}", lock, part))


def lock_until_commit(lock: Lock, part: str = "", *, shared: bool = False) -> None:
    """Waits for the lock and holds it until the transaction ends: the next statement (READ COMMITTED) sees what those who held
    it have written."""
    with connection.cursor() as cursor:
        cursor.execute(*_calling(f"pg_advisory_xact_lock{'_shared' if shared else ''}", lock, part))


def _calling(function: str, lock: Lock, part: str) -> tuple[str, list[int | str]]:
    return (f"SELECT {function}(%s, hashtext(%s))", [lock, part]) if part else (f"SELECT {function}(%s)", [lock])
