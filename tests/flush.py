"""How tests that commit leave an empty database: by TRUNCATE, which triggers of the product refuse without exception.

So triggers rest for that one transaction, which only a superuser of PostgreSQL can ask for; the tests' own server knows no other.
"""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql.operations import DatabaseOperations

_execute = DatabaseOperations.execute_sql_flush


def _flush(self: DatabaseOperations, sql_list: list[str]) -> Any:
    return _execute(self, ["SET LOCAL session_replication_role = replica;", *sql_list])


def allow() -> None:
    DatabaseOperations.execute_sql_flush = _flush
