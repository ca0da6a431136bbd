"""A file on its way out, to a page or to a program: an attachment of no type, in pieces, never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from http import HTTPStatus

from django.http import Http404, StreamingHttpResponse
from django.utils.http import content_disposition_header
from zipstream import ZipStream

from datastores.actions import open_store
from datastores.drivers.base import Content, Entry, NotThere, Part
from datastores.drivers.patience import within
from datastores.files import contents
from datastores.models import Datastore
from portal.limits import TRANSFERS, Sending
from portal.models import User

# How long the first answer of a datastore may take, and to list all files of a folder.
LOOK_SECONDS, COUNT_SECONDS = 20, 60


def download(
    store: Datastore, path: str, user: User, part: Part | None = None, *, unless_changed: str = ""
) -> StreamingHttpResponse:
    """The bytes of a file, or of a part of it; the whole file where its ETag is not `unless_changed` any more. Its place is free
    again when the last byte is sent or the reader is gone. Raises Http404, NoSuchPart, DriverError, Unavailable."""
    driver = open_store(store)
    with ExitStack() as held:
        held.enter_context(TRANSFERS.enter(user.pk))
        with within(LOOK_SECONDS):
            try:
                if part and unless_changed and etag_header(driver.look(path)).get("ETag") != unless_changed:
                    part = None
                content = driver.open(path, part)
            except NotThere as error:
                raise Http404(str(error)) from error
        response = _attachment(path.rpartition("/")[2], content.size)
        for name, value in {"Accept-Ranges": "bytes", **etag_header(content)}.items():
            response[name] = value
        if content.size < content.total:
            response.status_code = HTTPStatus.PARTIAL_CONTENT
            last = content.start + content.size - 1
            response["Content-Range"] = f"bytes {content.start}-{last}/{content.total}"
        return _filled(response, content.chunks, held)


def download_many(store: Datastore, paths: Sequence[str], user: User) -> StreamingHttpResponse:
    """Files and folders (with a slash at the end) as one archive. Raises Http404, Conflict, DriverError, Unavailable."""
    name = paths[0].strip("/").rpartition("/")[2] if len(paths) == 1 else ""
    return download_packed(lambda: contents.archive(store, paths), f"{name or store.name}.zip", user)


def download_packed(pack: Callable[[], ZipStream], name: str, user: User) -> StreamingHttpResponse:
    """An archive that `pack` begins. Raises Http404, Conflict, DriverError, Unavailable."""
    with ExitStack() as held:
        held.enter_context(TRANSFERS.enter(user.pk))
        with within(COUNT_SECONDS):
            try:
                packed = pack()
            except NotThere as error:
                raise Http404(str(error)) from error
        response = _attachment(name, len(packed))
        return _filled(response, iter(packed), held)


def _attachment(name: str, size: int) -> StreamingHttpResponse:
    response = StreamingHttpResponse(content_type="application/octet-stream")
    response["Content-Disposition"] = content_disposition_header(True, name)
    response["Content-Length"] = str(size)
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "private, no-store"
    return response


def _filled(response: StreamingHttpResponse, chunks: Iterator[bytes], held: ExitStack) -> StreamingHttpResponse:
    """The last step: until then a server that says of its file what no header can hold costs no place."""
    response.streaming_content = Sending(chunks, held.pop_all().close)
    return response


def etag_header(of: Content | Entry) -> dict[str, str]:
    """Nothing where the server names none: an empty one would say that all files are the same."""
    return {"ETag": f'"{of.etag}"'} if of.etag else {}
