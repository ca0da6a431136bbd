"""Append-only tables refuse TRUNCATE, which bypasses row triggers, so each has a statement trigger for it."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction

# Bits of pg_trigger.tgtype: FOR EACH ROW, BEFORE, DELETE, TRUNCATE.
ROW, BEFORE, DELETE, TRUNCATE = 1, 2, 8, 32
KEPT = f"""
SELECT tgrelid::regclass::text FROM pg_trigger
WHERE NOT tgisinternal AND tgtype & {DELETE} > 0 AND (tgtype & {ROW + BEFORE} = {ROW + BEFORE} OR tgname = 'segments_gone')
"""


def kept() -> set[str]:
    """Returns the tables whose triggers restrict or refuse deletes."""
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
        # A TRUNCATE of it together with a related table is refused too.
        with pytest.raises(IntegrityError, match="append-only"):
            truncate("portal_appcode", table)


def test_nor_by_way_of_another_table(db):
    with pytest.raises(IntegrityError, match="append-only"):
        truncate("portal_appcode")


@pytest.mark.django_db(transaction=True)
def test_tests_that_commit_begin_with_nothing(people):
    """The flush after such a test leaves an empty database with its triggers enabled."""
    from django.core.management import call_command

    call_command("flush", interactive=False, verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM portal_event")
        assert cursor.fetchone() == (0,)
        cursor.execute("SHOW session_replication_role")
        assert cursor.fetchone() == ("origin",)
    with pytest.raises(IntegrityError, match="append-only"):
        truncate("portal_event")
