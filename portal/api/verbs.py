"""Verbs of REST: actions on an object below an appcode, each a POST to an address of its own below that of the object.
202: the request is stored and will be carried out. The answer is the document right after that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.views import APIView

from portal.access import OPERATE
from portal.api.operations import Document, described, operation
from portal.api.pagination import flag
from portal.api.views import person
from portal.manifests import Strict, parse


@dataclass(frozen=True)
class Verb:
    """`do(row, *, acting_user)`. With `sent`, the type of a body, `do(row, body, *, acting_user)`; `flags` are parameters
    of the query that are true or false, and keywords of `do`."""

    name: str
    do: Callable[..., Any]
    summary: str
    description: str = ""
    sent: type[Strict] | None = None
    flags: tuple[OpenApiParameter, ...] = ()


@dataclass(frozen=True)
class Kind:
    """The objects of verbs. `find(user, code, name, capability)` raises Http404 or PermissionDenied."""

    plural: str
    find: Callable[..., Any]
    document: type[Any]
    render: Callable[[Any], Document]


def verb_paths(kind: Kind, verbs: Iterable[Verb]) -> list[URLPattern]:
    one = f"appcodes/<slug:code>/{kind.plural}/<slug:name>"
    return [path(f"{one}/{verb.name}", _view(kind, verb).as_view()) for verb in verbs]


def _view(kind: Kind, verb: Verb) -> type[APIView]:
    class Act(APIView):
        @operation(f"{kind.plural}_{verb.name}", {202: kind.document}, request=verb.sent, parameters=list(verb.flags))
        @described(f"{verb.summary}\n\n{verb.description}")
        def post(self, request: Request, code: str, name: str) -> Document:
            flags = {each.name: flag(request, each.name) for each in verb.flags}
            row = kind.find(person(request), code, name, OPERATE)
            sent = (parse(verb.sent, request.data or {}),) if verb.sent else ()
            verb.do(row, *sent, acting_user=person(request), **flags)
            return kind.render(kind.find(person(request), code, name))

    return Act
