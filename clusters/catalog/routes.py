"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.catalog import api as offers_api
from clusters.catalog.pages import offers

PAGES: list[URLPattern | URLResolver] = [
    path("admin/flavors", offers.flavors, name="admin_flavors"),
    path("admin/flavors/new", offers.flavor, name="admin_new_flavor"),
    path("admin/flavors/<slug:name>", offers.flavor, name="admin_flavor"),
    path("admin/images", offers.images, name="admin_images"),
    path("admin/images/new", offers.image, name="admin_new_image"),
    path("admin/images/<slug:name>", offers.image, name="admin_image"),
]

REST: list[URLPattern | URLResolver] = [
    path("flavors", offers_api.Flavors.as_view()),
    path("flavors/<slug:name>", offers_api.OneFlavor.as_view()),
    path("images", offers_api.Images.as_view()),
    path("images/<slug:name>", offers_api.OneImage.as_view()),
]
