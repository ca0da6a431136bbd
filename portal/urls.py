"""All URLs. Apps are included by name, so that imports keep going one way."""

from django.urls import include, path, re_path

from portal.api.problems import unknown_address
from portal.monitoring.metrics import Metrics

urlpatterns = [
    path("accounts/", include("portal.web.account_routes")),
    path("", include("portal.routes")),
    path("", include("datastores.routes")),
    path("", include("billing.routes")),
    path("", include("clusters.urls")),
    path("api/v1/", include("portal.api_routes")),
    path("api/v1/", include("datastores.api_routes")),
    path("api/v1/", include("billing.api_routes")),
    path("api/v1/", include("clusters.api_urls")),
    path("metrics", Metrics.as_view()),
    re_path(r"^api(?:/|\Z)", unknown_address),
]

handler400, handler403 = "portal.pages.error_pages.bad_request", "portal.pages.error_pages.forbidden"
handler404, handler500 = "portal.pages.error_pages.not_found", "portal.pages.error_pages.server_error"
handler429 = "portal.pages.error_pages.too_many"
