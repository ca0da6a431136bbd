"""The form of a new service, the same one that changes a service, and what it would take and cost while one types."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.models import Service
from clusters.pages.create import curl, numbered, offer_of
from clusters.pages.services.form import FIELDS, ServiceForm, fields_of, short_document
from clusters.pages.services.takes import takes
from clusters.serving import actions
from clusters.serving.access import service_for, services_for
from clusters.serving.manifest import MAX_SERVICE_NAME, ServiceManifest, ServiceSpec
from clusters.serving.shown import address
from clusters.spec.catalog import usable_appcode
from portal.access import OPERATE, require_somewhere
from portal.errors import Conflict, FieldError, Invalid
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.forms import show_errors
from portal.pages.layout import selected_appcode, words


@require_http_methods(["GET", "HEAD", "POST"])
def new_service(request: HttpRequest) -> HttpResponse:
    """`?appcode=&model=` fill it, from the page of a model; `?clone=APPCODE/NAME` with what that one says."""
    user = person(request)
    require_somewhere(user, OPERATE)
    if request.method != "POST":
        filled = _filled(request, user)
        form = ServiceForm(offer_of(user, filled.get("appcode") or selected_appcode(request)), initial=filled)
        return _page(request, form)
    form = ServiceForm(offer_of(user, request.POST.get("appcode", "").replace("\0", "")[:63]), request.POST)
    manifest = form.manifest()
    if manifest is not None:
        try:
            made = actions.create_service(manifest, acting_user=user)
        except (Invalid, PermissionDenied, Conflict) as error:
            complain(form, error)
        else:
            messages.success(request, f"{made.name} is being started. Its address answers as soon as it is ready.")
            return redirect("service", made.appcode.code, made.name)
    return _page(request, form)


@require_http_methods(["GET", "HEAD", "POST"])
def change_service(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    service = service_for(user, appcode, name, OPERATE)
    form = _form_of(service, user, request)
    if request.method == "POST" and (manifest := form.manifest()):
        try:
            actions.change_service(service, manifest, acting_user=user)
        except (Invalid, PermissionDenied, Conflict) as error:
            complain(form, error)
        else:
            messages.success(request, f"{name} is changed.")
            return redirect("service", appcode, name)
    return _page(request, form, service)


@require_POST
def preview_service(request: HttpRequest) -> HttpResponse:
    """The right column: what it takes, whether that fits now, and what it costs. `?change=APPCODE/NAME` is the service that is
    changed. Writes nothing."""
    user = person(request)
    code, _, name = words(request, "change").partition("/")
    service = service_for(user, code, name, OPERATE) if name else None
    form = (
        _form_of(service, user, request)
        if service
        else ServiceForm(offer_of(user, request.POST.get("appcode", "").replace("\0", "")[:63]), request.POST)
    )
    manifest = form.manifest()
    context: dict[str, Any] = {"form": form, "service": service, "manifest": None}
    if manifest is not None:
        try:
            context |= _preview(request, manifest, user, service)
        except (Invalid, PermissionDenied) as error:
            complain(form, error)
    names = [
        (form.fields[name].label, form[name].value(), form.errors[name][0])
        for name in form.fields
        if name in form.errors
    ]
    context |= {
        "missing": [label for label, value, _ in names if not value],
        "wrong": [(label, sentence) for label, value, sentence in names if value],
    }
    return render(request, "clusters/services/_preview.html", context)


def _preview(request: HttpRequest, manifest: ServiceManifest, user: User, service: Service | None) -> dict[str, Any]:
    spec, code, name = manifest.spec, manifest.metadata.appcode, manifest.metadata.name
    appcode = usable_appcode(code, user)
    version = actions.judge(name, spec, appcode)
    if service is None and services_for(user).filter(appcode=appcode, name=name).exists():
        raise Invalid.at("metadata", "name", message=f"{code} already has a service “{name}”; choose another name.")
    count = max(1, spec.replicas.least)
    least = takes(spec, spec.model, appcode, count)
    most = least.cost if spec.replicas.most == count else takes(spec, spec.model, appcode, spec.replicas.most).cost
    text = json.dumps(short_document(manifest), indent=2, ensure_ascii=False)
    path = f"/api/v1/appcodes/{quote(code)}/services{f'/{name}' if service else ''}"
    return {
        "version": version,
        "takes": least,
        "most": most,
        "spec": spec,
        "address": address(service) if service else "",
        "manifest": text,
        "curl": curl(request.build_absolute_uri(path), text, method="PUT" if service else "POST"),
    }


def complain(form: ServiceForm, error: Exception) -> None:
    """Puts what was refused beside its fields."""
    if isinstance(error, PermissionDenied):
        error = Invalid([FieldError(("metadata", "appcode"), str(error))])
    if isinstance(error, Invalid):
        show_errors(form, error, FIELDS)
    else:
        form.add_error(None, str(error))


def _form_of(service: Service, user: User, request: HttpRequest) -> ServiceForm:
    offer = offer_of(user, service.appcode.code)
    filled = fields_of(service.name, service.appcode.code, ServiceSpec.model_validate(service.spec))
    form = ServiceForm(offer, request.POST if request.method == "POST" else None, initial=filled)
    form.fix("name", "appcode")
    return form


def _filled(request: HttpRequest, user: User) -> dict[str, Any]:
    """Raises Http404."""
    if source := words(request, "clone"):
        code, _, name = source.partition("/")
        found = service_for(user, code, name)
        return fields_of(_free(user, name), code, ServiceSpec.model_validate(found.spec))
    filled: dict[str, Any] = {"appcode": words(request, "appcode"), "model": words(request, "model")}
    if filled["model"]:
        filled["name"] = _free(user, re.split("[@/]", filled["model"])[0])
    return filled


def _free(user: User, name: str) -> str:
    """`name`, or the first of name-2, name-3, … that no service they see has."""
    taken = services_for(user).filter(name__startswith=name[: MAX_SERVICE_NAME - 4]).values_list("name", flat=True)
    return numbered(name, set(taken), MAX_SERVICE_NAME)


def _page(request: HttpRequest, form: ServiceForm, service: Service | None = None) -> HttpResponse:
    return render(request, "clusters/services/new.html", {"form": form, "service": service})
