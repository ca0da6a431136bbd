"""REST: pull secrets of business lines, for administrators. What is saved is never answered."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.models import PullSecret
from clusters.pull_secrets import PullSecretSpec, line_at, pull_secrets, remove_secret, save_secret
from portal.access import require_administrator
from portal.api.documents import Answer
from portal.api.pagination import everything
from portal.api.views import person
from portal.manifests import parse

EXAMPLE = OpenApiExample(
    "A robot account", request_only=True, value={"username": "robot$training", "password": "EXAMPLE"}
)


class PullSecretDocument(Answer):
    """For which registry there is one."""

    business_line: str
    host: str
    username: str
    changed: dt.datetime
    created_by: str | None


class PullSecretPage(Answer):
    items: list[PullSecretDocument]
    next: str | None


class PullSecrets(APIView):
    @extend_schema(
        operation_id="pull_secrets_list",
        summary="The registries for which business lines have a pull secret",
        responses=PullSecretPage,
    )
    def get(self, request: Request) -> Response:
        return everything([_document(row) for row in pull_secrets(person(request))])


class OnePullSecret(APIView):
    @extend_schema(
        operation_id="pull_secrets_save",
        summary="Save what nodes fetch the images of a business line with",
        description="For one registry, as image names begin (docker.io for the usual one). What was saved before is "
        "replaced, and runs that wait for their image try again with it.",
        request=PullSecretSpec,
        responses=PullSecretDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, path: str, host: str) -> Response:
        user = person(request)
        require_administrator(user)
        spec = parse(PullSecretSpec, request.data)
        return Response(_document(save_secret(line_at(path), host, spec, acting_user=user)))

    @extend_schema(
        operation_id="pull_secrets_remove", summary="Forget a pull secret", request=None, responses={204: None}
    )
    def delete(self, request: Request, path: str, host: str) -> Response:
        remove_secret(path, host, acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


def _document(row: PullSecret) -> dict[str, Any]:
    return PullSecretDocument(
        business_line=row.line.path,
        host=row.host,
        username=row.username,
        changed=row.changed_at,
        created_by=row.created_by.username if row.created_by else None,
    ).json_value()
