"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.pull_secrets import api as pull_secrets_api
from clusters.pull_secrets import pages as pull_secrets

PAGES: list[URLPattern | URLResolver] = [
    path("admin/registries", pull_secrets.registries, name="admin_registries"),
    path("admin/registries/remove", pull_secrets.remove, name="admin_remove_registry"),
]

REST: list[URLPattern | URLResolver] = [
    path("pull-secrets", pull_secrets_api.PullSecrets.as_view()),
    path("pull-secrets/<str:path>/<str:host>", pull_secrets_api.OnePullSecret.as_view()),
]
