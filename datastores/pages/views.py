"""Pages of datastores: the list, the form of each kind with its test, and the buttons. Pages of files are in files/pages.py."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST
from django_htmx.http import HttpResponseClientRedirect, trigger_client_event

from datastores import actions, extension_points, sharing
from datastores.access import datastore_for, datastores_for
from datastores.models import Datastore
from datastores.pages.forms import FORMS, DatastoreForm, SharingForm
from datastores.storage.access import buckets_of, inside
from portal.access import MANAGE, OPERATE, appcodes_for, may, require_somewhere, roles_of
from portal.errors import Conflict, FieldError, Invalid
from portal.models import Appcode, User
from portal.pages import layout
from portal.pages.appcodes import get_or_post, person, safe_next
from portal.pages.forms import show_errors
from portal.search import Kind, Verb

KINDS = (("s3", "S3"), ("nfs", "NFS"), ("volume", "Volume"), ("local", "Folder of this machine"))


@require_GET
def volume_cost(request: HttpRequest) -> HttpResponse:
    """The fragment of a volume's form with its price, updated while the user types."""
    code, size = (request.GET.get(name, "").strip() for name in ("appcode", "size"))
    appcode = appcodes_for(person(request), OPERATE).filter(code=code[:63].replace("\0", "")).first()
    found = extension_points.estimate(appcode, size) if appcode else None
    return render(request, "datastores/_cost.html", {"cost": found})


@require_GET
def datastores(request: HttpRequest) -> HttpResponse:
    user, code = person(request), layout.selected_appcode(request)
    rows = datastores_for(user)
    if code:
        rows = rows.filter(appcode__code=code)
    if kind := request.GET.get("kind"):
        rows = rows.filter(kind=kind)
    found, following = layout.page_of(
        request, layout.matching(rows, layout.words(request), "name", "appcode__code"), "-id"
    )
    uses, roles, buckets, parts = extension_points.uses_of(found), roles_of(user), buckets_of(found), inside(found)
    mine = set(appcodes_for(user, OPERATE).values_list("pk", flat=True))
    page = {
        # Readers of a shared datastore must not see who else uses it.
        "rows": [
            (store, uses[store.pk], store.appcode_id in mine, None, buckets.get(store.pk), parts.get(store.pk))
            if roles is None or store.appcode_id in roles
            else (store, (), False, "shared", None, None)
            for store in found
        ],
        "next_cursor": following,
        "kinds": KINDS,
        "may_create": bool(mine),
        "narrowed": bool(code or kind or layout.words(request)),
    }
    return render(request, "datastores/list.html", page)


@get_or_post
def new_datastore(request: HttpRequest) -> HttpResponse:
    user, kind = person(request), request.GET.get("kind", "s3")
    if kind not in FORMS:
        raise Http404("There is no such kind of datastore.")
    require_somewhere(user, OPERATE)
    appcodes = list(appcodes_for(user, OPERATE).filter(state=Appcode.State.ACTIVE))
    form = FORMS[kind](
        request.POST if request.method == "POST" else None, appcodes=appcodes, chosen=layout.selected_appcode(request)
    )

    def save() -> Datastore:
        return actions.create_datastore(form.manifest(), acting_user=user)

    def test() -> actions.Outcome:
        return actions.try_manifest(form.manifest(), acting_user=user, store=None)

    return _edit(request, form, None, save, test)


