"""REST: templates of clusters, one's own and those of an appcode."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.models import Template
from clusters.spec.listed import page_of_specs
from clusters.templates import (
    TemplateManifest,
    change_template,
    create_template,
    delete_template,
    own_templates,
    template_for,
    templates_in,
)
from portal.access import OPERATE, VIEW, Capability, appcode_for
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, search
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
PARAMETERS = [*PAGE_PARAMETERS, SEARCH_PARAMETER]


class TemplateStatus(Answer):
    created: dt.datetime
    created_by: str | None
    changed: dt.datetime


class TemplateDocument(TemplateManifest):
    """A template as it is answered: the manifest, and who saved it when."""

    status: TemplateStatus


class TemplatePage(Answer):
    items: list[TemplateDocument]
    next: str | None


class OwnTemplates(APIView):
    """Those that nobody else sees."""

    @extend_schema(
        operation_id="templates_list_own",
        summary="My own templates, newest first",
        parameters=PARAMETERS,
        responses=TemplatePage,
    )
    def get(self, request: Request) -> Response:
        rows = search(request, own_templates(person(request)), "name", "description")
        return page_of_specs(request, rows, "spec", order="-id", render=_document)

    @extend_schema(
        operation_id="templates_create_own",
        summary="Save a template for me alone",
        request=TemplateManifest,
        responses={201: TemplateDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request) -> Response:
        return _created(request, create_template(_read_own(request), None, acting_user=person(request)))


class AppcodeTemplates(APIView):
    @extend_schema(
        operation_id="templates_list",
        summary="The templates of an appcode, newest first",
        parameters=PARAMETERS,
        responses=TemplatePage,
    )
    def get(self, request: Request, code: str) -> Response:
        rows = search(request, templates_in(person(request), code), "name", "description")
        return page_of_specs(request, rows, "spec", order="-id", render=_document)

    @extend_schema(
        operation_id="templates_create",
        summary="Save a template for all members of an appcode",
        request=TemplateManifest,
        responses={201: TemplateDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = parse(TemplateManifest, request.data, appcode=code)
        return _created(request, create_template(manifest, appcode, acting_user=person(request)))


class OwnTemplate(APIView):
    @extend_schema(operation_id="templates_read_own", summary="A template of mine", responses=TemplateDocument)
    def get(self, request: Request, name: str) -> Response:
        return Response(_document(_find(request, Template.ME, name)))

    @extend_schema(
        operation_id="templates_change_own",
        summary="Replace a template of mine",
        description="With another name in its metadata it is renamed.",
        request=TemplateManifest,
        responses=TemplateDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, name: str) -> Response:
        found = _find(request, Template.ME, name)
        changed = change_template(found, _read_own(request, name), acting_user=person(request))
        return Response(_document(changed))

    @extend_schema(
        operation_id="templates_delete_own", summary="Delete a template of mine", request=None, responses={204: None}
    )
    def delete(self, request: Request, name: str) -> Response:
        return _deleted(request, _find(request, Template.ME, name))


class OneTemplate(APIView):
    @extend_schema(operation_id="templates_read", summary="A template of an appcode", responses=TemplateDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(_document(_find(request, code, name)))

    @extend_schema(
        operation_id="templates_change",
        summary="Replace a template of an appcode",
        description="With another name in its metadata it is renamed.",
        request=TemplateManifest,
        responses=TemplateDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name, OPERATE)
        manifest = parse(TemplateManifest, _named(request.data, name), appcode=code)
        return Response(_document(change_template(found, manifest, acting_user=person(request))))

    @extend_schema(
        operation_id="templates_delete",
        summary="Delete a template of an appcode",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        return _deleted(request, _find(request, code, name, OPERATE))


def _find(request: Request, whose: str, name: str, capability: Capability = VIEW) -> Template:
    return template_for(person(request), whose, name, capability)


def _read_own(request: Request, name: str = "") -> TemplateManifest:
    manifest = parse(TemplateManifest, _named(request.data, name) if name else request.data)
    if code := manifest.metadata.appcode:
        sentence = f"Your own is of no appcode; send it to /appcodes/{code}/templates, or leave this out."
        raise Invalid.at("metadata", "appcode", message=sentence)
    return manifest


def _named(body: Any, name: str) -> Any:
    """The body, with the name of the address where it says none."""
    if isinstance(body, dict) and isinstance(body.get("metadata", {}), dict):
        return {**body, "metadata": {"name": name, **body.get("metadata", {})}}
    return body


def _created(request: Request, made: Template) -> Response:
    address = request.build_absolute_uri(f"{request.path}/{made.name}")
    return Response(_document(made), status=status.HTTP_201_CREATED, headers={"Location": address})


def _deleted(request: Request, found: Template) -> Response:
    delete_template(found, acting_user=person(request))
    return Response(status=status.HTTP_204_NO_CONTENT)


def _document(row: Template) -> dict[str, Any]:
    code = row.appcode.code if row.appcode else None
    who = row.created_by.username if row.created_by else None
    return {
        "kind": "template",
        "metadata": {"name": row.name, "appcode": code, "description": row.description},
        "spec": row.spec,
        "status": TemplateStatus(created=row.created_at, created_by=who, changed=row.changed_at).json_value(),
    }
