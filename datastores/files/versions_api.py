"""REST: versions of a datastore."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from pydantic import Field, StringConstraints
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
from portal.api.documents import Answer, Who, page_of
from portal.api.operations import Document, created, operation
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.views import person
from portal.manifests import Strict, parse
from portal.web.limits import LOOKS


class NewVersion(Strict):
    """A name for the current contents of a folder."""

    name: Annotated[str, StringConstraints(max_length=40)] = Field(examples=["2026-11-22"])
    path: Annotated[str, StringConstraints(max_length=2000)] = Field(
        default="", description="The folder; the top of the datastore when absent."
    )


class VersionDocument(Answer):
    """The contents of a folder: a digest of names, sizes and times, the number of files, and their total bytes."""

    name: str
    path: str
    digest: str
    files: int
    bytes: int
    created: dt.datetime
    created_by: Who


VersionPage = page_of("VersionPage", VersionDocument)


class Versions(APIView):
    @operation("versions_list", VersionPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str, name: str) -> Response:
        """The versions of a datastore, the newest first"""
        rows = Version.objects.filter(datastore=datastore_for(person(request), code, name)).select_related("created_by")
        return page(request, rows, order="-id", render=lambda row: _document(row).json_value())

    @operation("versions_make", {201: VersionDocument}, request=NewVersion)
    def post(self, request: Request, code: str, name: str) -> Response:
        """Freeze a folder of a datastore as a version

        As long as it is there, nothing in its folder is changed through the portal, and a run that reads it fails when
        something else lies there. Of S3 only, and of a bounded number of files."""
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        wanted = parse(NewVersion, request.data)
        with told(), LOOKS.enter(user.pk), within(COUNT_SECONDS):
            made = versions.freeze(store, wanted.name, wanted.path, acting_user=user)
        return created(request, made.name, _document(made).json_value())


class OneVersion(APIView):
    @operation("versions_read", VersionDocument)
    def get(self, request: Request, code: str, name: str, version: str) -> Document:
        """A version of a datastore"""
        return _document(version_for(person(request), code, name, version)).json_value()

    @operation("versions_forget", {204: None})
    def delete(self, request: Request, code: str, name: str, version: str) -> None:
        """Forget a version

        Its files stay, and may be changed again. Runs that name it are refused from then on."""
        user = person(request)
        versions.thaw(version_for(user, code, name, version, OPERATE), acting_user=user)


def _document(row: Version) -> VersionDocument:
    return VersionDocument.of(row, path=row.folder, created=row.created_at)
