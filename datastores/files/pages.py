"""Pages of a datastore's files: one page per folder, uploads and downloads.

Files belong to users and may contain anything, so the portal never renders them: each is sent as an attachment without
a type and with nosniff. Bytes are streamed; no file is in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

from csp.decorators import csp_update
from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from datastores import extension_points, sharing
from datastores.access import datastore_for, upload_for, version_for
from datastores.actions import open_store
from datastores.drivers.base import DriverError, Listing, NotPossible, NotThere
from datastores.drivers.patience import within
from datastores.files import contents, previews, trash, uploads, versions
from datastores.files.downloads import COUNT_SECONDS, LOOK_SECONDS, download, download_many
from datastores.models import TRASH_KEPT, Datastore, Removal
from datastores.pages.forms import RenameForm
from datastores.pages.views import address, may_operate
from datastores.storage.access import inside
from portal.access import MANAGE, OPERATE, VIEW, may
from portal.api.problems import Unavailable
from portal.assets import has_parquet
from portal.errors import Conflict, Invalid, sentence
from portal.pages import layout
from portal.pages.appcodes import get_or_post, person, safe_next
from portal.web.limits import LOOKS, TRANSFERS

ROWS = 200
MAX_CURSOR = 2000
# Without JavaScript a file is first written to our own disk.
PLAIN_UPLOAD_BYTES = 100 * 2**20


@require_GET
def browse(request: HttpRequest, appcode: str, name: str) -> HttpResponseBase:
    user = person(request)
    store = datastore_for(user, appcode, name)
    folder = _path(request, "folder")
    operates, is_member = may_operate(user, store), may(user, store.appcode, VIEW)
    page: dict[str, Any] = {
        "store": store,
        "folder": folder,
        "folder_name": folder.rpartition("/")[2],
        "remote": "/".join(part for part in (store.spec.get("bucket"), store.spec.get("prefix"), folder) if part),
        "crumbs": _crumbs(store, folder),
        "uses": extension_points.uses_of([store])[store.pk] if is_member else (),
        "writer": extension_points.writer_of(store, folder) if is_member else None,
        "parts": inside([store]).get(store.pk) if is_member else None,
        "is_shared": not is_member,
        "readers": sharing.readers_of(store) if is_member else None,
        "may_share": store.kind == Datastore.Kind.S3 and may(user, store.appcode, MANAGE),
        "may_operate": operates,
        "unfinished": uploads.unfinished(store) if operates else (),
        "trash": trash.held(store) if operates else None,
        "rules": store.rules.count() if operates else 0,
        "versions": list(store.versions.select_related("created_by").order_by("-pk")),
        "listing": Listing(()),
        "below": "below" in request.GET,
        "cost": extension_points.estimate(store.appcode, store.size) if store.size else None,
        "largest": settings.UPLOAD_MAX_BYTES,
    }
    cursor, words = request.GET.get("cursor", "")[:MAX_CURSOR].replace("\0", ""), layout.words(request)
    try:
        with LOOKS.enter(user.pk), within(LOOK_SECONDS):
            if words or page["below"]:
                search = contents.find if page["below"] else contents.find_here
                matches = search(store, folder, words, ROWS)
                if not (page["below"] or matches.entries):
                    # Nothing here: it may be in a folder below.
                    page["below"] = page["not_here"] = True
                    matches = contents.find(store, folder, words, ROWS)
                page["matches"] = matches
                page["listing"] = Listing(matches.entries)
            else:
                page["listing"] = open_store(store).list(folder, cursor=cursor, limit=ROWS)
        page["next_cursor"] = page["listing"].cursor
    except NotPossible as error:
        page["impossible"] = str(error)
    except (DriverError, Unavailable) as error:
        page["trouble"] = str(error)
    if not (operates and store.kind == Datastore.Kind.S3):
        return render(request, "datastores/browse.html", page)
    # The browser sends parts of large files directly to the store, if its CORS rules allow that.
    server = urlsplit(store.spec["server"])

    @csp_update({"connect-src": [f"{server.scheme}://{server.netloc}"]})
    def direct(request: HttpRequest) -> HttpResponse:
        return render(request, "datastores/browse.html", page | {"direct": True})

    return direct(request)


@require_GET
def sizes(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """A fragment with the size of a folder and of each folder in it."""
    user = person(request)
    store = datastore_for(user, appcode, name)
    page: dict[str, Any] = {"store": store, "folder": _path(request, "folder")}
    try:
        with LOOKS.enter(user.pk), within(COUNT_SECONDS):
            page["sizes"] = found = contents.sizes(store, page["folder"])
        largest = sorted(found.folders.items(), key=lambda each: each[1].size, reverse=True)
        page |= {"folders": largest[:ROWS], "left": len(largest[ROWS:])}
    except (DriverError, Unavailable) as error:
        page["trouble"] = str(error)
    return render(request, "datastores/_sizes.html", page)


@require_GET
def preview(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """A preview of the beginning of a file."""
    user = person(request)
    store = datastore_for(user, appcode, name)
    path = _path(request, "path")
    try:
        with LOOKS.enter(user.pk), within(LOOK_SECONDS):
            driver = open_store(store)
            entry = driver.look(path)
            most = previews.wanted(entry.name)
            data = driver.read_range(path, 0, min(most, entry.size)) if most else b""
    except NotThere as error:
        raise Http404(str(error)) from error
    except (DriverError, Unavailable) as error:
        return _back(request, store, path, error)
    page = {
        "store": store,
        "entry": entry,
        "crumbs": _crumbs(store, path),
        "writer": extension_points.writer_of(store, path.rpartition("/")[0])
        if may(user, store.appcode, VIEW)
        else None,
        "may_operate": may_operate(user, store),
        "shown": previews.preview(entry.name, data, entry.size),
        "has_parquet": has_parquet(),
    }
    return render(request, "datastores/preview.html", page)


@require_GET
def parquet_worker(request: HttpRequest) -> HttpResponse:
    """The script that reads Parquet files in the browser. Its own policy lets it load its code and nothing else. It is
    a worker, not a frame, so that it can be terminated if a file keeps it busy, and has no document to attack."""
    script = f'import "{static("datastores/parquet.js")}";\n'
    policy = {"Content-Security-Policy": "default-src 'none'; script-src 'self'", "X-Content-Type-Options": "nosniff"}
    return HttpResponse(script, content_type="text/javascript", headers=policy)


@require_GET
def file(request: HttpRequest, appcode: str, name: str) -> HttpResponseBase:
    """`?path=` downloads a file, `?folder=` a folder with its contents as an archive."""
    user = person(request)
    store = datastore_for(user, appcode, name)
    path, folder = _path(request, "path"), _path(request, "folder")
    try:
        return download(store, path, user) if path else download_many(store, [f"{folder}/"], user)
    except (DriverError, Conflict, Unavailable) as error:
        return _back(request, store, path or folder, error)


@csrf_exempt
@require_http_methods(["POST", "PUT"])
def upload(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """PUT stores the body as one file and answers JSON to the page's script; POST is the form of browsers without
    JavaScript. Gateways stream these bodies. So nothing is read before the user, their rights, a form's size and a free
    place have been checked; this determines the order below."""
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    is_form = request.method == "POST"
    if is_form and int(request.META.get("CONTENT_LENGTH") or 0) > PLAIN_UPLOAD_BYTES:
        messages.error(
            request, f"That is more than {PLAIN_UPLOAD_BYTES // 2**20} MiB; switch JavaScript on to send it."
        )
        return redirect(address(store))
    try:
        with TRANSFERS.enter(user.pk):
            return _upload(request, store) if is_form else _put(request, store)
    except Unavailable as error:
        return _back(request, store, "", error) if is_form else _refused(str(error), HTTPStatus.SERVICE_UNAVAILABLE)


@csrf_protect
def _upload(request: HttpRequest, store: Datastore) -> HttpResponse:
    folder = request.POST.get("folder", "").strip("/")
    stored = 0
    try:
        for each in request.FILES.getlist("files"):
            assert isinstance(each, UploadedFile)
            path = f"{folder}/{each.name}" if folder else str(each.name)
            contents.store_file(store, path, each, each.size or 0, acting_user=person(request))
            stored += 1
    except Invalid as error:
        messages.error(request, sentence(error))
        folder = ""
    except (Conflict, DriverError) as error:
        messages.error(request, str(error))
    if stored:
        messages.success(request, f"{stored} file{'s'[: stored != 1]} stored.")
    return redirect(address(store, folder))


@require_POST
def drop_upload(request: HttpRequest, appcode: str, name: str, upload: int) -> HttpResponse:
    """Drops an unfinished upload."""
    user = person(request)
    found = upload_for(user, appcode, name, upload)
    try:
        with LOOKS.enter(user.pk), within(LOOK_SECONDS):
            uploads.drop(found, acting_user=user)
        messages.success(request, f"The upload of {found.path} is dropped.")
    except (DriverError, Unavailable) as error:
        messages.error(request, str(error))
    return redirect(address(found.datastore, found.path.rpartition("/")[0]))


@require_POST
def chosen(request: HttpRequest, appcode: str, name: str) -> HttpResponseBase:
    """Downloads or removes the selected files and folders (trailing slash)."""
    user, removes = person(request), request.POST.get("do") == "remove"
    store = datastore_for(user, appcode, name, OPERATE if removes else VIEW)
    paths = [f"{checked}{'/' if path.endswith('/') else ''}" for path in request.POST.getlist("paths")[:ROWS]
             if (checked := _checked(path))]  # fmt: skip
    back = redirect(address(store, _checked(request.POST.get("folder", ""))))
    if not paths:
        messages.error(request, "Choose files or folders first.")
        return back
    removed = list[Removal]()
    try:
        if not removes:
            return download_many(store, paths, user)
        with LOOKS.enter(user.pk), within(contents.REMOVE_SECONDS):
            for path in paths:
                remove = trash.remove_folder if path.endswith("/") else trash.remove_file
                if made := remove(store, path, acting_user=user):
                    removed.append(made)
    except (DriverError, Conflict, Unavailable) as error:
        messages.error(request, str(error))
    _say_removed(request, store, removed)
    return back


@get_or_post
def rename(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Moves or copies the file `?path=` within the datastore."""
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    path = _path(request, "path")
    is_sent, move = request.method == "POST", "copy" not in request.POST
    form = RenameForm(request.POST if is_sent else None, initial={"to": path})
    if is_sent and form.is_valid():
        try:
            with TRANSFERS.enter(user.pk):
                made = contents.copy_file(store, path, form.cleaned_data["to"], acting_user=user, move=move)
        except Invalid as error:
            form.add_error("to", sentence(error))
        except (DriverError, Conflict, Unavailable) as error:
            form.add_error("to", str(error))
        else:
            messages.success(
                request, f"{path} is {'called' if move else 'copied to'} {made.path}{' now' if move else ''}."
            )
            return redirect(address(store, made.path.rpartition("/")[0]))
    page = {"store": store, "path": path, "form": form, "back": address(store, path.rpartition("/")[0])}
    return render(request, "datastores/rename.html", page)


