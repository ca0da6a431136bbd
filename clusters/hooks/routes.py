"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.hooks import api as hooks_api
from clusters.hooks import pages as hooks

PAGES: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/hooks", hooks.hooks, name="hooks"),
    path("appcodes/<slug:code>/hooks/<slug:name>", hooks.hook, name="hook"),
    path("appcodes/<slug:code>/hooks/<slug:name>/delete", hooks.delete, name="delete_hook"),
]

REST: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/hooks", hooks_api.AppcodeHooks.as_view()),
    path("appcodes/<slug:code>/hooks/<slug:name>", hooks_api.OneHook.as_view()),
]
