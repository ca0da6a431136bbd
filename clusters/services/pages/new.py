"""The form that creates or changes a service, with its live preview and cost."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.catalog.lookup import usable_appcode
from clusters.cluster.form.new import curl, offer_of
from clusters.frame.names import free_name
from clusters.services import actions, checks
from clusters.services.access import service_for, services_for
from clusters.services.manifest import MAX_SERVICE_NAME, ServiceManifest, ServiceSpec
from clusters.services.models import Service
from clusters.services.pages.capacity import takes
from clusters.services.pages.form import ServiceForm, fields_of, short_document
from clusters.services.summary import address
from portal.access import OPERATE, require_somewhere
from portal.errors import Invalid
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode, words


@require_http_methods(["GET", "HEAD", "POST"])
def new_service(request: HttpRequest) -> HttpResponse:
    """`?appcode=&model=` prefill the form from a model's page, `?clone=APPCODE/NAME` from another service."""
    user = person(request)
    require_somewhere(user, OPERATE)
    if request.method != "POST":
        filled = _filled(request, user)
        form = ServiceForm(offer_of(user, filled.get("appcode") or selected_appcode(request)), initial=filled)
        return _page(request, form)
    form = ServiceForm(offer_of(user, request.POST.get("appcode", "").replace("\0", "")[:63]), request.POST)
    made = form.attempt(lambda manifest: actions.create_service(manifest, acting_user=user))
    if made is None:
        return _page(request, form)
    messages.success(request, f"{made.name} is being started. Its address answers as soon as it is ready.")
    return redirect("service", made.appcode.code, made.name)


@require_http_methods(["GET", "HEAD", "POST"])
def change_service(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    service = service_for(user, appcode, name, OPERATE)
    form = _form_of(service, user, request)
    if form.attempt(lambda manifest: actions.change_service(service, manifest, acting_user=user)) is None:
        return _page(request, form, service)
    messages.success(request, f"{name} is changed.")
    return redirect("service", appcode, name)


@require_POST
def preview_service(request: HttpRequest) -> HttpResponse:
    """The right column: resources, fit and cost. Writes nothing. `?change=APPCODE/NAME` is the changed service."""
    user = person(request)
    code, _, name = words(request, "change").partition("/")
    service = service_for(user, code, name, OPERATE) if name else None
    form = (
        _form_of(service, user, request)
        if service
        else ServiceForm(offer_of(user, request.POST.get("appcode", "").replace("\0", "")[:63]), request.POST)
    )
    found = form.attempt(lambda manifest: _preview(request, manifest, user, service))
    context = {"form": form, "service": service, "manifest": None, **(found or {}), **form.complaints()}
    return render(request, "clusters/services/_preview.html", context)


def _preview(request: HttpRequest, manifest: ServiceManifest, user: User, service: Service | None) -> dict[str, Any]:
    spec, code, name = manifest.spec, manifest.metadata.appcode, manifest.metadata.name
    appcode = usable_appcode(code, user)
    version = checks.judge(name, spec, appcode)
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


def _form_of(service: Service, user: User, request: HttpRequest) -> ServiceForm:
    offer = offer_of(user, service.appcode.code)
    filled = fields_of(service.name, service.appcode.code, ServiceSpec.stored(service.spec))
    form = ServiceForm(offer, request.POST if request.method == "POST" else None, initial=filled)
    form.fix("name", "appcode")
    return form


def _filled(request: HttpRequest, user: User) -> dict[str, Any]:
    """Initial values of a new form. Raises Http404."""
    if source := words(request, "clone"):
        code, _, name = source.partition("/")
        found = service_for(user, code, name)
        return fields_of(_free(user, name), code, ServiceSpec.stored(found.spec))
    filled: dict[str, Any] = {"appcode": words(request, "appcode"), "model": words(request, "model")}
    if filled["model"]:
        filled["name"] = _free(user, re.split("[@/]", filled["model"])[0])
    return filled


def _free(user: User, name: str) -> str:
    """`name`, or the first of name-2, name-3, … that none of the user's visible services has."""
    taken = services_for(user).filter(name__startswith=name[: MAX_SERVICE_NAME - 4]).values_list("name", flat=True)
    return free_name(name, set(taken), MAX_SERVICE_NAME)


def _page(request: HttpRequest, form: ServiceForm, service: Service | None = None) -> HttpResponse:
    return render(request, "clusters/services/new.html", {"form": form, "service": service})
