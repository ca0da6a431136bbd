from django.urls import URLPattern, URLResolver, include, path

from portal import api

urlpatterns: list[URLPattern | URLResolver] = [
    path("me", api.MeView.as_view()),
    path("appcodes", api.Appcodes.as_view()),
    path("appcodes/<slug:code>", api.OneAppcode.as_view()),
    path("", include("portal.webhooks.api_routes")),
    path("schema", api.SchemaView.as_view(), name="api-schema"),
    path("docs", api.DocsView.as_view(), name="api-docs"),
]
