"""REST: saved environments of an appcode, and saving what was installed in a running application."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.access import application_for
from clusters.clouds.drivers.base import CloudError
from clusters.environments.access import environment_for, environments_for
from clusters.environments.actions import delete_environment, save_environment
from clusters.environments.context import build_context
from clusters.environments.installed import EnvironmentManifest
from clusters.environments.models import Environment
from portal.access import OPERATE
from portal.api.documents import Answer, Who, page_of
from portal.api.operations import Document, operation
from portal.api.pagination import LIST_PARAMETERS, number, page, search, whole
from portal.api.problems import Unavailable
from portal.api.views import person
from portal.manifests import parse

EXAMPLE = OpenApiExample(
    "With a script",
    request_only=True,
    value={
        "kind": "environment",
        "metadata": {"name": "torch", "appcode": "ops-demo"},
        "spec": {"script": "mkdir $VIRTUAL_ENV/models"},
    },
)
MAX_VERSION = 999_999
VERSION = OpenApiParameter("version", whole(1, MAX_VERSION), description="One version; the newest without it.")


class PackageDocument(Answer):
    """A package that the image lacks or has in another version."""

    name: str
    version: str
    was: str = Field(description="The image's version; empty where it has none.")


class EnvironmentMetadata(Answer):
    name: str
    appcode: str
    version: int
    created: dt.datetime
    created_by: Who


class EnvironmentSummarySpec(Answer):
    image: str = Field(description="The image over which it lies; who starts from it names that, too.")
    python: str
    platform: str


class EnvironmentSpec(EnvironmentSummarySpec):
    lock: str = Field(description="Requirements with hashes, one a line, as pip and uv read them.")
    script: str = Field(description="What bash runs once after they were installed.")


class EnvironmentStatus(Answer):
    digest: str = Field(description="SHA-256 of all that makes it: equal environments are made once.")
    application: str = Field(description="Where it was saved.")
    packages: list[PackageDocument]


class EnvironmentSummary(Answer):
    """One version of an environment, without its lock."""

    kind: Literal["environment"] = "environment"
    metadata: EnvironmentMetadata
    spec: EnvironmentSummarySpec
    status: EnvironmentStatus


class EnvironmentDocument(EnvironmentSummary):
    """One version of an environment. It never changes."""

    spec: EnvironmentSpec


EnvironmentPage = page_of("EnvironmentPage", EnvironmentSummary)


class AppcodeEnvironments(APIView):
    @operation("environments_list", EnvironmentPage, parameters=LIST_PARAMETERS)
    def get(self, request: Request, code: str) -> Response:
        """The environments of an appcode, every version, newest first"""
        rows = search(request, environments_for(person(request), code), "name", "image")
        return page(request, rows, order="-id", render=lambda row: EnvironmentSummary(**_said(row)).json_value())


class OneEnvironment(APIView):
    @operation("environments_read", EnvironmentDocument, parameters=[VERSION])
    def get(self, request: Request, code: str, name: str) -> Document:
        """A version of an environment"""
        return _document(environment_for(person(request), code, name, _version(request)))

    @operation(
        "environments_delete",
        {204: None},
        parameters=[
            OpenApiParameter("version", whole(1, MAX_VERSION), description="One version; all of them without it.")
        ],
    )
    def delete(self, request: Request, code: str, name: str) -> None:
        """Delete an environment, or one version of it

        Refused while a cluster is defined with it or runs with it. A number is never given again."""
        version = _version(request)
        row = environment_for(person(request), code, name, version, OPERATE)
        delete_environment(row, acting_user=person(request), every_version=version is None)


class BuildContext(APIView):
    @operation("environments_context", {(200, "application/gzip"): OpenApiTypes.BINARY}, parameters=[VERSION])
    def get(self, request: Request, code: str, name: str) -> HttpResponse:
        """What an image of a version is built from

        A .tar.gz with a Dockerfile over its image, as `docker build -` and other builders read it. 409 where the image
        is no container's."""
        row = environment_for(person(request), code, name, _version(request))
        headers = {"Content-Disposition": f'attachment; filename="{row.name}-{row.version}.tar.gz"'}
        return HttpResponse(build_context(row), content_type="application/gzip", headers=headers)


class SaveEnvironment(APIView):
    @operation(
        "environments_save",
        {200: EnvironmentDocument, 201: EnvironmentDocument},
        request=EnvironmentManifest,
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        """Save what was installed in a running application as the next version of an environment

        What differs from its image is frozen with the hashes of all files. 200 with the newest version when that is the
        same already. 409 while the application does not run."""
        cluster = application_for(person(request), code, name, OPERATE)
        manifest = parse(EnvironmentManifest, request.data, appcode=code)
        try:
            row, is_new = save_environment(cluster, manifest, acting_user=person(request))
        except CloudError as error:
            raise Unavailable(str(error)) from error
        address = request.build_absolute_uri(f"/api/v1/appcodes/{code}/environments/{row.name}?version={row.version}")
        return Response(
            _document(row),
            status=status.HTTP_201_CREATED if is_new else status.HTTP_200_OK,
            headers={"Location": address},
        )


def _version(request: Request) -> int | None:
    return number(request, "version", default=0, low=1, high=MAX_VERSION) or None


def _document(row: Environment) -> dict[str, Any]:
    said = _said(row)
    return EnvironmentDocument(
        **{**said, "spec": {**said["spec"], "lock": row.lock, "script": row.script}}
    ).json_value()


def _said(row: Environment) -> dict[str, Any]:
    return {
        "metadata": EnvironmentMetadata.of(row, appcode=row.appcode.code, created=row.created_at),
        "spec": {"image": row.image, "python": row.python, "platform": row.platform},
        "status": EnvironmentStatus.of(row),
    }
