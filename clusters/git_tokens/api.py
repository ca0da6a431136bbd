"""REST: Git tokens of an appcode. Answers never contain a token."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import OpenApiExample
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.git_tokens.actions import GitTokenSpec, remove_token, save_token, tokens_for
from clusters.git_tokens.models import GitToken
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer, Who, page_of
from portal.api.operations import Document, operation
from portal.api.pagination import everything
from portal.api.views import person
from portal.manifests import parse

EXAMPLE = OpenApiExample("GitLab", request_only=True, value={"name": "oauth2", "token": "glpat-EXAMPLE"})


class GitTokenDocument(Answer):
    """A Git server for which there is a token."""

    host: str
    name: str
    changed: dt.datetime
    created_by: Who


GitTokenPage = page_of("GitTokenPage", GitTokenDocument)


class AppcodeGitTokens(APIView):
    @operation("git_tokens_list", GitTokenPage)
    def get(self, request: Request, code: str) -> Response:
        """The Git servers for which an appcode has a token"""
        return everything([_document(row) for row in tokens_for(person(request), code)])


class OneGitToken(APIView):
    @operation("git_tokens_save", GitTokenDocument, request=GitTokenSpec, examples=[EXAMPLE])
    def put(self, request: Request, code: str, host: str) -> Document:
        """Save the name and token that runs of an appcode fetch code with

        For one server, by its host as it stands in addresses of repositories. What was saved before is replaced."""
        appcode = appcode_for(person(request), code, OPERATE)
        spec = parse(GitTokenSpec, request.data)
        return _document(save_token(appcode, host, spec, acting_user=person(request)))

    @operation("git_tokens_remove", {204: None})
    def delete(self, request: Request, code: str, host: str) -> None:
        """Forget a Git token"""
        remove_token(person(request), code, host)


def _document(row: GitToken) -> dict[str, Any]:
    return GitTokenDocument.of(row, changed=row.changed_at).json_value()
