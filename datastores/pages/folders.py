"""The folders of this machine in which datastores may lie: an administrator's list, its form and its two actions."""

from __future__ import annotations

import os
import re
from pathlib import Path

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from datastores.models import AllowedFolder, Datastore
from datastores.pages.forms import FolderForm
from datastores.specs import absolute_path
from portal.access import require_administrator
from portal.errors import FieldError, Invalid
from portal.events import record
from portal.models import Appcode, User
from portal.pages.admin import for_administrators
from portal.pages.appcodes import attempt, get_or_post, person
from portal.pages.forms import show_errors

# The machine's own folders, which are no place for data.
_SYSTEM = (
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var",
)


@transaction.atomic
def save_folder(
    folder: AllowedFolder, path: str, *, read_only: bool, codes: list[str], acting_user: User
) -> AllowedFolder:
    """Allows a folder or changes its settings. Raises Invalid at ("path",) or ("appcodes",)."""
    require_administrator(acting_user)
    errors = _wrong_path(folder, path)
    appcodes = list(Appcode.objects.filter(code__in=codes))
    if unknown := sorted(set(codes) - {appcode.code for appcode in appcodes}):
        errors.append(FieldError(("appcodes",), f"There is no appcode “{unknown[0]}”."))
    if errors:
        raise Invalid(errors)
    folder.path, folder.read_only = absolute_path(path), read_only
    folder.save()
    folder.appcodes.set(appcodes)
    who = ", ".join(sorted(codes)) or "everybody"
    how = "reading" if read_only else "reading and writing"
    record("folder.allowed", actor=acting_user, object=f"folder {folder}", message=f"Allowed for {how} by {who}.")
    return folder


@transaction.atomic
def close_folder(folder: AllowedFolder, *, acting_user: User) -> None:
    """Removes the permission. The files stay; datastores in the folder stop working."""
    require_administrator(acting_user)
    record("folder.closed", actor=acting_user, object=f"folder {folder}", message="Not allowed any more.")
    folder.delete()


@require_GET
@for_administrators
def folders(request: HttpRequest) -> HttpResponse:
    stores = list(Datastore.objects.filter(kind=Datastore.Kind.LOCAL).select_related("appcode"))
    rows = [
        (folder, [store for store in stores if folder.contains(store.spec["path"])])
        for folder in AllowedFolder.objects.prefetch_related("appcodes")
    ]
    return render(request, "datastores/admin_folders.html", {"rows": rows})


@get_or_post
@for_administrators
def edit_folder(request: HttpRequest, pk: int | None = None) -> HttpResponse:
    folder = _folder(pk) if pk else AllowedFolder()
    codes = ", ".join(folder.appcodes.values_list("code", flat=True)) if pk else ""
    form = FolderForm(
        request.POST if request.method == "POST" else None,
        initial={"path": folder.path, "read_only": folder.read_only, "appcodes": codes},
    )
    if request.method == "POST" and form.is_valid():
        typed = form.cleaned_data
        wanted = [code for code in re.split(r"[\s,;]+", typed["appcodes"]) if code]
        try:
            save_folder(
                folder, typed["path"].strip(), read_only=typed["read_only"], codes=wanted, acting_user=person(request)
            )
        except Invalid as error:
            show_errors(form, error, {name: name for name in form.fields})
        else:
            messages.success(request, f"{folder.path} is allowed.")
            return redirect("admin_folders")
    return render(request, "datastores/admin_folder.html", {"form": form, "folder": folder if pk else None})


@require_POST
@for_administrators
def delete_folder(request: HttpRequest, pk: int) -> HttpResponse:
    folder = _folder(pk)
    attempt(
        request, lambda: close_folder(folder, acting_user=person(request)), f"{folder.path} is not allowed any more."
    )
    return redirect("admin_folders")


def _wrong_path(folder: AllowedFolder, path: str) -> list[FieldError]:
    try:
        path = absolute_path(path)
    except ValueError as error:
        return [FieldError(("path",), str(error))]
    real, data = Path(os.path.realpath(path)), settings.DATA_DIR
    if str(real) in _SYSTEM or real == data or data.is_relative_to(real) or real.is_relative_to(data):
        return [FieldError(("path",), "This folder is the machine's or the portal's own; choose one made for data.")]
    if not real.is_dir():
        return [FieldError(("path",), "There is no such folder on this machine.")]
    if AllowedFolder.objects.filter(path=path).exclude(pk=folder.pk).exists():
        return [FieldError(("path",), "This folder is allowed already.")]
    return []


def _folder(pk: int) -> AllowedFolder:
    folder = AllowedFolder.objects.filter(pk=pk).first()
    if folder is None:
        raise Http404("There is no such folder.")
    return folder
