"""REST: plugins of images. Everybody reads what is offered; administrators offer, change and take away."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.clouds.drivers.base import CloudError
from clusters.environments.plugin import PluginManifest, PluginMetadata, PluginSpec
from clusters.environments.plugins import delete_plugin, plugin_for, plugins_of, save_plugin
from clusters.models import Plugin
from portal.access import require_administrator
from portal.api.documents import Answer
from portal.api.pagination import everything
from portal.api.problems import Unavailable
from portal.api.views import person
from portal.manifests import parse
from portal.models import User

EXAMPLE = OpenApiExample(
    "Archives of folders",
    request_only=True,
    value={
        "kind": "plugin",
        "metadata": {"name": "archive", "image": "jupyter-4-6"},
        "spec": {"title": "Archive", "description": "Downloads folders.", "requirements": ["jupyter-archive>=3.4"]},
    },
)


class PluginPackage(Answer):
    name: str
    version: str


class PluginStatus(Answer):
    version: int = Field(description="Grows with each change of the packages; NAME:VERSION is that one for ever.")
    packages: list[PluginPackage] = Field(description="What is installed: what the image lacks.")
    lock: str = Field(description="The same with the hashes of all files.")
    digest: str
    created: dt.datetime


class PluginDocument(Answer):
    """What may be added to the JupyterLab of an image, in its newest version."""

    kind: Literal["plugin"] = "plugin"
    metadata: PluginMetadata
    spec: PluginSpec
    status: PluginStatus


class PluginPage(Answer):
    items: list[PluginDocument]
    next: str | None


class ImagePlugins(APIView):
    @extend_schema(
        operation_id="plugins_list", summary="What may be added to the JupyterLab of an image", responses=PluginPage
    )
    def get(self, request: Request, image: str) -> Response:
        return everything([_document(row) for row in plugins_of(image)])

    @extend_schema(
        operation_id="plugins_create",
        summary="Offer a plugin",
        description="For administrators. Its requirements are resolved now, over what the image and its other plugins have, and "
        "kept with the hashes of all files; wheels only.",
        request=PluginManifest,
        responses={201: PluginDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, image: str) -> Response:
        user = _administrator(request)
        row = _saved(parse(PluginManifest, request.data, image=image), user, new=True)
        address = request.build_absolute_uri(f"{request.path}/{row.name}")
        return Response(_document(row), status=status.HTTP_201_CREATED, headers={"Location": address})


class OnePlugin(APIView):
    @extend_schema(operation_id="plugins_read", summary="A plugin", responses=PluginDocument)
    def get(self, request: Request, image: str, name: str) -> Response:
        return Response(_document(plugin_for(image, name)))

    @extend_schema(
        operation_id="plugins_change",
        summary="Change a plugin",
        description="For administrators. Its requirements are resolved anew, and other packages are the next version, which the "
        "next deployments get.",
        request=PluginManifest,
        responses=PluginDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, image: str, name: str) -> Response:
        user = _administrator(request)
        plugin_for(image, name)
        return Response(_document(_saved(parse(PluginManifest, request.data, image=image, name=name), user, new=False)))

    @extend_schema(
        operation_id="plugins_delete",
        summary="Offer a plugin no more",
        description="For administrators. Refused while an application has it.",
        responses={204: None},
    )
    def delete(self, request: Request, image: str, name: str) -> Response:
        user = _administrator(request)
        delete_plugin(plugin_for(image, name), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _administrator(request: Request) -> User:
    user = person(request)
    require_administrator(user)
    return user


def _saved(manifest: PluginManifest, user: User, *, new: bool) -> Plugin:
    try:
        return save_plugin(manifest, acting_user=user, new=new)
    except CloudError as error:
        raise Unavailable(str(error)) from error


def _document(row: Plugin) -> dict[str, Any]:
    return PluginDocument(
        metadata=PluginMetadata(name=row.name, image=row.image.name),
        spec=PluginSpec(title=row.title, description=row.description, requirements=tuple(row.requirements)),
        status=PluginStatus(
            version=row.version,
            packages=[PluginPackage(**each) for each in row.packages],
            lock=row.lock,
            digest=row.digest,
            created=row.created_at,
        ),
    ).json_value()
