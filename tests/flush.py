"""Empties the database after tests that commit, by deleting rows from the tables that have any.

Django's TRUNCATE creates a new file for every table and index, and all permissions are created again afterwards; that was most
of the duration of such a test. The product's triggers forbid both TRUNCATE and DELETE, so they are disabled for that
one transaction. Only a PostgreSQL superuser can do that; the tests' own server has no other user.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.management.commands import flush
from django.db.backends.postgresql.operations import DatabaseOperations

# Their rows follow from the code, and no test writes them.
KEPT = {"auth_permission", "django_content_type"}
DELETE = """
SET LOCAL session_replication_role = replica;
-- Who still writes ends first, as before a TRUNCATE.
LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE;
DO $$
DECLARE
    name text;
    found boolean;
BEGIN
    FOREACH name IN ARRAY ARRAY[{names}] LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %I)', name) INTO found;
        IF found THEN EXECUTE format('DELETE FROM %I', name); END IF;
    END LOOP;
END $$;
"""


def _sql_flush(self: DatabaseOperations, style: Any, tables: Iterable[str], **_: object) -> list[str]:
    names = sorted({*tables} - KEPT)
    return [DELETE.format(tables=", ".join(names), names=", ".join(f"'{name}'" for name in names))]


def allow() -> None:
    DatabaseOperations.sql_flush = _sql_flush
    flush.emit_post_migrate_signal = _keep_own


def _keep_own(*_: object, **__: object) -> None:
    """Of the rows that `migrate` creates, only this machine's cloud and the serving runtimes were deleted; restores them."""
    from clusters.catalog.actions import keep_runtimes
    from clusters.clouds.registry import keep_own

    keep_own()
    keep_runtimes()
