from django.urls import URLPattern, URLResolver, include, path

from portal.api import org, views
from portal.branding.api import BrandingView
from portal.profile.api import MeBell, MeBellRead, MeNotifications

urlpatterns: list[URLPattern | URLResolver] = [
    path("version", views.VersionView.as_view()),
    path("branding", BrandingView.as_view()),
    path("me", views.MeView.as_view()),
    path("me/bell", MeBell.as_view()),
    path("me/bell/read", MeBellRead.as_view()),
    path("me/notifications", MeNotifications.as_view()),
    path("appcodes", views.Appcodes.as_view()),
    path("appcodes/<slug:code>", views.OneAppcode.as_view()),
    path("appcodes/<slug:code>/quota-requests", views.QuotaRequests.as_view()),
    path("appcodes/<slug:code>/quota-requests/withdraw", views.WithdrawRequest.as_view()),
    path("appcodes/<slug:code>/quota-requests/approve", views.ApproveRequest.as_view()),
    path("appcodes/<slug:code>/quota-requests/refuse", views.RefuseRequest.as_view()),
    path("appcodes/<slug:code>/quota-requests/request-changes", views.RequestChanges.as_view()),
    path("org-nodes", org.OrgNodes.as_view()),
    path("org-nodes/<str:path>", org.OneOrgNode.as_view()),
    path("", include("portal.webhooks.api_routes")),
    path("schema", views.SchemaView.as_view(), name="api-schema"),
    path("docs", views.DocsView.as_view(), name="api-docs"),
]
