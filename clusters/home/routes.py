"""Addresses of this room."""

from django.urls import URLPattern, URLResolver, path

from clusters.home import pages

PAGES: list[URLPattern | URLResolver] = [
    path("", pages.home, name="home"),
    path("home/rows", pages.rows, name="home_rows"),
]
