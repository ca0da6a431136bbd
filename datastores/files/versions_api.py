"""REST: versions of a datastore, made and forgotten."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from drf_spectacular.utils import extend_schema
from pydantic import Field, StringConstraints
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores.access import datastore_for, version_for
from datastores.drivers.patience import within
from datastores.files import versions
from datastores.files.api import told
from datastores.files.downloads import COUNT_SECONDS
from datastores.models import Version
from portal.access import OPERATE
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.views import person
from portal.limits import LOOKS
from portal.manifests import Strict, parse


class NewVersion(Strict):
    """What a folder holds now, under a name."""

    name: Annotated[str, StringConstraints(max_length=40)] = Field(examples=["2026-11-22"])
    path: Annotated[str, StringConstraints(max_length=2000)] = Field(
        default="", description="The folder; the top of the datastore when absent."
    )


class VersionDocument(Answer):
    """The files that a folder had: a digest of their names, sizes and times, how many they were, and their bytes together."""

    name: str
    path: str
    digest: str
    files: int
    bytes: int
    created: dt.datetime
    created_by: str | None


class VersionPage(Answer):
    items: list[VersionDocument]
    next: str | None


class Versions(APIView):
    @extend_schema(
        operation_id="versions_list",
        summary="The versions of a datastore, the newest first",
        parameters=PAGE_PARAMETERS,
        responses=VersionPage,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        rows = Version.objects.filter(datastore=datastore_for(person(request), code, name)).select_related("created_by")
        return page(request, rows, order="-id", render=lambda row: _document(row).json_value())

    @extend_schema(
        operation_id="versions_make",
        summary="Freeze a folder of a datastore as a version",
        description="As long as it is there, nothing in its folder is changed through the portal, and a run that reads it fails "
        "when something else lies there. Of S3 only, and of a bounded number of files.",
        request=NewVersion,
        responses={201: VersionDocument},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        wanted = parse(NewVersion, request.data)
        with told(), LOOKS.enter(user.pk), within(COUNT_SECONDS):
            made = versions.freeze(store, wanted.name, wanted.path, acting_user=user)
        address = request.build_absolute_uri(f"{request.path}/{made.name}")
        return Response(_document(made).json_value(), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneVersion(APIView):
    @extend_schema(operation_id="versions_read", summary="A version of a datastore", responses=VersionDocument)
    def get(self, request: Request, code: str, name: str, version: str) -> Response:
        return Response(_document(version_for(person(request), code, name, version)).json_value())

    @extend_schema(
        operation_id="versions_forget",
        summary="Forget a version",
        description="Its files stay, and may be changed again. Runs that name it are refused from then on.",
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str, version: str) -> Response:
        user = person(request)
        versions.thaw(version_for(user, code, name, version, OPERATE), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _document(row: Version) -> VersionDocument:
    return VersionDocument(
        name=row.name,
        path=row.folder,
        digest=row.digest,
        files=row.files,
        bytes=row.bytes,
        created=row.created_at,
        created_by=row.created_by.username if row.created_by else None,
    )
