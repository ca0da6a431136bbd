"""REST: files of a datastore. A file's URL is its bytes: GET (also of ranges), PUT, DELETE; POST moves or copies it.

Gateways stream request bodies to these URLs (portal/up/programs.py). So the sender is authenticated and a place is
reserved before the body is read.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import quote, unquote

from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from pydantic import Field, model_validator
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores.access import datastore_for, upload_for
from datastores.actions import open_store
from datastores.drivers.base import DriverError, Entry, NoSuchPart, NotPossible, NotThere, Part
from datastores.drivers.patience import within
from datastores.files import contents, trash, uploads
from datastores.files.downloads import COUNT_SECONDS, LOOK_SECONDS, download, download_many, etag_header
from datastores.models import Removal
from portal.access import OPERATE
from portal.api.documents import Answer, Who
from portal.api.operations import Document, operation
from portal.api.pagination import MAX_LIMIT, PAGE_PARAMETERS, flag, number, page_elsewhere, text, whole
from portal.api.problems import TooLarge, Unavailable, problem
from portal.api.streams import AnyAccept
from portal.api.views import person
from portal.errors import Conflict, Invalid
from portal.manifests import Strict, parse
from portal.web.limits import LOOKS, TRANSFERS

# A single range. A request for several gets the whole file, as HTTP allows.
_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")
# Total of many small files: gateways buffer this much before they pass it on (portal/up/programs.py).
MANY_BYTES = 4 * 2**20
RANGE = OpenApiParameter(
    "Range", str, OpenApiParameter.HEADER, description="One part of it: bytes=0-99, bytes=100-, bytes=-100."
)


class FileDocument(Answer):
    """A file or a folder; folders have neither size nor time."""

    kind: Literal["file", "folder"]
    name: str
    path: str = Field(description="From the top of the datastore.")
    size: int | None
    modified: dt.datetime | None
    etag: str | None = Field(description="Changes whenever the bytes do.")


class RemovalDocument(Answer):
    """A removal that can be restored. `settled` is false while it is being moved: into the trash (`removed`), back
    (`restored`), or out for good (`emptied`)."""

    id: int
    path: str
    kind: Literal["file", "folder"]
    state: Literal["removed", "restored", "emptied"]
    settled: bool
    files: int
    bytes: int
    message: str = Field(
        description="Why it does not go on, or what stays in the trash because something else lies there."
    )
    cause: str = Field(description="The rule that removed it, or empty.")
    removed: dt.datetime
    removed_by: Who
    until: dt.datetime = Field(description="When it goes for good.")


class FilePage(Answer):
    items: list[FileDocument]
    next: str | None
    complete: bool = Field(
        default=True, description="Of a search below: false where it stopped early; name a folder nearer."
    )


class FolderSize(Answer):
    name: str
    files: int
    size: int = Field(description="Bytes.")


class FolderSizes(Answer):
    files: int
    size: int = Field(description="Bytes of the folder with all below it.")
    folders: list[FolderSize] = Field(description="Those directly in it.")
    complete: bool = Field(
        description=f"False where it has more than {contents.MOST_LOOKED_AT:,} files; then all is a part."
    )


class AnotherName(Strict):
    """Exactly one of the two."""

    move: str | None = Field(default=None, examples=["models/best.keras"], description="It is called so from now on.")
    copy_to: str | None = Field(default=None, alias="copy", description="There is a file of the same bytes besides.")

    @model_validator(mode="after")
    def _one(self) -> AnotherName:
        if (self.move is None) == (self.copy_to is None):
            raise ValueError("Say either “move” or “copy”, with the new path.")
        return self


class Files(APIView):
    parser_classes = (MultiPartParser,)

    @operation(
        "files_list",
        FilePage,
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("path", str, description="The folder; the top of the datastore when absent."),
            OpenApiParameter("search", str, description="Only names that start with this."),
            OpenApiParameter(
                "below",
                bool,
                description="Search all folders below, too: files whose path has each word of `search` in it. The first "
                f"{MAX_LIMIT} of them, among the first {contents.MOST_LOOKED_AT:,} files.",
            ),
        ],
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        """The files and folders in one folder of a datastore, by name"""
        store = datastore_for(person(request), code, name)
        folder = contents.checked_path(text(request, "path", longest=2000))
        search = text(request, "search", longest=200)
        if flag(request, "below"):
            with told(), LOOKS.enter(person(request).pk), within(LOOK_SECONDS):
                matches = contents.find(store, folder, search, MAX_LIMIT)
            items = [document(each) for each in matches.entries]
            return Response({"items": items, "next": None, "complete": matches.complete})

        def found(cursor: str, limit: int) -> tuple[tuple[Entry, ...], str]:
            listing = open_store(store).list(folder, search=search, cursor=cursor, limit=limit)
            return listing.entries, listing.cursor

        with told(), LOOKS.enter(person(request).pk), within(LOOK_SECONDS):
            return page_elsewhere(request, found, render=document)

    @operation(
        "files_write_many",
        {204: None},
        description="As a form (`multipart/form-data`): each file in a field whose name is its path, percent-encoded as in an "
        f"address. At most 100 files and {MANY_BYTES // 2**20} MiB together. 204 when all are stored; where one is not, the "
        "others are, and it may be sent again.",
        request={
            "multipart/form-data": {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}
        },
    )
    def post(self, request: Request, code: str, name: str) -> HttpResponse:
        """Store many small files at once"""
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        length = request.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) > MANY_BYTES:
            raise TooLarge(f"Files that come together have at most {MANY_BYTES // 2**20} MiB.")
        with told(), TRANSFERS.enter(user.pk):
            files = {unquote(path): file for path, file in request.FILES.items()}
            if not files:
                raise Invalid.at("files", message="Send files, each in a field that is called as its path.")
            contents.store_files(store, files, acting_user=user)
        return HttpResponse(status=HTTPStatus.NO_CONTENT)


class Sizes(APIView):
    @operation(
        "files_sizes",
        FolderSizes,
        parameters=[OpenApiParameter("path", str, description="The folder; the top of the datastore when absent.")],
    )
    def get(self, request: Request, code: str, name: str) -> Document:
        """How much lies in a folder, and in each folder directly in it"""
        store = datastore_for(person(request), code, name)
        folder = contents.checked_path(text(request, "path", longest=2000))
        with told(), LOOKS.enter(person(request).pk), within(COUNT_SECONDS):
            found = contents.sizes(store, folder)
        folders = [FolderSize(name=name, files=each.files, size=each.size) for name, each in found.folders.items()]
        summed = FolderSizes(files=found.all.files, size=found.all.size, folders=folders, complete=not found.all.more)
        return summed.json_value()


class Archive(APIView):
    content_negotiation_class = AnyAccept

    @operation(
        "files_archive",
        {(200, "application/octet-stream"): OpenApiTypes.BINARY},
        parameters=[OpenApiParameter("path", str, description="The folder; the whole datastore when absent.")],
    )
    def get(self, request: Request, code: str, name: str) -> HttpResponseBase:
        """A folder with everything below it, as one ZIP archive

        Made while it is read. At most 10,000 files, uncompressed, so that `Content-Length` is known."""
        store = datastore_for(person(request), code, name)
        folder = contents.checked_path(text(request, "path", longest=2000))
        with told():
            return download_many(store, [f"{folder}/"], person(request))


class OneFile(APIView):
    content_negotiation_class = AnyAccept

    @operation(
        "files_read",
        {(code, "application/octet-stream"): OpenApiTypes.BINARY for code in (200, 206)},
        parameters=[RANGE],
    )
    def get(self, request: Request, code: str, name: str, path: str) -> HttpResponseBase:
        """A file, or a part of it

        HEAD answers its size and ETag. With `If-Range` the whole file comes if it has changed."""
        store = datastore_for(person(request), code, name)
        known = request.headers.get("If-Range", "")
        try:
            with told():
                return download(
                    store, contents.checked_path(path), person(request), _part(request), unless_changed=known
                )
        except NoSuchPart as error:
            return problem(request.path, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "no-such-part", str(error))

    def head(self, request: Request, code: str, name: str, path: str) -> HttpResponse:
        store = datastore_for(person(request), code, name)
        path = contents.checked_path(path)
        with told(), LOOKS.enter(person(request).pk), within(LOOK_SECONDS):
            entry = open_store(store).look(path)
        headers = {"Content-Length": str(entry.size), "Accept-Ranges": "bytes", **etag_header(entry)}
        return HttpResponse(content_type="application/octet-stream", headers=headers)

    @operation(
        "files_write",
        {204: None},
        parameters=[OpenApiParameter("upload", whole(1, 2**62)), OpenApiParameter("part", whole(1, uploads.MAX_PARTS))],
        request={"application/octet-stream": OpenApiTypes.BINARY},
    )
    def put(self, request: Request, code: str, name: str, path: str) -> HttpResponse:
        """Store the body as a file

        A file of that name is replaced, by all of it or by nothing. Folders come to be with their first file. With
        `upload` and `part` the body is one part of a file that was begun at `…/uploads`; it may be sent again."""
        user = person(request)
        number_ = number(request, "part", default=0, low=1, high=uploads.MAX_PARTS)
        upload = (
            upload_for(user, code, name, number(request, "upload", default=0, low=1, high=2**62)) if number_ else None
        )
        if upload and upload.path != path:
            raise Invalid.at("upload", message=f"This upload is of {upload.path}.")
        store = upload.datastore if upload else datastore_for(user, code, name, OPERATE)
        length = request.headers.get("Content-Length", "")
        if not length.isdecimal():
            sentence = "Say how long the file is: send Content-Length."
            return problem(request.path, HTTPStatus.LENGTH_REQUIRED, "length-required", sentence)
        with told(), TRANSFERS.enter(user.pk):
            if upload:
                uploads.add_part(upload, number_, request._request, int(length), acting_user=user)
            else:
                contents.store_file(store, path, request._request, int(length), acting_user=user)
        return HttpResponse(status=HTTPStatus.NO_CONTENT)

    @operation(
        "files_delete",
        {200: RemovalDocument, 204: None},
        parameters=[OpenApiParameter("forever", bool, description="Not into the trash: nobody can restore it.")],
    )
    def delete(self, request: Request, code: str, name: str, path: str) -> Response:
        """Remove a file; with a slash at its end a folder with everything in it

        It can be restored for seven days from `…/trash` (200), unless `forever` is said or nothing was there (204). A
        folder has at most 10,000 files for this; what is large goes there after the answer."""
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        forever = flag(request, "forever")
        with told(), LOOKS.enter(user.pk), within(contents.REMOVE_SECONDS):
            remove = trash.remove_folder if path.endswith("/") else trash.remove_file
            made = remove(store, path, acting_user=user, forever=forever)
        return Response(removal_document(made)) if made else Response(status=HTTPStatus.NO_CONTENT)

    @operation(
        "files_name",
        {201: FileDocument},
        request=AnotherName,
        examples=[OpenApiExample("A new name", request_only=True, value={"move": "models/best.keras"})],
    )
    def post(self, request: Request, code: str, name: str, path: str) -> Response:
        """Move or copy a file within its datastore

        409 when there is a file of that name already."""
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        # Reserve the place first: gateways stream this body, too.
        with told(), TRANSFERS.enter(user.pk):
            wanted = parse(AnotherName, request.data)
            to = wanted.move or wanted.copy_to or ""
            made = contents.copy_file(store, path, to, acting_user=user, move=wanted.move is not None)
        address = request.build_absolute_uri(f"{request.path.removesuffix(path)}{quote(made.path)}")
        return Response(document(made), status=HTTPStatus.CREATED, headers={"Location": address})


def _part(request: Request) -> Part | None:
    """The requested range; None for the whole file or an invalid range."""
    found = _RANGE.fullmatch(request.headers.get("Range", ""))
    if found is None:
        return None
    first, last = (int(word) if word else None for word in found.groups())
    backwards = first is not None and last is not None and last < first
    return None if backwards or (first is None and last is None) else Part(first, last)


def document(entry: Entry) -> dict[str, Any]:
    is_file = not entry.is_folder
    return FileDocument.of(
        entry,
        kind="file" if is_file else "folder",
        size=entry.size if is_file else None,
        etag=entry.etag if is_file else None,
    ).json_value()


def removal_document(row: Removal) -> dict[str, Any]:
    kind = "folder" if row.is_folder else "file"
    return RemovalDocument.of(row, kind=kind, message=row.trouble, removed=row.removed_at).json_value()


@contextmanager
def told() -> Iterator[None]:
    """Converts errors of a datastore to REST errors."""
    try:
        yield
    except NoSuchPart:
        raise
    except NotThere as error:
        raise Http404(str(error)) from error
    except NotPossible as error:
        raise Conflict(str(error)) from error
    except DriverError as error:
        raise Unavailable(str(error)) from error
