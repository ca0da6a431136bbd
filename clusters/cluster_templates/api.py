"""REST: templates of clusters, personal ones and those of an appcode."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import OpenApiExample
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.catalog.specs_in_lists import page_of_specs
from clusters.cluster_templates.actions import (
    TemplateManifest,
    change_template,
    create_template,
    delete_template,
    own_templates,
    template_for,
    templates_in,
)
from clusters.cluster_templates.models import Template
from portal.access import OPERATE, VIEW, Capability, appcode_for
from portal.api.documents import Answer, Who, page_of
from portal.api.operations import Document, created, operation
from portal.api.pagination import LIST_PARAMETERS, search
from portal.api.views import person
from portal.errors import Invalid
from portal.manifests import parse

SPEC = {
    "image": "tensorflow-2-21",
    "command": "python digits_single.py --sample --output /tmp/output",
    "roles": {"master": {"flavor": "middle-1-gpu"}},
}
EXAMPLE = OpenApiExample(
    "One task",
    request_only=True,
    value={"kind": "template", "metadata": {"name": "digits", "description": "One task"}, "spec": SPEC},
)


class TemplateStatus(Answer):
    created: dt.datetime
    created_by: Who
    changed: dt.datetime


class TemplateDocument(TemplateManifest):
    """A template: its manifest, and who saved it when."""

    status: TemplateStatus


TemplatePage = page_of("TemplatePage", TemplateDocument)


class OwnTemplates(APIView):
    """Templates that only their owner can see."""

    @operation("templates_list_own", TemplatePage, parameters=LIST_PARAMETERS)
    def get(self, request: Request) -> Response:
        """My own templates, newest first"""
        rows = search(request, own_templates(person(request)), "name", "description")
        return page_of_specs(request, rows, "spec", order="-id", render=lambda rows: [_document(row) for row in rows])

    @operation("templates_create_own", {201: TemplateDocument}, request=TemplateManifest, examples=[EXAMPLE])
    def post(self, request: Request) -> Response:
        """Save a template for me alone"""
        made = create_template(_read_own(request), None, acting_user=person(request))
        return created(request, made.name, _document(made))


class AppcodeTemplates(APIView):
    @operation("templates_list", TemplatePage, parameters=LIST_PARAMETERS)
    def get(self, request: Request, code: str) -> Response:
        """The templates of an appcode, newest first"""
        rows = search(request, templates_in(person(request), code), "name", "description")
        return page_of_specs(request, rows, "spec", order="-id", render=lambda rows: [_document(row) for row in rows])

    @operation("templates_create", {201: TemplateDocument}, request=TemplateManifest, examples=[EXAMPLE])
    def post(self, request: Request, code: str) -> Response:
        """Save a template for all members of an appcode"""
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = parse(TemplateManifest, request.data, appcode=code)
        made = create_template(manifest, appcode, acting_user=person(request))
        return created(request, made.name, _document(made))


class OwnTemplate(APIView):
    @operation("templates_read_own", TemplateDocument)
    def get(self, request: Request, name: str) -> Document:
        """A template of mine"""
        return _document(_find(request, Template.ME, name))

    @operation("templates_change_own", TemplateDocument, request=TemplateManifest, examples=[EXAMPLE])
    def put(self, request: Request, name: str) -> Document:
        """Replace a template of mine

        With another name in its metadata it is renamed."""
        found = _find(request, Template.ME, name)
        changed = change_template(found, _read_own(request, name), acting_user=person(request))
        return _document(changed)

    @operation("templates_delete_own", {204: None})
    def delete(self, request: Request, name: str) -> None:
        """Delete a template of mine"""
        delete_template(_find(request, Template.ME, name), acting_user=person(request))


class OneTemplate(APIView):
    @operation("templates_read", TemplateDocument)
    def get(self, request: Request, code: str, name: str) -> Document:
        """A template of an appcode"""
        return _document(_find(request, code, name))

    @operation("templates_change", TemplateDocument, request=TemplateManifest, examples=[EXAMPLE])
    def put(self, request: Request, code: str, name: str) -> Document:
        """Replace a template of an appcode

        With another name in its metadata it is renamed."""
        found = _find(request, code, name, OPERATE)
        manifest = parse(TemplateManifest, _named(request.data, name), appcode=code)
        return _document(change_template(found, manifest, acting_user=person(request)))

    @operation("templates_delete", {204: None})
    def delete(self, request: Request, code: str, name: str) -> None:
        """Delete a template of an appcode"""
        delete_template(_find(request, code, name, OPERATE), acting_user=person(request))


def _find(request: Request, whose: str, name: str, capability: Capability = VIEW) -> Template:
    return template_for(person(request), whose, name, capability)


def _read_own(request: Request, name: str = "") -> TemplateManifest:
    manifest = parse(TemplateManifest, _named(request.data, name) if name else request.data)
    if code := manifest.metadata.appcode:
        sentence = f"Your own is of no appcode; send it to /appcodes/{code}/templates, or leave this out."
        raise Invalid.at("metadata", "appcode", message=sentence)
    return manifest


def _named(body: Any, name: str) -> Any:
    """The body, with the name from the URL if it has none."""
    if isinstance(body, dict) and isinstance(body.get("metadata", {}), dict):
        return {**body, "metadata": {"name": name, **body.get("metadata", {})}}
    return body


def _document(row: Template) -> dict[str, Any]:
    code = row.appcode.code if row.appcode else None
    return {
        "kind": "template",
        "metadata": {"name": row.name, "appcode": code, "description": row.description},
        "spec": row.spec,
        "status": TemplateStatus.of(row, created=row.created_at, changed=row.changed_at).json_value(),
    }
