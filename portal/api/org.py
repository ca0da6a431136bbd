"""REST: the organisation, which everybody reads who asks for an appcode, and administrators write."""

from __future__ import annotations

from typing import Annotated

from django.http import Http404
from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import Field, StringConstraints
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.access import require_administrator
from portal.actions import org
from portal.api.documents import Answer
from portal.api.pagination import everything
from portal.api.views import person
from portal.manifests import Strict, parse
from portal.models import OrgNode, User

EXAMPLE = {"title": "Research", "namespace": "research"}


class OrgNodeSpec(Strict):
    """A node of the organisation. One with a namespace is a business line: it and everything below it run there."""

    title: Annotated[str, StringConstraints(max_length=100)] = ""
    namespace: Annotated[str, StringConstraints(max_length=63)] | None = Field(
        default=None, description="Cannot be changed while appcodes live in it."
    )


class NewOrgNode(OrgNodeSpec):
    """With its path, which cannot be changed later."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(examples=["example.research"])


class OrgNodeDocument(Answer):
    """As it is said; `path` is what an appcode names."""

    path: str
    title: str
    namespace: str | None


class OrgNodePage(Answer):
    items: list[OrgNodeDocument]
    next: str | None


class OrgNodes(APIView):
    @extend_schema(operation_id="org_nodes_list", summary="The organisation, by path", responses=OrgNodePage)
    def get(self, request: Request) -> Response:
        person(request)
        return everything([_document(row) for row in OrgNode.objects.all()])

    @extend_schema(
        operation_id="org_nodes_create",
        summary="Add a node of the organisation",
        description="For administrators.",
        request=NewOrgNode,
        responses={201: OrgNodeDocument},
        examples=[OpenApiExample("A business line", request_only=True, value={"path": "example.research", **EXAMPLE})],
    )
    def post(self, request: Request) -> Response:
        user = _administrator(request)
        spec = parse(NewOrgNode, request.data)
        row = OrgNode(path=spec.path, title=spec.title, namespace=spec.namespace)
        document = _document(org.save_org_node(row, acting_user=user))
        address = request.build_absolute_uri(f"{request.path}/{row.path}")
        return Response(document, status=status.HTTP_201_CREATED, headers={"Location": address})


class OneOrgNode(APIView):
    @extend_schema(operation_id="org_nodes_read", summary="A node of the organisation", responses=OrgNodeDocument)
    def get(self, request: Request, path: str) -> Response:
        person(request)
        return Response(_document(_node(path)))

    @extend_schema(
        operation_id="org_nodes_change",
        summary="Change a node of the organisation",
        description="For administrators. 422 at `namespace` while appcodes below live in the one that it has.",
        request=OrgNodeSpec,
        responses=OrgNodeDocument,
        examples=[OpenApiExample("A business line", request_only=True, value=EXAMPLE)],
    )
    def put(self, request: Request, path: str) -> Response:
        user = _administrator(request)
        row, spec = _node(path), parse(OrgNodeSpec, request.data)
        row.title, row.namespace = spec.title, spec.namespace
        return Response(_document(org.save_org_node(row, acting_user=user)))

    @extend_schema(
        operation_id="org_nodes_delete",
        summary="Delete a node of the organisation",
        description="For administrators. 409 while appcodes are at it, or live in its namespace.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, path: str) -> Response:
        user = _administrator(request)
        org.delete_org_node(_node(path), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _administrator(request: Request) -> User:
    user = person(request)
    require_administrator(user)
    return user


def _node(path: str) -> OrgNode:
    row = OrgNode.objects.filter(path=path).first()
    if row is None:
        raise Http404(f"There is no org node “{path}”.")
    return row


def _document(row: OrgNode) -> dict[str, object]:
    return OrgNodeDocument(path=row.path, title=row.title, namespace=row.namespace).json_value()
