"""Downloads for pages and programs: an attachment without a type, streamed in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from posixpath import basename, commonpath

from django.http import Http404, StreamingHttpResponse
from django.utils.http import content_disposition_header
from zipstream import ZipStream

from datastores.actions import open_store
from datastores.drivers.base import Content, Entry, NotThere, Part
from datastores.drivers.patience import within
from datastores.files import contents
from datastores.models import Datastore
from portal.models import User
from portal.web.limits import TRANSFERS, Sending

# Seconds for a datastore's first response, and for listing all files of a folder.
LOOK_SECONDS, COUNT_SECONDS = 20, 60


def download(
    store: Datastore, path: str, user: User, part: Part | None = None, *, unless_changed: str = ""
) -> StreamingHttpResponse:
    """The bytes of a file or range; the whole file if its ETag is no longer `unless_changed`. Its place is freed when
    the last byte is sent or the client is gone. Raises Http404, NoSuchPart, DriverError, Unavailable."""
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
    """Files and folders (trailing slash) as one archive. Raises Http404, Conflict, DriverError, Unavailable."""
    # Named after what it has, or after the folder in which all of that lies.
    name = basename(commonpath([path.strip("/") for path in paths]))
    return download_packed(lambda: contents.archive(store, paths), f"{name or store.name}.zip", user)


def download_packed(pack: Callable[[], ZipStream], name: str, user: User) -> StreamingHttpResponse:
    """The archive that `pack` returns. Raises Http404, Conflict, DriverError, Unavailable."""
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
    """Call it last: if a value from the server is invalid in a header before this, `held` frees the place."""
    response.streaming_content = Sending(chunks, held.pop_all().close)
    return response


def etag_header(of: Content | Entry) -> dict[str, str]:
    """Empty if the server sends no ETag: an empty ETag would make all files look the same."""
    return {"ETag": f'"{of.etag}"'} if of.etag else {}
