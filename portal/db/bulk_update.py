"""Updates many rows in one statement whose cost is that of its data.

Django's `bulk_update` builds a CASE expression for every value, which for a hundred rows of twenty columns takes longer
than the rest of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

from django.db import connection
from django.db.models import Field, Model


def update_rows(rows: Iterable[Model], names: Sequence[str]) -> None:
    """Writes the fields `names` of `rows`, all of one model. One query, or none without rows."""
    found = list(rows)
    if not found:
        return
    meta, quote = found[0]._meta, connection.ops.quote_name
    fields = [cast("Field[Any, Any]", field) for field in (meta.pk, *map(meta.get_field, names))]
    table, (key, *others) = quote(meta.db_table), [quote(str(field.column)) for field in fields]
    # Without casts PostgreSQL would take every value for text; casts with a length would truncate instead of failing.
    types = (str(field.rel_db_type(connection)).partition("(")[0] for field in fields)
    values = ", ".join([f"({', '.join(f'%s::{each}' for each in types)})"] * len(found))
    assigned = ", ".join(f"{name} = wanted.{name}" for name in others)
    # Only names of our own models are interpolated.
    statement = (
        f"UPDATE {table} SET {assigned} "  # noqa: S608
        f"FROM (VALUES {values}) AS wanted ({', '.join([key, *others])}) WHERE {table}.{key} = wanted.{key}"
    )
    data = ([field.get_db_prep_save(getattr(each, field.attname), connection) for field in fields] for each in found)
    with connection.cursor() as cursor:
        cursor.execute(statement, list(chain.from_iterable(data)))
