"""Operations of REST: `operation` turns a method of a view into one, with its description and its response.

The docstring is what users read in the API's description: its first paragraph is the summary, the rest the description.
A description that needs values (an f-string) is passed as `description` instead. That of a `PUT` also says which fields keep
their value (`portal/manifests/kept.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.errors import Invalid
from portal.manifests import Manifest, kept, public_path

P = ParamSpec("P")
Method = TypeVar("Method", bound=Callable[..., Any])
Document = dict[str, Any]
Handler = Callable[Concatenate[Any, Request, P], HttpResponseBase]


def operation(
    operation_id: str, responses: Any, *, request: Any = None, **schema: Any
) -> Callable[[Callable[Concatenate[Any, Request, P], object]], Handler[P]]:
    """Describes a method by `extend_schema`, which takes `schema` too. What the method returns is the body of the
    response, with the first status of `responses` (200 if that is no dictionary), unless it is a response itself. Errors that
    it raises name fields of `request` by their JSON keys."""
    sent = request
    code = next(iter(responses)) if isinstance(responses, dict) else status.HTTP_200_OK

    def decorate(method: Callable[Concatenate[Any, Request, P], object]) -> Handler[P]:
        @wraps(method)
        def handler(view: Any, request: Request, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            try:
                found = method(view, request, *args, **kwargs)
            except Invalid as invalid:
                errors = [replace(each, path=public_path(sent, each.path)) for each in invalid.errors]
                raise Invalid(errors) from invalid
            return found if isinstance(found, HttpResponseBase) else Response(found, status=code)

        summary, _, description = (method.__doc__ or "").partition("\n\n")
        if method.__name__ == "put" and isinstance(request, type) and issubclass(request, Manifest):
            description += f" {kept.described(request)}"
        handler.__doc__ = _line(description)  # drf-spectacular describes an operation by its docstring
        described: Handler[P] = extend_schema(
            operation_id=operation_id, request=request, responses=responses, summary=_line(summary), **schema
        )(handler)
        return described

    return decorate


def described(text: str) -> Callable[[Method], Method]:
    """Gives the method this docstring."""

    def describe(method: Method) -> Method:
        method.__doc__ = text
        return method

    return describe


def created(request: Request, name: object, document: Document) -> Response:
    """201, with the address of the new object: that of the request followed by `name`."""
    address = request.build_absolute_uri(f"{request.path}/{name}")
    return Response(document, status=status.HTTP_201_CREATED, headers={"Location": address})


def _line(text: str) -> str:
    return " ".join(text.split())
