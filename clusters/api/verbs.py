"""REST: what people do to a cluster or an application, one POST each. 202: the wish is written down and will be carried out, and
the manifest shows the state right after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters import actions
from clusters.models import Cluster
from portal.access import OPERATE
from portal.api.documents import Answer
from portal.api.pagination import flag
from portal.api.views import person


@dataclass(frozen=True)
class Kind:
    """What verbs are for. `find(user, code, name, capability)` raises Http404 or PermissionDenied."""

    name: str
    find: Callable[..., Cluster]
    to_manifest: Callable[[Cluster], dict[str, Any]]
    document: type[Answer] | type[Any]


@dataclass(frozen=True)
class Verb:
    name: str
    do: Callable[..., Any]
    summary: str
    description: str
    parameters: tuple[OpenApiParameter, ...] = ()


VERBS = (
    Verb(
        "deploy", actions.deploy, "Start the next run", "409 while a run is alive.",
        (OpenApiParameter(
            "newest", bool,
            description="Of code in Git: from the commit that its ref has by now, not from that of the run before.",
        ),),
    ),
    Verb(
        "disable", actions.disable, "End the run and give its GPUs back",
        "Its output is stored first, and its files stay. Repeating it changes nothing.",
    ),
    Verb("cancel", actions.cancel, "End a run that has not begun to run", "409 once it has."),
    Verb(
        "keep", actions.keep, "Say that it is still needed",
        "What was announced for its idleness is withdrawn, and its clock begins anew. 409 when it does not run.",
    ),
)  # fmt: skip


def carry_out(kind: Kind, do: Callable[..., Any], request: Request, code: str, name: str, **options: bool) -> Response:
    cluster = kind.find(person(request), code, name, OPERATE)
    do(cluster, acting_user=person(request), **options)
    cluster.refresh_from_db()
    return Response(kind.to_manifest(cluster), status=status.HTTP_202_ACCEPTED)


def verb_paths(one: str, kind: Kind) -> list[URLPattern]:
    """An address for each verb below that of one cluster or application."""
    return [path(f"{one}/{verb.name}", _view(kind, verb).as_view()) for verb in VERBS]


def _view(kind: Kind, verb: Verb) -> type[APIView]:
    class Act(APIView):
        @extend_schema(
            operation_id=f"{kind.name}s_{verb.name}",
            summary=verb.summary,
            description=verb.description,
            parameters=list(verb.parameters),
            request=None,
            responses={202: kind.document},
        )
        def post(self, request: Request, code: str, name: str) -> Response:
            options = {each.name: flag(request, each.name) for each in verb.parameters}
            return carry_out(kind, verb.do, request, code, name, **options)

    return Act
