"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.environments.api import environments as environments_api
from clusters.environments.api import plugins as plugins_api
from clusters.environments.pages import environments, plugins

APPLICATION = "applications/<slug:appcode>/<slug:name>"
REST_APPLICATION = "appcodes/<slug:code>/applications/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path(f"{APPLICATION}/environment", environments.save, name="save_environment"),
    path("appcodes/<slug:code>/environments", environments.environments, name="environments"),
    path("appcodes/<slug:code>/environments/<slug:name>", environments.environment, name="environment"),
    path("appcodes/<slug:code>/environments/<slug:name>/delete", environments.delete, name="delete_environment"),
    path("admin/plugins", plugins.all_plugins, name="admin_plugins"),
    path("admin/plugins/new", plugins.plugin, name="admin_new_plugin"),
    path("admin/plugins/<slug:image>/<slug:name>", plugins.plugin, name="admin_plugin"),
    path("admin/plugins/<slug:image>/<slug:name>/delete", plugins.delete, name="admin_delete_plugin"),
]

REST: list[URLPattern | URLResolver] = [
    path(f"{REST_APPLICATION}/environment", environments_api.SaveEnvironment.as_view()),
    path("appcodes/<slug:code>/environments", environments_api.AppcodeEnvironments.as_view()),
    path("appcodes/<slug:code>/environments/<slug:name>", environments_api.OneEnvironment.as_view()),
    path("appcodes/<slug:code>/environments/<slug:name>/context", environments_api.BuildContext.as_view()),
    path("images/<slug:image>/plugins", plugins_api.ImagePlugins.as_view()),
    path("images/<slug:image>/plugins/<slug:name>", plugins_api.OnePlugin.as_view()),
]
