"""The servers that the portal starts by itself: what they keep to themselves."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg2
import pytest

LOGS = Path(os.environ.get("PORTAL_TEST_FOLDER", "")) / "log"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("INSERT INTO refused VALUES (1, 'canary-in-a-statement')", "violates unique constraint"),
        ("INSERT INTO refused VALUES (-1, 'canary-in-a-row')", "violates check constraint"),
    ],
)
def test_what_the_database_refuses_is_not_written_down(statement, said):
    with psycopg2.connect(os.environ["DATABASE_URL"]) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE refused (id int PRIMARY KEY CHECK (id > 0), env text)")
        cursor.execute("INSERT INTO refused VALUES (1, '')")
        with pytest.raises(psycopg2.IntegrityError, match=said):
            cursor.execute(statement)
    connection.close()
    log = LOGS / "postgres.log"
    assert said in log.read_text()
    assert "canary" not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
