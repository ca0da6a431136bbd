"""Refuses unknown query parameters of REST, because ignoring them would silently not do what was asked.

The API's own description is the only list of parameters. A permission class checks it for every operation, after
authentication and before any lookup.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from portal.errors import FieldError, Invalid

if TYPE_CHECKING:
    from rest_framework.views import APIView  # imports this module itself, through the settings

# Dates, numbers and choices cannot be empty; search texts and flags may.
MAY_BE_EMPTY = (str, bool)


class KnownParameters(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        """Raises Invalid at each parameter that is undocumented, or empty without being allowed to."""
        method = "get" if request.method == "HEAD" else str(request.method).lower()
        operations: Any = type(view)
        known = described(operations, method)
        if known is None:
            return True
        errors = [
            FieldError((name,), problem)
            for name, value in request.query_params.items()
            if (problem := _problem(known, name, str(value)))
        ]
        if errors:
            raise Invalid(errors)
        return True


@cache
def described(view: Any, method: str) -> Mapping[str, OpenApiParameter] | None:
    """The query parameters of an operation by name; None if it is not part of the description. `view` is a class."""
    schema_class = getattr(getattr(view, method, None), "kwargs", {}).get("schema")
    if schema_class is None:
        return None
    asked: Any = view()
    asked.request, asked.kwargs = None, {}
    schema = schema_class()
    schema.view, schema.method = asked, method.upper()
    found = schema.get_override_parameters()
    return {each.name: each for each in found if each.location == OpenApiParameter.QUERY}


def _problem(known: Mapping[str, OpenApiParameter], name: str, value: str) -> str:
    if name not in known:
        names = ", ".join(sorted(known))
        return (
            f"There is no such parameter here; there are: {names}."
            if names
            else "Nothing can be asked of this address."
        )
    if not value and (known[name].enum or known[name].type not in MAY_BE_EMPTY):
        return "Leave it out, or say what it should be."
    return ""
