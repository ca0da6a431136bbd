"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.comparison import api as compare_api
from clusters.comparison import groups, media
from clusters.comparison import pages as compare

PAGES: list[URLPattern | URLResolver] = [
    path("compare", compare.compare_ticked, name="compare_ticked"),
    path("appcodes/<slug:code>/compare", compare.compare, name="compare"),
    path("appcodes/<slug:code>/compare/charts", compare.charts, name="compare_charts"),
    path("appcodes/<slug:code>/compare/groups", groups.charts, name="compare_groups"),
    path("appcodes/<slug:code>/compare/media", media.media, name="compare_media"),
]

REST: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/compare", compare_api.Comparison.as_view()),
]
