"""REST: pull secrets of business lines, for administrators. Answers never contain a password."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import OpenApiExample
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.pull_secrets.actions import PullSecretSpec, line_at, pull_secrets, remove_secret, save_secret
from clusters.pull_secrets.models import PullSecret
from portal.api.documents import Answer, Who, page_of
from portal.api.operations import Document, operation
from portal.api.pagination import everything
from portal.api.views import administrator, person
from portal.manifests import parse

EXAMPLE = OpenApiExample(
    "A robot account", request_only=True, value={"username": "robot$training", "password": "EXAMPLE"}
)


class PullSecretDocument(Answer):
    """A registry for which there is a pull secret."""

    business_line: str
    host: str
    username: str
    changed: dt.datetime
    created_by: Who


PullSecretPage = page_of("PullSecretPage", PullSecretDocument)


class PullSecrets(APIView):
    @operation("pull_secrets_list", PullSecretPage)
    def get(self, request: Request) -> Response:
        """The registries for which business lines have a pull secret"""
        return everything([_document(row) for row in pull_secrets(person(request))])


class OnePullSecret(APIView):
    @operation("pull_secrets_save", PullSecretDocument, request=PullSecretSpec, examples=[EXAMPLE])
    def put(self, request: Request, path: str, host: str) -> Document:
        """Save what nodes fetch the images of a business line with

        For one registry, as image names begin (docker.io for the usual one). What was saved before is replaced, and
        runs that wait for their image try again with it."""
        user = administrator(request)
        spec = parse(PullSecretSpec, request.data)
        return _document(save_secret(line_at(path), host, spec, acting_user=user))

    @operation("pull_secrets_remove", {204: None})
    def delete(self, request: Request, path: str, host: str) -> None:
        """Forget a pull secret"""
        remove_secret(path, host, acting_user=person(request))


def _document(row: PullSecret) -> dict[str, Any]:
    return PullSecretDocument.of(row, business_line=row.line.path, changed=row.changed_at).json_value()
