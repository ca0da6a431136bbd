"""Keyset pagination: the last page is as fast as the first.

A page starts after the last seen value of a unique column instead of at an offset, so rows that are inserted or deleted
meanwhile neither repeat nor hide others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet

Row = TypeVar("Row", bound=Model)
Thing = TypeVar("Thing")


def page(rows: QuerySet[Row], order: str, cursor: str, size: int) -> tuple[Sequence[Row], str]:
    """At most `size` rows after `cursor` ("" for the first page), and the next cursor ("" at the end). One query. `order` is a
    unique column like "code", or "-id" for descending. Raises ValidationError if the cursor is not a value of it."""
    column, descending = order.removeprefix("-"), order.startswith("-")
    if cursor:
        after = position(rows.model._meta.get_field(column), cursor)
        rows = rows.filter(**{f"{column}__{'lt' if descending else 'gt'}": after})
    return cut(list(rows.order_by(order)[: size + 1]), size, lambda row: getattr(row, column))


def page_by(rows: QuerySet[Row], order: Sequence[str], cursor: str, size: int) -> tuple[Sequence[Row], str]:
    """The same by several columns or annotations, all non-null and the last one unique. One query. The cursor has one
    value for each. Raises ValidationError for any other cursor."""
    names = [each.removeprefix("-") for each in order]
    if cursor:
        said = cursor.split("~")
        if len(said) != len(order):
            raise ValidationError("This is not a cursor.")
        after, equal = Q(), Q()
        for column, name, text in zip(order, names, said, strict=True):
            annotation = rows.query.annotations.get(name)
            field = annotation.output_field if annotation else rows.model._meta.get_field(name)
            value = position(field, text)
            after |= equal & Q(**{f"{name}__{'lt' if column.startswith('-') else 'gt'}": value})
            equal &= Q(**{name: value})
        rows = rows.filter(after)
    found = list(rows.order_by(*order)[: size + 1])
    return cut(found, size, lambda row: "~".join(str(getattr(row, name)) for name in names))


def position(field: Any, cursor: str) -> Any:
    """The field's value in a cursor. Raises ValidationError if the field or PostgreSQL cannot hold it."""
    value = field.to_python(cursor)
    is_too_long = isinstance(value, Decimal) and (len(cursor) > 100 or abs(value.adjusted()) > 100)
    if "\0" in cursor or is_too_long or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise ValidationError("This is not a cursor.")
    return value


def cut(found: Sequence[Thing], size: int, position_of: Callable[[Thing], object]) -> tuple[Sequence[Thing], str]:
    """The page and the next cursor, from up to `size` + 1 rows."""
    return found[:size], str(position_of(found[size - 1])) if len(found) > size else ""
