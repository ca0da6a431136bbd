"""REST: the hooks of an appcode, which its clusters use by name."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.models import Hook
from clusters.run_hooks.saved import HookManifest, change_hook, create_hook, delete_hook, hook_for, hooks_in
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, page, search
from portal.api.views import person
from portal.manifests import parse

EXAMPLE = OpenApiExample(
    "Copy the model",
    request_only=True,
    value={
        "kind": "hook",
        "metadata": {"name": "publish", "description": "Copies the model to the shared folder"},
        "spec": {"on": "success", "command": "cp $PORTAL_OUTPUT/model.keras /elearn/output/", "output": "models"},
    },
)


class HookDocumentStatus(Answer):
    created: dt.datetime
    created_by: str | None
    changed: dt.datetime


class HookDocument(HookManifest):
    """A hook as it is answered: the manifest, and who saved it when."""

    status: HookDocumentStatus


class HookPage(Answer):
    items: list[HookDocument]
    next: str | None


class AppcodeHooks(APIView):
    @extend_schema(
        operation_id="hooks_list",
        summary="The hooks of an appcode, newest first",
        parameters=[*PAGE_PARAMETERS, SEARCH_PARAMETER],
        responses=HookPage,
    )
    def get(self, request: Request, code: str) -> Response:
        rows = search(request, hooks_in(person(request), code), "name", "description")
        return page(request, rows, order="-id", render=_document)

    @extend_schema(
        operation_id="hooks_create",
        summary="Save a hook that the clusters of an appcode can use",
        request=HookManifest,
        responses={201: HookDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        made = create_hook(parse(HookManifest, request.data, appcode=code), appcode, acting_user=person(request))
        address = request.build_absolute_uri(f"{request.path}/{made.name}")
        return Response(_document(made), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneHook(APIView):
    @extend_schema(operation_id="hooks_read", summary="A hook of an appcode", responses=HookDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(_document(hook_for(person(request), code, name)))

    @extend_schema(
        operation_id="hooks_change",
        summary="Replace a hook of an appcode",
        description="It counts for runs that are submitted from then on.",
        request=HookManifest,
        responses=HookDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        found = hook_for(person(request), code, name, OPERATE)
        manifest = parse(HookManifest, request.data, appcode=code, name=name)
        return Response(_document(change_hook(found, manifest, acting_user=person(request))))

    @extend_schema(
        operation_id="hooks_delete", summary="Delete a hook of an appcode", request=None, responses={204: None}
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        delete_hook(hook_for(person(request), code, name, OPERATE), acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


def _document(row: Hook) -> dict[str, Any]:
    who = row.created_by.username if row.created_by else None
    return {
        "kind": "hook",
        "metadata": {"name": row.name, "appcode": row.appcode.code, "description": row.description},
        "spec": row.spec,
        "status": HookDocumentStatus(created=row.created_at, created_by=who, changed=row.changed_at).json_value(),
    }
