"""What only ever grows cannot be emptied at once: TRUNCATE passes triggers of rows, so each such table has one of its own."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction

# Bits of pg_trigger.tgtype: for each row, before, delete; truncate.
ROW, BEFORE, DELETE, TRUNCATE = 1, 2, 8, 32
KEPT = f"""
SELECT tgrelid::regclass::text FROM pg_trigger
WHERE NOT tgisinternal AND tgtype & {DELETE} > 0 AND (tgtype & {ROW + BEFORE} = {ROW + BEFORE} OR tgname = 'segments_gone')
"""


def kept() -> set[str]:
    """Tables of which the database lets rows go under conditions, or never."""
    with connection.cursor() as cursor:
        cursor.execute(KEPT)
        return {name for (name,) in cursor.fetchall()}


def truncate(*tables: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")


def test_no_table_that_keeps_its_rows_can_be_truncated(db):
    tables = kept()
    assert {"portal_event", "billing_ledgerentry", "billing_observation", "billing_creditnote"} <= tables
    for table in sorted(tables):
        with pytest.raises(IntegrityError, match="append-only"):
            truncate(table)
        # Nor by what refers to it or is referred to.
        with pytest.raises(IntegrityError, match="append-only"):
            truncate("portal_appcode", table)


def test_nor_by_way_of_another_table(db):
    with pytest.raises(IntegrityError, match="append-only"):
        truncate("portal_appcode")


@pytest.mark.django_db(transaction=True)
def test_tests_that_commit_begin_with_nothing(people):
    """And the database that they leave has its triggers again."""
    from django.core.management import call_command

    call_command("flush", interactive=False, verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM portal_event")
        assert cursor.fetchone() == (0,)
        cursor.execute("SHOW session_replication_role")
        assert cursor.fetchone() == ("origin",)
    with pytest.raises(IntegrityError, match="append-only"):
        truncate("portal_event")