@get_or_post
def remove(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Asks first, showing what will be removed. `?path=` is a file, `?folder=` a folder with its contents; removing a
    folder for good requires typing its name."""
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    path, folder = _path(request, "path"), _path(request, "folder")
    if not path and not folder:
        raise Http404("Nothing is named that could be removed.")
    back = address(store, (path or folder).rpartition("/")[0])
    forever = "forever" in request.POST
    is_unnamed = forever and folder and request.POST.get("name", "").strip().strip("/") != folder
    asks = request.method == "GET" or is_unnamed
    try:
        with LOOKS.enter(user.pk), within(LOOK_SECONDS if asks else contents.REMOVE_SECONDS):
            if asks:
                amount = None if path else contents.amount(store, folder)
            else:
                remove = trash.remove_file if path else trash.remove_folder
                made = remove(store, path or folder, acting_user=user, forever=forever)
                if made:
                    _say_removed(request, store, [made])
                else:
                    messages.success(request, f"{path or folder} is gone{' for good' if forever else ''}.")
    except (DriverError, Conflict, Unavailable) as error:
        messages.error(request, str(error))
        return redirect(back)
    if not asks:
        return redirect(back)
    page = {"store": store, "path": path, "folder": folder, "amount": amount, "back": back, "kept": TRASH_KEPT.days}
    page["wrong"] = f"Type {folder}, the name of the folder; nothing was removed." if is_unnamed else ""
    return render(request, "datastores/remove.html", page)


@require_GET
def trash_page(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Removals, newest first."""
    store = datastore_for(person(request), appcode, name, OPERATE)
    rows, following = layout.page_of(request, trash.removals(store), "-pk")
    page = {"store": store, "rows": rows, "next_cursor": following, "held": trash.held(store), "kept": TRASH_KEPT.days}
    return render(request, "datastores/trash.html", page)


@require_POST
def restore(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Restores the removals in `?id=` (repeatable): the Undo of a removal, and the button of the trash."""
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    try:
        with LOOKS.enter(user.pk), within(contents.REMOVE_SECONDS):
            left = trash.restore(store, _ids(request), acting_user=user)
        for row in left:
            if row.settled:
                messages.warning(request, f"{row.path}: {row.trouble}")
            else:
                messages.info(request, f"{row.path} is on its way back.")
        if not left:
            messages.success(request, "Restored.")
    except (DriverError, Conflict, Unavailable) as error:
        messages.error(request, str(error))
    return redirect(safe_next(request, address(store)))


@require_POST
def empty_trash(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Empties all of it, or the removals in `?id=`. JavaScript's dialog sends `confirmed`; without it the first POST
    shows the question."""
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    if "confirmed" not in request.POST:
        return render(request, "datastores/empty_trash.html", {"store": store, "chosen": "id" in request.GET})
    try:
        count = trash.empty(store, _ids(request) if "id" in request.GET else None, acting_user=user)
        messages.success(request, f"{count} removed for good; it takes a minute.")
    except Conflict as error:
        messages.error(request, str(error))
    return redirect("datastore_trash", appcode, name)


def _ids(request: HttpRequest) -> list[int]:
    return [
        int(word) for word in request.GET.getlist("id")[:ROWS] if word.isascii() and word.isdigit() and len(word) < 19
    ]


def _say_removed(request: HttpRequest, store: Datastore, rows: Sequence[Removal]) -> None:
    """Adds a message with an Undo button."""
    if not rows:
        return
    what = rows[0].path if len(rows) == 1 else f"{len(rows)} files or folders"
    said = f"{what} {'is' if len(rows) == 1 else 'are'} in the trash for {TRASH_KEPT.days} days."
    undo = reverse("datastore_restore", args=(store.appcode.code, store.name))
    query = urlencode(
        {"id": [row.pk for row in rows], "next": address(store, rows[0].path.rpartition("/")[0])}, doseq=True
    )
    button = '{} <button class="btn btn-small" form="post" formaction="{}?{}">Undo</button>'
    messages.success(request, format_html(button, said, undo, query))


@require_POST
def freeze(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    folder, called = request.POST.get("folder", ""), request.POST.get("name", "").strip()
    try:
        with LOOKS.enter(user.pk), within(COUNT_SECONDS):
            made = versions.freeze(store, called or f"{timezone.now():%Y-%m-%d}", folder, acting_user=user)
    except Invalid as invalid:
        messages.error(request, sentence(invalid))
    except (Conflict, DriverError, Unavailable) as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{made} is kept as it is: {made.files:,} files.")
    return redirect(address(store, folder))


@require_POST
def thaw(request: HttpRequest, appcode: str, name: str, version: str) -> HttpResponse:
    user = person(request)
    found = version_for(user, appcode, name, version, OPERATE)
    try:
        versions.thaw(found, acting_user=user)
    except Conflict as conflict:
        messages.error(request, str(conflict))
    else:
        messages.success(request, f"Version {version} is removed; its files stay.")
    return redirect(address(found.datastore, found.folder))


def _back(request: HttpRequest, store: Datastore, path: str, error: Exception) -> HttpResponse:
    """Redirects to the folder of `path` with the error as a message."""
    messages.error(request, str(error))
    return redirect(address(store, path.rpartition("/")[0]))


@csrf_protect
def _put(request: HttpRequest, store: Datastore) -> HttpResponse:
    length = request.headers.get("Content-Length", "")
    if not length.isdecimal():
        return _refused("The browser did not say how large the file is.", HTTPStatus.LENGTH_REQUIRED)
    try:
        contents.store_file(store, request.GET.get("path", ""), request, int(length), acting_user=person(request))
    except Invalid as error:
        return _refused(sentence(error), HTTPStatus.UNPROCESSABLE_ENTITY)
    except Conflict as error:
        return _refused(str(error), HTTPStatus.CONFLICT)
    except DriverError as error:
        return _refused(str(error), HTTPStatus.BAD_GATEWAY)
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


def _refused(sentence: str, status: HTTPStatus) -> JsonResponse:
    return JsonResponse({"detail": sentence}, status=status)


def _path(request: HttpRequest, name: str) -> str:
    """A valid path from the query string; raises Http404."""
    return _checked(request.GET.get(name, ""))


def _checked(path: str) -> str:
    """Raises Http404 for an invalid path."""
    try:
        return contents.checked_path(path)
    except Invalid as error:
        raise Http404("There is no such path in a datastore.") from error


def _crumbs(store: Datastore, folder: str) -> list[tuple[str, str]]:
    """(name, URL) of the datastore and of every folder above this one."""
    words = folder.split("/") if folder else []
    above = [(words[n], address(store, "/".join(words[: n + 1]))) for n in range(len(words) - 1)]
    return [(store.name, address(store)), *above] if words else []
