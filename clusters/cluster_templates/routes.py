"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

from clusters.cluster_templates import api as templates_api
from clusters.cluster_templates import pages as templates

TEMPLATE = "templates/<slug:whose>/<slug:name>"
ONE = "clusters/<slug:appcode>/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("templates", templates.templates, name="templates"),
    path("clusters/templates", RedirectView.as_view(pattern_name="templates")),
    path("templates/save", templates.save, name="save_template"),
    path(TEMPLATE, templates.template, name="template"),
    path(f"{TEMPLATE}/delete", templates.delete, name="delete_template"),
    path(f"{ONE}/template", templates.save_cluster, name="save_cluster_as_template"),
]

REST: list[URLPattern | URLResolver] = [
    path("templates", templates_api.OwnTemplates.as_view()),
    path("templates/<slug:name>", templates_api.OwnTemplate.as_view()),
    path("appcodes/<slug:code>/templates", templates_api.AppcodeTemplates.as_view()),
    path("appcodes/<slug:code>/templates/<slug:name>", templates_api.OneTemplate.as_view()),
]
