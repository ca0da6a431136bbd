"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path, re_path

from clusters.cloud_admin import api as clouds_api
from clusters.cloud_admin import pages as clouds
from clusters.cloud_admin import windows_api, windows_pages

PAGES: list[URLPattern | URLResolver] = [
    path("admin/clouds", clouds.clouds, name="admin_clouds"),
    path("admin/clouds/new", clouds.cloud, name="admin_new_cloud"),
    path("admin/clouds/place", clouds.place, name="admin_place"),
    path("admin/clouds/<slug:name>/edit", clouds.cloud, name="admin_cloud"),
    path("admin/clouds/<slug:name>/test", clouds.test, name="admin_test_cloud"),
    path("admin/clouds/<slug:name>/give-up", clouds.give_up, name="admin_give_up_cloud"),
    path("admin/clouds/<slug:name>/nodes/<str:node>/give-up", clouds.give_up_node, name="admin_give_up_node"),
    path("admin/clouds/<slug:name>/windows", windows_pages.windows, name="admin_windows"),
    path("admin/clouds/<slug:name>/windows/<int:pk>", windows_pages.windows, name="admin_window"),
    path("admin/clouds/<slug:name>/windows/<int:pk>/cancel", windows_pages.cancel, name="admin_cancel_window"),
    re_path(
        r"^admin/clouds/(?P<name>[-\w]+)/(?P<verb>enable|disable|default|remove)\Z",
        clouds.act,
        name="admin_act_on_cloud",
    ),
]

REST: list[URLPattern | URLResolver] = [
    path("kubernetes", clouds_api.Clusters.as_view()),
    path("kubernetes/<slug:name>", clouds_api.OneCluster.as_view()),
    path("kubernetes/<slug:name>/test", clouds_api.Test.as_view()),
    path("kubernetes/<slug:name>/give-up", clouds_api.GiveUp.as_view()),
    path("kubernetes/<slug:name>/nodes/<str:node>/give-up", clouds_api.GiveUpNode.as_view()),
    path("clouds/<slug:name>/windows", windows_api.CloudWindows.as_view()),
    path("clouds/<slug:name>/windows/<int:pk>", windows_api.OneWindow.as_view()),
    path("placements", clouds_api.Placements.as_view()),
    path("placements/<str:path>", clouds_api.OnePlacement.as_view()),
]
