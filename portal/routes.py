"""Addresses of the frame, of appcodes, of one's profile, and of administration."""

from django.urls import URLPattern, URLResolver, include, path, register_converter
from django.urls.converters import StringConverter

from portal import admin_views, views


class Username(StringConverter):
    regex = r"[\w.@+-]{1,150}"


class Verdict(StringConverter):
    regex = "approve|refuse|disable|quota"


class PersonVerb(StringConverter):
    regex = "activate|deactivate|administrator|member"


register_converter(Username, "username")
register_converter(Verdict, "verdict")
register_converter(PersonVerb, "person_verb")

urlpatterns: list[URLPattern | URLResolver] = [
    path("frame/gpus", views.gpus, name="frame_gpus"),
    path("frame/appcodes", views.appcode_menu, name="frame_appcodes"),
    path("frame/appcode", views.switch_appcode, name="switch_appcode"),
    path("frame/theme", views.set_theme, name="set_theme"),
    path("search", views.search, name="search"),
    path("appcodes", views.appcodes, name="appcodes"),
    path("appcodes/new", views.new_appcode, name="new_appcode"),
    path("appcodes/<slug:code>", views.appcode, name="appcode"),
    path("appcodes/<slug:code>/change", views.change_appcode, name="change_appcode"),
    path("appcodes/<slug:code>/members", views.set_member, name="set_member"),
    path("", include("portal.webhooks.routes")),
    path("appcodes/<slug:code>/<verdict:verdict>", admin_views.decide, name="decide_appcode"),
    path("profile", views.profile, name="profile"),
    path("profile/tokens/<slug:token_key>/revoke", views.revoke_token, name="revoke_token"),
    path("admin/appcodes", admin_views.requests, name="admin_appcodes"),
    path("admin/orgs", admin_views.org_nodes, name="admin_orgs"),
    path("admin/orgs/new", admin_views.org_node, name="new_org"),
    path("admin/orgs/<int:pk>", admin_views.org_node, name="admin_org"),
    path("admin/orgs/<int:pk>/delete", admin_views.delete_org_node, name="delete_org"),
    path("admin/people", admin_views.people, name="admin_people"),
    path("admin/people/new", admin_views.new_person, name="new_person"),
    path("admin/people/<username:username>", admin_views.one_person, name="admin_person"),
    path("admin/people/<username:username>/password", admin_views.reset_password, name="reset_person_password"),
    path("admin/people/<username:username>/<person_verb:verb>", admin_views.change_person, name="change_person"),
    path("admin/audit", admin_views.audit, name="admin_audit"),
]
