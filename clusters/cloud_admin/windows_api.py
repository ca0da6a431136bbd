"""REST: maintenance and reservations of the nodes of a cloud. For administrators; others get 404, and read them on the queue."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.cloud_admin import windows
from clusters.cloud_admin.windows import WindowSpec
from clusters.clouds.models import Cloud, Window
from clusters.runs.placing.windows import open_at
from portal.api.documents import Answer, page_of
from portal.api.operations import Document, created, operation
from portal.api.pagination import everything
from portal.api.views import administrator
from portal.manifests import parse


class WindowDocument(Answer):
    """Maintenance or a reservation."""

    id: int
    cloud: str
    kind: Literal["maintenance", "reservation"]
    nodes: list[str]
    starts_at: dt.datetime
    ends_at: dt.datetime
    appcode: str | None = Field(description="For which it is reserved; null for maintenance.")
    reason: str
    repeat: Literal["never", "daily", "weekly"] = Field(
        description="The next of a series says how often; those before say never."
    )
    created_by: str
    begun: dt.datetime | None = Field(description="When its runs were given back; null before that.")


WindowPage = page_of("WindowPage", WindowDocument)


class CloudWindows(APIView):
    @operation("windows_list", WindowPage)
    def get(self, request: Request, name: str) -> Response:
        """Maintenance and reservations of a cloud that have not ended, the earliest first"""
        administrator(request)
        rows = _rows(cloud_named(name))
        return everything([_document(row) for row in rows])

    @operation("windows_create", {201: WindowDocument}, request=WindowSpec)
    def post(self, request: Request, name: str) -> Response:
        """Close nodes for maintenance, or reserve them

        Before it begins, only runs start on the nodes whose time limit ends two minutes earlier. When it begins, runs that may
        not be there are given back (event run.given_back), and wait in their old place. Their people are told at once, and half
        an hour before. 409 where the portal does not choose the nodes of runs."""
        user = administrator(request)
        row = windows.open_window(cloud_named(name), parse(WindowSpec, request.data), acting_user=user)
        return created(request, row.pk, _document(row))


class OneWindow(APIView):
    @operation("windows_read", WindowDocument)
    def get(self, request: Request, name: str, pk: int) -> Document:
        """Maintenance or a reservation"""
        administrator(request)
        return _document(window_of(name, pk))

    @operation("windows_change", WindowDocument, request=WindowSpec)
    def put(self, request: Request, name: str, pk: int) -> Document:
        """Change it

        Of one that has begun, only its end and its reason (409)."""
        user = administrator(request)
        return _document(windows.change(window_of(name, pk), parse(WindowSpec, request.data), acting_user=user))

    @operation("windows_cancel", {204: None})
    def delete(self, request: Request, name: str, pk: int) -> None:
        """Cancel it

        Its nodes are open again at once."""
        user = administrator(request)
        windows.cancel(window_of(name, pk), acting_user=user)


def cloud_named(name: str) -> Cloud:
    row = Cloud.objects.filter(name=name).first()
    if row is None:
        raise Http404(f"There is no cloud “{name}”.")
    return row


def window_of(name: str, pk: int) -> Window:
    row = _rows(cloud_named(name)).filter(pk=pk).first()
    if row is None:
        raise Http404("There is no such window, or it has ended.")
    return row


def _rows(cloud: Cloud) -> QuerySet[Window]:
    return open_at(timezone.now()).filter(cloud=cloud).select_related("cloud", "appcode", "created_by")


def _document(row: Window) -> dict[str, Any]:
    return WindowDocument(
        id=row.pk,
        cloud=row.cloud.name,
        kind="reservation" if row.appcode_id else "maintenance",
        nodes=row.nodes,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        appcode=row.appcode.code if row.appcode else None,
        reason=row.reason,
        repeat=row.repeat or "never",
        created_by=row.created_by.username if row.created_by else "",
        begun=row.begun_at,
    ).json_value()