@get_or_post
def change_datastore(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    form = FORMS[store.kind](request.POST if request.method == "POST" else None, appcodes=[store.appcode], store=store)

    def save() -> Datastore:
        return actions.change_datastore(store, form.manifest(), acting_user=user)

    def test() -> actions.Outcome:
        return actions.try_manifest(form.manifest(), acting_user=user, store=store)

    return _edit(request, form, store, save, test)


@require_POST
def test_datastore(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Tests the connection. For htmx it returns the result as the list shows it."""
    store = datastore_for(person(request), appcode, name, OPERATE)
    try:
        outcome = actions.try_datastore(store, acting_user=person(request))
    except Conflict as conflict:
        messages.error(request, str(conflict))
    else:
        if request.htmx:  # type: ignore[attr-defined]
            store.refresh_from_db()
            page = {"store": store, "told": outcome.message, "bucket": buckets_of([store]).get(store.pk), "new": True}
            return render(request, "datastores/_test_result.html", page)
        (messages.success if outcome.ok else messages.error)(request, f"{store.name}: {outcome.message}")
    return redirect(safe_next(request, address(store)))


@get_or_post
def delete_datastore(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Deletes at once if no data is lost; otherwise shows a page that asks for the name."""
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    named = request.POST.get("name", "").strip()
    if request.method == "GET" or (store.made and "name" not in request.POST):
        return _ask_name(request, store)
    done = f"{store.name} is deleted" + (
        " with its data." if store.made else f". Its files are still at {store.where}."
    )
    if store.kind == Datastore.Kind.VOLUME and not store.made:
        done = f"{store.name} is deleted. Its volume had not been made."
    try:
        actions.delete_datastore(store, acting_user=user, named=named)
    except Invalid as error:
        return _ask_name(request, store, wrong=" ".join(item.message for item in error.errors))
    except Conflict as conflict:
        messages.error(request, str(conflict))
        return redirect(address(store))
    messages.success(request, done)
    return redirect("datastores")


def _ask_name(request: HttpRequest, store: Datastore, wrong: str = "") -> HttpResponse:
    return render(request, "datastores/delete.html", {"store": store, "wrong": wrong})


def address(store: Datastore, folder: str = "") -> str:
    query = "?" + urlencode({"folder": folder}, safe="/") if folder else ""
    return reverse("datastore", args=[store.appcode.code, store.name]) + query


@get_or_post
def share_datastore(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    store = datastore_for(user, appcode, name, MANAGE)
    now = sharing.readers_of(store)
    shown = {"appcodes": " ".join(now.appcodes), "lines": " ".join(now.lines), "everybody": now.everybody}
    form = SharingForm(request.POST if request.method == "POST" else None, initial=shown)
    if request.method == "POST" and form.is_valid():
        said = form.cleaned_data
        wanted = sharing.Readers(
            tuple(sharing.named(said["appcodes"])), tuple(sharing.named(said["lines"])), said["everybody"]
        )
        try:
            readers = sharing.share(store, wanted, acting_user=user)
        except Invalid as error:
            show_errors(form, error, {field: field for field in form.fields})
        else:
            messages.success(request, f"{store.name} is read by {readers.words}.")
            return redirect(address(store))
    return render(request, "datastores/sharing.html", {"store": store, "form": form})


KIND = Kind(
    "Datastores", "datastore", datastores_for, lambda found: reverse("datastore", args=[found.under, found.name]),
    state="kind", listing="datastores",
    verbs=(
        Verb("Trash of", Q(), lambda found: reverse("datastore_trash", args=[found.under, found.name]), operates=True),
        Verb("Change", Q(), lambda found: reverse("change_datastore", args=[found.under, found.name]), operates=True),
    ),
)  # fmt: skip


def _edit(
    request: HttpRequest,
    form: DatastoreForm,
    store: Datastore | None,
    save: Callable[[], Datastore],
    test: Callable[[], actions.Outcome],
) -> HttpResponse:
    """Shows the form, tests the input, or saves it. For htmx it only returns what changed: a secret is never sent back."""
    said = ""
    if request.method == "POST":
        try:
            if "test" in request.POST:
                outcome = test()
                if not outcome.ok:
                    raise Invalid([FieldError(outcome.path, outcome.message)])
                said = outcome.message
            else:
                saved = save()
                messages.success(request, f"{saved.name} is saved.")
                return _to(request, address(saved))
        except Invalid as error:
            show_errors(form, error, form.paths())
    page = {"form": form, "store": store, "kind": form.kind, "kinds": KINDS, "said": said}
    if not request.htmx:  # type: ignore[attr-defined]
        return render(request, "datastores/edit.html", page)
    wrong = {name: " ".join(map(str, errors)) for name, errors in form.errors.items() if name in form.fields}
    return trigger_client_event(render(request, "datastores/_outcome.html", page), "form:wrong", {"fields": wrong})


def _to(request: HttpRequest, url: str) -> HttpResponse:
    return HttpResponseClientRedirect(url) if request.htmx else HttpResponseRedirect(url)  # type: ignore[attr-defined]


def may_operate(user: User, store: Datastore) -> bool:
    return may(user, store.appcode, OPERATE)
