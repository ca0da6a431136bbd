"""REST: who I am, appcodes, and the description of the API itself."""

from __future__ import annotations

from typing import cast

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.access import MANAGE, appcode_for, appcodes_for
from portal.actions import appcodes as appcodes_actions
from portal.api import openapi as openapi  # known to the description before the first one is made
from portal.api.documents import AppcodeDocument, AppcodePage, Me, appcode_document, me, read_appcode
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, page, search
from portal.models import Appcode, User
from portal.specs import AppcodeManifest

EXAMPLE = OpenApiExample(
    "An appcode of the business line OPS",
    request_only=True,
    value={
        "kind": "appcode",
        "metadata": {"name": "npe_ix_test_gpu"},
        "spec": {
            "orgNode": "qunarcorp.ops.dev",
            "owners": ["alice"],
            "emails": ["alice@example.com"],
            "remark": "Recommendations, second try",
        },
    },
)


class MeView(APIView):
    @extend_schema(operation_id="me", summary="Who I am and where I may do what", responses=Me)
    def get(self, request: Request) -> Response:
        return Response(me(person(request)))


class Appcodes(APIView):
    @extend_schema(
        operation_id="appcodes_list",
        summary="The appcodes that I may see, by code",
        parameters=[*PAGE_PARAMETERS, SEARCH_PARAMETER],
        responses=AppcodePage,
    )
    def get(self, request: Request) -> Response:
        rows = search(request, _with_people(appcodes_for(person(request))), "code", "name", "org_node__path")
        return page(request, rows, order="code", render=appcode_document)

    @extend_schema(
        operation_id="appcodes_request",
        summary="Request an appcode",
        description="It can be used once an administrator has approved it; at once when an administrator asks.",
        request=AppcodeManifest,
        responses={201: AppcodeDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request) -> Response:
        appcode = appcodes_actions.request_appcode(read_appcode(request.data), acting_user=person(request))
        address = request.build_absolute_uri(f"{request.path}/{appcode.code}")
        return Response(appcode_document(appcode), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneAppcode(APIView):
    @extend_schema(operation_id="appcodes_read", summary="An appcode as a manifest", responses=AppcodeDocument)
    def get(self, request: Request, code: str) -> Response:
        return Response(appcode_document(appcode_for(person(request), code)))

    @extend_schema(
        operation_id="appcodes_change",
        summary="Change an appcode",
        description="Owners who are not named any more become developers. Quota and org node are an administrator's to change.",
        request=AppcodeManifest,
        responses=AppcodeDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, MANAGE)
        appcodes_actions.change_appcode(appcode, read_appcode(request.data, code=code), acting_user=person(request))
        return Response(appcode_document(appcode_for(person(request), code)))


class SchemaView(SpectacularAPIView):
    """The OpenAPI description, as YAML or, with `?format=json`, as JSON. It tells nothing about anybody's data."""


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI from our own server. Its script is a file of its own, so that no inline script has to be allowed."""

    template_name = "portal/api_docs.html"
    url_name = "api-schema"


def person(request: Request) -> User:
    """Who asks; the default permissions let nobody else through."""
    return cast("User", request.user)


def _with_people(appcodes: QuerySet[Appcode]) -> QuerySet[Appcode]:
    return appcodes.select_related("org_node", "requested_by").prefetch_related("memberships__user")
