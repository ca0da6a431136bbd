"""REST: plugins of images. All users can read what is offered; administrators add, change and remove plugins."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from drf_spectacular.utils import OpenApiExample
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.clouds.drivers.base import CloudError
from clusters.environments.models import Plugin
from clusters.environments.plugin import PluginManifest, PluginMetadata, PluginSpec
from clusters.environments.plugins import delete_plugin, plugin_for, plugins_of, save_plugin
from portal.api.documents import Answer, page_of
from portal.api.operations import Document, created, operation
from portal.api.pagination import everything
from portal.api.problems import Unavailable
from portal.api.views import administrator
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
    """The newest version of a plugin for the JupyterLab of an image."""

    kind: Literal["plugin"] = "plugin"
    metadata: PluginMetadata
    spec: PluginSpec
    status: PluginStatus


PluginPage = page_of("PluginPage", PluginDocument)


class ImagePlugins(APIView):
    @operation("plugins_list", PluginPage)
    def get(self, request: Request, image: str) -> Response:
        """What may be added to the JupyterLab of an image"""
        return everything([_document(row) for row in plugins_of(image)])

    @operation("plugins_create", {201: PluginDocument}, request=PluginManifest, examples=[EXAMPLE])
    def post(self, request: Request, image: str) -> Response:
        """Offer a plugin

        For administrators. Its requirements are resolved now, over what the image and its other plugins have, and kept
        with the hashes of all files; wheels only."""
        user = administrator(request)
        row = _saved(parse(PluginManifest, request.data, image=image), user, new=True)
        return created(request, row.name, _document(row))


class OnePlugin(APIView):
    @operation("plugins_read", PluginDocument)
    def get(self, request: Request, image: str, name: str) -> Document:
        """A plugin"""
        return _document(plugin_for(image, name))

    @operation("plugins_change", PluginDocument, request=PluginManifest, examples=[EXAMPLE])
    def put(self, request: Request, image: str, name: str) -> Document:
        """Change a plugin

        For administrators. Its requirements are resolved anew, and other packages are the next version, which the next
        deployments get."""
        user = administrator(request)
        plugin_for(image, name)
        return _document(_saved(parse(PluginManifest, request.data, image=image, name=name), user, new=False))

    @operation("plugins_delete", {204: None})
    def delete(self, request: Request, image: str, name: str) -> None:
        """Offer a plugin no more

        For administrators. Refused while an application has it."""
        user = administrator(request)
        delete_plugin(plugin_for(image, name), acting_user=user)


def _saved(manifest: PluginManifest, user: User, *, new: bool) -> Plugin:
    try:
        return save_plugin(manifest, acting_user=user, new=new)
    except CloudError as error:
        raise Unavailable(str(error)) from error


def _document(row: Plugin) -> dict[str, Any]:
    return PluginDocument(
        metadata=PluginMetadata(name=row.name, image=row.image.name),
        spec=PluginSpec(title=row.title, description=row.description, requirements=tuple(row.requirements)),
        status=PluginStatus.of(row, created=row.created_at),
    ).json_value()
