"""REST of the organisation: every user reads it to request an appcode; administrators write it."""

from __future__ import annotations

from typing import Annotated

from django.http import Http404
from drf_spectacular.utils import OpenApiExample
from pydantic import Field, StringConstraints
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.actions import org
from portal.api.documents import Answer, page_of
from portal.api.operations import Document, created, operation
from portal.api.pagination import everything
from portal.api.views import administrator, person
from portal.manifests import Strict, parse
from portal.models import OrgNode

EXAMPLE = {"title": "Research", "namespace": "research"}


class OrgNodeSpec(Strict):
    """A node of the organisation. A node with a namespace is a business line: it and everything below it run there."""

    title: Annotated[str, StringConstraints(max_length=100)] = ""
    namespace: Annotated[str, StringConstraints(max_length=63)] | None = Field(
        default=None, description="Cannot be changed while appcodes live in it."
    )


class NewOrgNode(OrgNodeSpec):
    """A new node with its path, which cannot be changed later."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(examples=["example.research"])


class OrgNodeDocument(Answer):
    """A node; `path` is what an appcode references."""

    path: str
    title: str
    namespace: str | None


OrgNodePage = page_of("OrgNodePage", OrgNodeDocument)


class OrgNodes(APIView):
    @operation("org_nodes_list", OrgNodePage)
    def get(self, request: Request) -> Response:
        """The organisation, by path"""
        person(request)
        return everything([_document(row) for row in OrgNode.objects.all()])

    @operation(
        "org_nodes_create",
        {201: OrgNodeDocument},
        request=NewOrgNode,
        examples=[OpenApiExample("A business line", request_only=True, value={"path": "example.research", **EXAMPLE})],
    )
    def post(self, request: Request) -> Response:
        """Add a node of the organisation

        For administrators."""
        user = administrator(request)
        spec = parse(NewOrgNode, request.data)
        row = OrgNode(path=spec.path, title=spec.title, namespace=spec.namespace)
        document = _document(org.save_org_node(row, acting_user=user))
        return created(request, row.path, document)


class OneOrgNode(APIView):
    @operation("org_nodes_read", OrgNodeDocument)
    def get(self, request: Request, path: str) -> Document:
        """A node of the organisation"""
        person(request)
        return _document(_node(path))

    @operation(
        "org_nodes_change",
        OrgNodeDocument,
        request=OrgNodeSpec,
        examples=[OpenApiExample("A business line", request_only=True, value=EXAMPLE)],
    )
    def put(self, request: Request, path: str) -> Document:
        """Change a node of the organisation

        For administrators. 422 at `namespace` while appcodes below live in the one that it has."""
        user = administrator(request)
        row, spec = _node(path), parse(OrgNodeSpec, request.data)
        row.title, row.namespace = spec.title, spec.namespace
        return _document(org.save_org_node(row, acting_user=user))

    @operation("org_nodes_delete", {204: None})
    def delete(self, request: Request, path: str) -> None:
        """Delete a node of the organisation

        For administrators. 409 while appcodes are at it, or live in its namespace."""
        user = administrator(request)
        org.delete_org_node(_node(path), acting_user=user)


def _node(path: str) -> OrgNode:
    row = OrgNode.objects.filter(path=path).first()
    if row is None:
        raise Http404(f"There is no org node “{path}”.")
    return row


def _document(row: OrgNode) -> dict[str, object]:
    return OrgNodeDocument.of(row).json_value()
