"""How tests that commit leave an empty database: rows are deleted where there are some.

TRUNCATE, which Django asks for, makes a new file for every table and index, and all permissions are made anew afterwards: that
was most of what such a test took. Triggers of the product refuse both without exception, so they rest for that one transaction,
which only a superuser of PostgreSQL can ask for; the tests' own server knows no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.management.commands import flush
from django.db.backends.postgresql.operations import DatabaseOperations

# They follow from the code, and no test writes them.
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
    """Of what each `migrate` makes, only this machine's row and the serving runtimes were deleted."""
    from clusters.clouds.registry import keep_own
    from clusters.spec.offers import keep_runtimes

    keep_own()
    keep_runtimes()
