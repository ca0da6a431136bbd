"""Addresses of this room's pages."""

from django.urls import URLPattern, URLResolver, path

from clusters.gateway import pages as opening

PAGES: list[URLPattern | URLResolver] = [
    path("open/<slug:label>", opening.open_endpoint, name="open_endpoint"),
]
