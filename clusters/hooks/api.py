"""REST: the hooks of an appcode, which its clusters use by name."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample
from rest_framework.request import Request
from rest_framework.response import Response

from clusters.hooks.actions import HOOKS, HookManifest, change_hook, create_hook, delete_hook, hook_for
from clusters.hooks.models import Hook
from portal.api.documents import Answer, Who, page_of
from portal.api.objects import object_views
from portal.api.pagination import page, search

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
    created_by: Who
    changed: dt.datetime


class HookDocument(HookManifest):
    """A hook: its manifest, and who saved it when."""

    status: HookDocumentStatus


HookPage = page_of("HookPage", HookDocument)


def _document(row: Hook) -> dict[str, Any]:
    return {
        "kind": "hook",
        "metadata": {"name": row.name, "appcode": row.appcode.code, "description": row.description},
        "spec": row.spec,
        "status": HookDocumentStatus.of(row, created=row.created_at, changed=row.changed_at).json_value(),
    }


def _page(request: Request, rows: QuerySet[Hook]) -> Response:
    return page(request, search(request, rows, "name", "description"), order="-id", render=_document)


AppcodeHooks, OneHook = object_views(
    HOOKS, HookManifest, HookDocument, HookPage,
    render=_document, listing=_page, example=EXAMPLE, find=hook_for,
    create=create_hook, change=change_hook, delete=delete_hook,
    texts={
        "create": "Save a hook that the clusters of an appcode can use",
        "read": "A hook of an appcode",
        "change": "Replace a hook of an appcode\n\nIt counts for runs that are submitted from then on.",
        "delete": "Delete a hook of an appcode",
    },
)  # fmt: skip
