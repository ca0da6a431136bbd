"""REST: Git tokens of an appcode. What is saved is never answered."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.git_tokens import GitTokenSpec, remove_token, save_token, tokens_for
from clusters.models import GitToken
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer
from portal.api.pagination import everything
from portal.api.views import person
from portal.manifests import parse

EXAMPLE = OpenApiExample("GitLab", request_only=True, value={"name": "oauth2", "token": "glpat-EXAMPLE"})


class GitTokenDocument(Answer):
    """For which server there is a token."""

    host: str
    name: str
    changed: dt.datetime
    created_by: str | None


class GitTokenPage(Answer):
    items: list[GitTokenDocument]
    next: str | None


class AppcodeGitTokens(APIView):
    @extend_schema(
        operation_id="git_tokens_list",
        summary="The Git servers for which an appcode has a token",
        responses=GitTokenPage,
    )
    def get(self, request: Request, code: str) -> Response:
        return everything([_document(row) for row in tokens_for(person(request), code)])


class OneGitToken(APIView):
    @extend_schema(
        operation_id="git_tokens_save",
        summary="Save the name and token that runs of an appcode fetch code with",
        description="For one server, by its host as it stands in addresses of repositories. What was saved before is replaced.",
        request=GitTokenSpec,
        responses=GitTokenDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str, host: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        spec = parse(GitTokenSpec, request.data)
        return Response(_document(save_token(appcode, host, spec, acting_user=person(request))))

    @extend_schema(operation_id="git_tokens_remove", summary="Forget a Git token", request=None, responses={204: None})
    def delete(self, request: Request, code: str, host: str) -> Response:
        remove_token(person(request), code, host)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _document(row: GitToken) -> dict[str, Any]:
    who = row.created_by.username if row.created_by else None
    return GitTokenDocument(host=row.host, name=row.name, changed=row.changed_at, created_by=who).json_value()
