"""REST: large files in parts. As in S3, a part is stored at the URL of its file (api.py)."""

from __future__ import annotations

import datetime as dt
from http import HTTPStatus
from typing import Annotated, Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiExample
from pydantic import Field, StringConstraints
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores.access import datastore_for, upload_for
from datastores.drivers.patience import within
from datastores.files import uploads
from datastores.files.api import FileDocument, document, told
from datastores.files.downloads import LOOK_SECONDS
from datastores.models import Upload
from portal.access import OPERATE
from portal.api.documents import Answer
from portal.api.operations import Document, operation
from portal.api.views import person
from portal.manifests import Strict, parse
from portal.web.limits import LOOKS, TRANSFERS


class NewUpload(Strict):
    """A large file to be sent in parts."""

    path: Annotated[str, StringConstraints(max_length=2000)] = Field(examples=["models/large.keras"])
    size: int = Field(ge=0, le=2**53, description="Bytes.")
    fingerprint: Annotated[str, StringConstraints(max_length=200)] = Field(
        default="", description="What you know the file by: its time, or a digest. With the same one an upload goes on."
    )


class UploadDocument(Answer):
    """An unfinished upload. Each part has `partSize` bytes, the last one the rest."""

    id: int
    path: str
    size: int
    part_size: int
    parts: int = Field(description="How many it has.")
    stored: list[int] = Field(description="The numbers, from 1, of those that have come.")


class Uploads(APIView):
    @operation(
        "uploads_begin",
        {201: UploadDocument, 200: UploadDocument},
        request=NewUpload,
        examples=[
            OpenApiExample("A large file", request_only=True, value={"path": "a/large.npz", "size": 3_000_000_000})
        ],
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        """Begin to store a large file in parts, or go on with it

        200 where parts of it have come already, in an upload of yours of that path, size and fingerprint that is not
        finished. Store each part by `PUT …/files/PATH?upload=ID&part=NUMBER`, then finish it. What nobody goes on with
        for a day is dropped."""
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        wanted = parse(NewUpload, request.data)
        with told(), LOOKS.enter(user.pk), within(LOOK_SECONDS):
            upload = uploads.begin(store, wanted.path, wanted.size, wanted.fingerprint, acting_user=user)
        shown = _upload(upload)
        return Response(shown, status=HTTPStatus.OK if shown["stored"] else HTTPStatus.CREATED)


class OneUpload(APIView):
    @operation("uploads_read", UploadDocument)
    def get(self, request: Request, code: str, name: str, upload: int) -> Document:
        """Which parts have come"""
        return _upload(upload_for(person(request), code, name, upload))

    @operation("uploads_drop", {204: None})
    def delete(self, request: Request, code: str, name: str, upload: int) -> None:
        """Give an upload up, with its parts"""
        user = person(request)
        found = upload_for(user, code, name, upload)
        with told(), LOOKS.enter(user.pk), within(LOOK_SECONDS):
            uploads.drop(found, acting_user=user)


class WantedUrls(Strict):
    """Numbers of parts."""

    parts: Annotated[list[int], Field(min_length=1, max_length=uploads.MAX_URLS)] = Field(examples=[[1, 2]])


class PartUrl(Answer):
    part: int
    url: str


class PartUrls(Answer):
    """`PUT` each part to its `url`, with no header but Content-Length. `stored` are the parts that have arrived."""

    items: list[PartUrl]
    expires: dt.datetime
    stored: list[int]


class UploadUrls(APIView):
    @operation("uploads_urls", PartUrls, request=WantedUrls)
    def post(self, request: Request, code: str, name: str, upload: int) -> Response:
        """Addresses at the store itself, for parts of an upload

        Each is good for one part, of exactly its size, for a quarter of an hour, and for nothing else. 409 where the
        store has none: a folder. Finish the upload as any other; the store is asked then what has come."""
        user = person(request)
        found = upload_for(user, code, name, upload)
        wanted = parse(WantedUrls, request.data)
        expires = timezone.now() + dt.timedelta(seconds=uploads.URL_SECONDS)
        with told(), LOOKS.enter(user.pk), within(LOOK_SECONDS):
            made = uploads.urls(found, wanted.parts, acting_user=user)
        items = [PartUrl(part=number, url=url) for number, url in made.items()]
        response = Response(PartUrls(items=items, expires=expires, stored=_stored(found)).json_value())
        response["Cache-Control"] = "no-store"
        return response


class FinishUpload(APIView):
    @operation("uploads_finish", {201: FileDocument})
    def post(self, request: Request, code: str, name: str, upload: int) -> Response:
        """Make the file of its parts

        409 while some are missing. A file of that name is replaced."""
        user = person(request)
        found = upload_for(user, code, name, upload)
        with told(), TRANSFERS.enter(user.pk):
            made = uploads.finish(found, acting_user=user)
        return Response(document(made), status=HTTPStatus.CREATED)


def _upload(upload: Upload) -> dict[str, Any]:
    return UploadDocument.of(upload, parts=uploads.count_of(upload), stored=_stored(upload)).json_value()


def _stored(upload: Upload) -> list[int]:
    return list(upload.parts.order_by("number").values_list("number", flat=True))
