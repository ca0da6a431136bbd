"""REST: who I am, appcodes, and the description of the API itself."""

from __future__ import annotations

from typing import cast

from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal import openapi  # noqa: F401 - teaches drf-spectacular our types
from portal.models import User
from portal.serializers import Me, me


class MeView(APIView):
    @extend_schema(operation_id="me", summary="Who I am and where I may do what", responses=Me)
    def get(self, request: Request) -> Response:
        return Response(me(person(request)))


class SchemaView(SpectacularAPIView):
    """The OpenAPI description, as YAML or, with `?format=json`, as JSON. It tells nothing about anybody's data."""


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI from our own server. Its script is a file of its own, so that no inline script has to be allowed."""

    template_name = "portal/api_docs.html"
    url_name = "api-schema"


def person(request: Request) -> User:
    """Who asks; the default permissions let nobody else through."""
    return cast("User", request.user)
