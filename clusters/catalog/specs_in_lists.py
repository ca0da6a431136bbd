"""Specs in lists. The texts of `code.files`, up to 0.5 MB each, stay in the database, and `files` is null instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db.models import F, Func, JSONField, Model, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.pagination import page_together

Row = TypeVar("Row", bound=Model)
SHORT = "jsonb_set(%(expressions)s, '{code,files}', 'null', false)"


def page_of_specs(
    request: Request, rows: QuerySet[Row], *fields: str, order: str, render: Callable[[Sequence[Row]], list[Any]]
) -> Response:
    """`page_together` for rows whose `fields` (`spec`, `current_run__spec`) are such specs. One query."""
    short = {f"short{n}": Func(F(field), template=SHORT, output_field=JSONField()) for n, field in enumerate(fields)}

    def rendered(found: Sequence[Row]) -> list[Any]:
        for row in found:
            for n, field in enumerate(fields):
                way, _, name = field.rpartition("__")
                if (owner := getattr(row, way) if way else row) is not None:
                    setattr(owner, name, getattr(row, f"short{n}"))
        return render(found)

    return page_together(request, rows.defer(*fields).annotate(**short), order=order, render=rendered)
