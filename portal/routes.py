"""Routes of the frame, appcodes, the profile and administration."""

from django.urls import URLPattern, URLResolver, include, path, register_converter
from django.urls.converters import StringConverter
from django.views.generic import RedirectView

from portal.branding import pages as branding
from portal.pages import admin, appcodes, help_page, search
from portal.profile import views as profile


class Username(StringConverter):
    regex = r"[\w.@+-]{1,150}"


class Verdict(StringConverter):
    regex = "approve|request-changes|refuse|disable|enable"


class PersonVerb(StringConverter):
    regex = "activate|deactivate|administrator|member"


register_converter(Username, "username")
register_converter(Verdict, "verdict")
register_converter(PersonVerb, "person_verb")

urlpatterns: list[URLPattern | URLResolver] = [
    path("frame/gpus", appcodes.gpus, name="frame_gpus"),
    path("frame/news", profile.news, name="frame_news"),
    path("frame/bell", profile.bell_count, name="frame_bell"),
    path("frame/appcodes", appcodes.appcode_menu, name="frame_appcodes"),
    path("frame/appcode", appcodes.switch_appcode, name="switch_appcode"),
    path("frame/expiry", appcodes.notices, name="expiry_notices"),
    path("frame/requests", admin.waiting, name="frame_requests"),
    path("frame/theme", appcodes.set_theme, name="set_theme"),
    path("search", search.search, name="search"),
    path("search/palette", search.palette, name="palette"),
    path("notifications", profile.bell, name="bell"),
    path("notifications/read", profile.bell_read, name="bell_read"),
    path("help", help_page.help_page, name="help"),
    path("appcodes", appcodes.appcodes, name="appcodes"),
    path("appcodes/new", appcodes.new_appcode, name="new_appcode"),
    path("appcodes/<slug:code>", appcodes.appcode, name="appcode"),
    path("appcodes/<slug:code>/change", appcodes.change_appcode, name="change_appcode"),
    path("appcodes/<slug:code>/request", appcodes.request_quota, name="request_quota"),
    path("appcodes/<slug:code>/request/withdraw", appcodes.withdraw_request, name="withdraw_request"),
    path("appcodes/<slug:code>/members", appcodes.set_member, name="set_member"),
    path("", include("portal.webhooks.routes")),
    path("appcodes/<slug:code>/share/effect", admin.share_effect, name="share_effect"),
    path("appcodes/<slug:code>/<verdict:verdict>", admin.decide, name="decide_appcode"),
    path("profile", profile.profile, name="profile"),
    path("profile/notifications", profile.notifications, name="notifications"),
    path("profile/zone", profile.set_zone, name="set_zone"),
    path("profile/tokens/<slug:token_key>/revoke", profile.revoke_token, name="revoke_token"),
    path("admin", RedirectView.as_view(pattern_name="admin_appcodes")),
    path("admin/appcodes", admin.requests, name="admin_appcodes"),
    path("admin/orgs", admin.org_nodes, name="admin_orgs"),
    path("admin/orgs/new", admin.org_node, name="new_org"),
    path("admin/orgs/<int:pk>", admin.org_node, name="admin_org"),
    path("admin/orgs/<int:pk>/delete", admin.delete_org_node, name="delete_org"),
    path("admin/branding", branding.branding, name="admin_branding"),
    path("branding/logo/<slug:digest>", branding.logo, name="branding_logo"),
    path("admin/people", admin.people, name="admin_people"),
    path("admin/people/new", admin.new_person, name="new_person"),
    path("admin/people/<username:username>", admin.one_person, name="admin_person"),
    path("admin/people/<username:username>/password", admin.reset_password, name="reset_person_password"),
    path("admin/people/<username:username>/<person_verb:verb>", admin.change_person, name="change_person"),
    path("admin/audit", admin.audit, name="admin_audit"),
]
